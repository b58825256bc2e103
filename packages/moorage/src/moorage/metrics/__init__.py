"""Metrics of our services and of the cluster, and Prometheus' page of them.

Belongs here: families (name, labels, bounds), counters and histograms that are cheap to feed, the page, the ASGI
layer that times requests.
Does not belong here: the computation of values (`decide.measures`), dashboards and alerts (`model.monitoring`).
"""
