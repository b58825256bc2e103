"""A Tenant's namespace and what makes it the team's own: roles, quota, NetworkPolicy, nodes."""
