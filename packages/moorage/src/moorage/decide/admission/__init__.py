"""Admission: the changes, refusals and advice for guardrails, hosts, tenants, priorities and machines."""
