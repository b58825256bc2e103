"""What Prometheus and Grafana are told of us: where metrics are, what to record and when to alert, and dashboards.

Belongs here: pure builders of what `deploy/optional` holds.
Does not belong here: the metrics themselves (`metrics`, `decide.measures`, and each service's `measures`).
"""
