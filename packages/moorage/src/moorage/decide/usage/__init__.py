"""The use of each GPU: the user, the start and the duration."""
