"""The way to workspaces' own web pages: who may pass, and the proxy."""
