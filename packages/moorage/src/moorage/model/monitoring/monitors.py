"""Objects of the Prometheus Operator: a ServiceMonitor for each service, and the rules.

https://prometheus-operator.dev/docs/api-reference/api/
"""

from __future__ import annotations

from moorage.model.manifests import ALL, PART_OF, Service, make_object
from moorage.model.monitoring.rules import rule_groups
from moorage.model.names import SYSTEM_NAMESPACE, WEBHOOK_TLS_SECRET
from moorage_kube.resources import Obj, Resource

GROUP = "monitoring.coreos.com"
SERVICE_MONITORS = Resource(GROUP, "v1", "servicemonitors", "ServiceMonitor")
PROMETHEUS_RULES = Resource(GROUP, "v1", "prometheusrules", "PrometheusRule")
EVERY = "30s"


def make_monitoring() -> list[Obj]:
    """ServiceMonitors of all services, and the rules."""
    rules = make_object(PROMETHEUS_RULES, "moorage", labels=PART_OF, spec={"groups": rule_groups()})
    return [*(_monitor(service) for service in ALL), rules]


def _monitor(service: Service) -> Obj:
    endpoint: Obj = {
        "port": "https" if service.https else "http",
        "path": "/metrics",
        "interval": EVERY,
        "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",  # of Prometheus' own account
    }
    if service.https:
        authority = {"secret": {"name": WEBHOOK_TLS_SECRET, "key": "ca.crt"}}
        endpoint |= {
            "scheme": "https",
            "tlsConfig": {"ca": authority, "serverName": f"{service.full_name}.{SYSTEM_NAMESPACE}.svc"},
        }
    spec = {"selector": {"matchLabels": service.labels}, "endpoints": [endpoint]}
    return make_object(SERVICE_MONITORS, service.full_name, labels=service.labels, spec=spec)
