"""What our services measure of themselves and of the cluster, and Prometheus' page of it.

Belongs here: families (name, labels, bounds), counters and histograms that are cheap to feed, the page, the ASGI
layer that times requests.
Does not belong here: what a value is (`decide.measures`), who reads it (`model.monitoring`).
"""
