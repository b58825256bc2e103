"""Decisions about workflows as text, for the server and the command line."""
