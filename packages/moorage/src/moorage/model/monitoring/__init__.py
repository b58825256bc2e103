"""Configuration of Prometheus and Grafana: addresses of metrics, rules to record and to alert, and dashboards.

Belongs here: pure builders of the files in `deploy/optional`.
Does not belong here: the metrics themselves (`metrics`, `decide.measures`, and each service's `measures`).
"""
