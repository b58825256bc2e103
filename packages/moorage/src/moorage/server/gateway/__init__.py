"""Access to workspaces' own web pages: the check of users, and the proxy."""
