"""Authentication: tokens, sessions, passwords, OpenID Connect, accounts, and the audit log."""
