"""Who asks, and what they may do: users, tokens, RBAC."""
