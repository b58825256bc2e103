"""Changes of the tree for a cluster with many users: two of each service, spread over nodes, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.model.manifests.deployments import SCRATCH_SIZE
from moorage.model.manifests.parts import HOSTNAME, ZONE, Service, spread
from moorage.model.manifests.services import ALL, QUEUE_SECRET, SERVER, USAGE_CLAIM
from moorage.model.names import SYSTEM_NAMESPACE
from moorage_kube.resources import DEPLOYMENTS, PVCS, Obj

REPLICAS = 2
STRATEGY = {  # a new pod is ready before an old one is deleted
    "type": "RollingUpdate",
    "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
}
EXAMPLE_HOST = "moorage.example.org"
EXAMPLE_TLS_SECRET = "moorage-tls"


def make_production_patches(services: Sequence[Service] = ALL) -> list[Obj]:
    """Strategic merge patches of the Deployments, and the deletion of the server's claim.

    Two servers store everything in PostgreSQL (docs/explanation/two-servers.md): the Secret must exist, and
    the volume is temporary. Replicas of a service run on different nodes, and in different zones if there are
    several.
    """
    patches = [_deployment(service) for service in services]
    claim = {"name": USAGE_CLAIM, "namespace": SYSTEM_NAMESPACE}
    return [
        *patches,
        {"apiVersion": PVCS.api_version, "kind": PVCS.kind, "metadata": claim, "$patch": "delete"},
    ]


def _deployment(service: Service) -> Obj:
    labels = {"app.kubernetes.io/name": service.full_name}
    pod: Obj = {
        "topologySpreadConstraints": [
            *([{"$patch": "replace"}] if service.replicas > 1 else ()),  # the tree's own, softer ones
            # by the hash: a new version may start before the old one ends
            spread(labels, HOSTNAME, strictly=True) | {"matchLabelKeys": ["pod-template-hash"]},
            spread(labels, ZONE) | {"matchLabelKeys": ["pod-template-hash"]},
        ]
    }
    if service is SERVER:
        source = {"secretKeyRef": {"name": QUEUE_SECRET, "key": "url", "optional": False}}
        pod["containers"] = [{"name": service.name, "env": [{"name": "MOORAGE_QUEUE_URL", "valueFrom": source}]}]
        pod["volumes"] = [{"name": "data", "persistentVolumeClaim": None, "emptyDir": {"sizeLimit": SCRATCH_SIZE}}]
    return {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"name": service.full_name, "namespace": SYSTEM_NAMESPACE},
        "spec": {"replicas": REPLICAS, "strategy": dict(STRATEGY), "template": {"spec": pod}},
    }


def make_own_patches(host: str = EXAMPLE_HOST) -> list[Obj]:
    """JSON patches of the Ingress. An admin's overlay uses them to set the host."""
    return [
        {"op": "replace", "path": "/spec/rules/0/host", "value": host},
        {"op": "replace", "path": "/spec/tls/0/hosts/0", "value": host},
    ]
