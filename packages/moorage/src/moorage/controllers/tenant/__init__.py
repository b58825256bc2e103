"""A Tenant's namespace and its contents: roles, quota, NetworkPolicy, nodes."""
