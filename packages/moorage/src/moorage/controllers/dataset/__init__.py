"""Datasets: the volume, the Jobs that fill it, and the claims by which tenants read it."""
