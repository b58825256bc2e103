"""Metrics of the cluster for Prometheus: families, and their values from the objects that the server has read.

Belongs here: pure functions from views to values, each with the bound of its series.
Does not belong here: measurements of a service's own work (`metrics`, and each service's `measures`).
"""
