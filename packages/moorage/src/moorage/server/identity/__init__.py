"""Who asks: tokens, sessions, passwords, OpenID Connect, accounts, and the log of what was changed."""
