"""Pods killed for their memory: told to their owners, and kept from wandering from node to node."""
