"""The built-in collections that garbage collection needs.

Their objects own others, have owners, or are deleted with their namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    ENDPOINTS,
    ENDPOINTSLICES,
    EVENTS,
    INGRESSES,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    PRIORITYCLASSES,
    PVCS,
    PVS,
    REPLICASETS,
    SECRETS,
    SERVICEACCOUNTS,
    SERVICES,
    STATEFULSETS,
    STORAGECLASSES,
    Resource,
)

RBAC = "rbac.authorization.k8s.io"
CLUSTERROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
RESOURCEQUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
CONTROLLERREVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")

KNOWN: tuple[Resource, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    CONFIGMAPS,
    SECRETS,
    SERVICES,
    SERVICEACCOUNTS,
    PVCS,
    PVS,
    JOBS,
    DEPLOYMENTS,
    REPLICASETS,
    LEASES,
    PRIORITYCLASSES,
    STORAGECLASSES,
    CRDS,
    PDBS,
    STATEFULSETS,
    ENDPOINTS,
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("", "v1", "podtemplates", "PodTemplate"),
    Resource("", "v1", "replicationcontrollers", "ReplicationController"),
    RESOURCEQUOTAS,
    CONTROLLERREVISIONS,
    DAEMONSETS,
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    CRONJOBS,
    ENDPOINTSLICES,
    INGRESSES,
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    CLUSTERROLES,
    Resource(RBAC, "v1", "rolebindings", "RoleBinding"),
    Resource(RBAC, "v1", "roles", "Role"),
)


def resource_of_crd(crd: Mapping[str, Any]) -> Resource | None:
    """Return the collection of a CustomResourceDefinition (its stored version); None if it is not served."""
    conditions = (crd.get("status") or {}).get("conditions") or ()
    if not any(
        condition.get("type") == "Established" and condition.get("status") == "True" for condition in conditions
    ):
        return None
    spec = crd["spec"]
    for version in sorted(spec.get("versions") or (), key=lambda version: not version.get("storage")):
        if version.get("served"):
            names = spec["names"]
            return Resource(
                spec["group"], version["name"], names["plural"], names["kind"], spec.get("scope") == "Namespaced"
            )
    return None


class Catalogue:
    """Collections by group and kind: the built-in ones and those of the current CRDs."""

    def __init__(self, builtin: Iterable[Resource] = KNOWN) -> None:
        self._by_kind = {(resource.group, resource.kind): resource for resource in builtin}

    def add(self, resource: Resource) -> None:
        self._by_kind[(resource.group, resource.kind)] = resource

    def remove(self, resource: Resource) -> None:
        self._by_kind.pop((resource.group, resource.kind), None)

    def of(self, api_version: str, kind: str) -> Resource | None:
        """Return the collection of a kind, for any version; None if the kind is unknown."""
        group = api_version.rpartition("/")[0]
        return self._by_kind.get((group, kind))

    def all(self) -> tuple[Resource, ...]:
        return tuple(self._by_kind.values())
