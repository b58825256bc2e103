"""What a Prometheus Operator is told of us: where metrics are, and when to alert.

https://prometheus-operator.dev/docs/api-reference/api/
"""

from __future__ import annotations

from moorage.apimachinery.resources import Obj, Resource
from moorage.model.manifests import ALL, PART_OF, SERVER, Service, make_object
from moorage.model.names import SYSTEM_NAMESPACE, WEBHOOK_TLS_SECRET

GROUP = "monitoring.coreos.com"
SERVICE_MONITORS = Resource(GROUP, "v1", "servicemonitors", "ServiceMonitor")
PROMETHEUS_RULES = Resource(GROUP, "v1", "prometheusrules", "PrometheusRule")
EVERY = "30s"

ALERTS = (  # name, expression, for how long, severity, what it means
    (
        "MoorageServerDown",
        'absent(up{job="moorage-server"} == 1)',
        "5m",
        "critical",
        "No server of Moorage answers: commands, pages and maps do not work.",
    ),
    (
        "MoorageExtenderDown",
        'absent(up{job="moorage-extender"} == 1)',
        "5m",
        "warning",
        "No extender of Moorage answers: GPU pods are spread over the nodes.",
    ),
    (
        "MoorageExtenderNotAsked",
        "time() - max(moorage_extender_last_request_timestamp_seconds) > 3600 and on() sum(moorage_node_gpus) > 0",
        "10m",
        "warning",
        "No scheduler has asked the extender for an hour.",
    ),
    (
        "MoorageExtenderErrors",
        "sum(rate(moorage_extender_errors_total[5m])) > 0",
        "10m",
        "warning",
        "The extender refuses requests: a scheduler has a wrong token, or asks before the cluster is known.",
    ),
    (
        "MoorageAuditRecordsLost",
        "increase(moorage_audit_records_lost_total[1h]) > 0",
        "0m",
        "warning",
        "Changes in the Kubernetes API are not in the audit log, because the server was away.",
    ),
    (
        "MoorageGpusFragmented",
        'sum(moorage_gpus_free_of_little_use) / sum(moorage_cluster_gpus{state=~"free|used|reserved"}) > 0.25',
        "1h",
        "info",
        "A quarter of the GPUs is free, and of little use: beside taken ones, or without CPU and memory.",
    ),
)


def make_monitoring() -> list[Obj]:
    """ServiceMonitors of the services with metrics, and the alerts."""
    return [*(_monitor(service, token=service is SERVER) for service in ALL), _rules()]


def _monitor(service: Service, *, token: bool = False) -> Obj:
    endpoint: Obj = {"port": "https" if service.https else "http", "path": "/metrics", "interval": EVERY}
    if service.https:
        authority = {"secret": {"name": WEBHOOK_TLS_SECRET, "key": "ca.crt"}}
        endpoint |= {
            "scheme": "https",
            "tlsConfig": {"ca": authority, "serverName": f"{service.full_name}.{SYSTEM_NAMESPACE}.svc"},
        }
    if token:  # of Prometheus' own account
        endpoint["bearerTokenFile"] = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    spec = {"selector": {"matchLabels": service.labels}, "endpoints": [endpoint]}
    return make_object(SERVICE_MONITORS, service.full_name, labels=service.labels, spec=spec)


def _rules() -> Obj:
    rules = [
        {
            "alert": name,
            "expr": expression,
            "for": duration,
            "labels": {"severity": severity},
            "annotations": {"summary": meaning},
        }
        for name, expression, duration, severity, meaning in ALERTS
    ]
    return make_object(
        PROMETHEUS_RULES, "moorage", labels=PART_OF, spec={"groups": [{"name": "moorage", "rules": rules}]}
    )
