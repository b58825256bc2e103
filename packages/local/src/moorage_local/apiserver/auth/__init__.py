"""Users and their rights: authentication, tokens, RBAC."""
