"""Writes that the operator may not do although RBAC allows them: RBAC cannot say "in namespaces of tenants".

With a stolen token of the operator a thief could otherwise bind `moorage:tenant-admin` in `kube-system` and read
the Secrets there, run a pod there as any ServiceAccount, or remove the Pod Security level of a namespace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from moorage.decide.admission.fields import at, mapping, sequence
from moorage.decide.admission.review import Refusal
from moorage.decide.admission.templates import WORKLOADS
from moorage.model.names import GUARD_LABEL, POD_SECURITY, SYSTEM_NAMESPACE, TENANT_LABEL
from moorage.model.people import PEOPLE_NAMESPACE
from moorage_kube.meta import labels_of
from moorage_kube.resources import NAMESPACES, Obj

# (group, plurals) of objects that the operator creates in namespaces of tenants only
OF_TENANTS = (
    ("rbac.authorization.k8s.io", ("rolebindings",)),
    ("networking.k8s.io", ("networkpolicies",)),
    ("", ("resourcequotas",)),
)
# namespaces where it runs reservations at most
PLATFORM = (SYSTEM_NAMESPACE, PEOPLE_NAMESPACE, "kube-system", "kube-public", "kube-node-lease")
PLATFORM_WORKLOADS = (
    ("", ("pods",)),
    ("batch", ("jobs",)),
    ("apps", ("deployments", "replicasets", "statefulsets")),
)
_OF_NEW_NAMESPACES = {GUARD_LABEL, TENANT_LABEL, POD_SECURITY, "kubernetes.io/metadata.name"}
_RUNS = ("containers", "initContainers", "ephemeralContainers", "volumes", "serviceAccountName")


def judge_operator(
    kind: str, obj: Obj, old: Obj | None, *, namespace: str, tenants: Collection[str]
) -> tuple[Refusal, ...]:
    """Refusals of writes by the operator outside its rights.

    `tenants`: the namespaces that a Tenant names. Workloads are checked in the namespaces of PLATFORM only.
    """
    if kind in WORKLOADS:
        return _judge_workload(kind, obj, old, namespace)
    is_namespace = kind == NAMESPACES.kind
    field, name = (
        ("metadata.name", obj["metadata"].get("name")) if is_namespace else ("metadata.namespace", namespace)
    )
    if name not in tenants:
        return (Refusal(field, repr(name), "the operator writes this for namespaces of Tenants only"),)
    if not is_namespace:
        return ()
    before, after = labels_of(old) if old else {}, labels_of(obj)
    allowed = {GUARD_LABEL, TENANT_LABEL} if old else _OF_NEW_NAMESPACES
    return tuple(
        Refusal(f"metadata.labels[{key}]", repr(after.get(key)), "the operator may not set this label")
        for key in sorted({*before, *after} - allowed)
        if before.get(key) != after.get(key)
    )


def _judge_workload(kind: str, obj: Obj, old: Obj | None, namespace: str) -> tuple[Refusal, ...]:
    if namespace not in PLATFORM:
        return ()
    path = (*WORKLOADS[kind], "spec")
    spec = mapping(at(obj, path))
    if old is not None:
        if all(spec.get(key) == mapping(at(old, path)).get(key) for key in _RUNS):
            return ()
    elif kind == "Pod" and namespace == SYSTEM_NAMESPACE and _has_no_rights(spec):
        return ()
    message = "the operator runs reservations only there: no volumes, Secrets, or ServiceAccounts"
    return (Refusal("metadata.namespace", repr(namespace), message),)


def _has_no_rights(spec: Mapping[str, Any]) -> bool:
    """Whether a pod uses nothing of its namespace: no token, volume, Secret or ConfigMap."""
    containers = [
        mapping(each) for table in ("containers", "initContainers") for each in sequence(spec.get(table))
    ]
    return (
        spec.get("automountServiceAccountToken") is False
        and spec.get("serviceAccountName", "default") in ("", "default")
        and not spec.get("volumes")
        and not any(each.get("envFrom") or each.get("env") for each in containers)
    )
