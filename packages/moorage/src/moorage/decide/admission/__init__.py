"""What admission changes, refuses and advises: guardrails, hosts, tenants, priorities, machines."""
