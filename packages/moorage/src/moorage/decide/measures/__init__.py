"""What Prometheus is shown of the cluster: families, and their values from what the server has read.

Belongs here: pure functions from views to values, each with the bound of its series.
Does not belong here: what a service measures of itself while it works (`metrics`, and each service's `measures`).
"""
