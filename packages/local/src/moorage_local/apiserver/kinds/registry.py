"""The rules of all built-in kinds, by their group and plural name."""

from __future__ import annotations

from collections.abc import Mapping

from moorage_local.apiserver.kinds import (
    certificatesigningrequest,
    configmap,
    controllerrevision,
    cronjob,
    customresourcedefinition,
    daemonset,
    deployment,
    endpoints,
    event,
    horizontalpodautoscaler,
    ingress,
    job,
    lease,
    namespace,
    networkpolicy,
    node,
    persistentvolume,
    persistentvolumeclaim,
    pod,
    poddisruptionbudget,
    podtemplate,
    priorityclass,
    quotas,
    rbac,
    replicaset,
    reviews,
    runtimeclass,
    service,
    serviceaccount,
    statefulset,
    storage,
    webhookconfiguration,
)
from moorage_local.apiserver.kinds.kind import Rules

_MODULES = (
    pod,
    podtemplate,
    deployment,
    replicaset,
    statefulset,
    daemonset,
    controllerrevision,
    job,
    cronjob,
    namespace,
    node,
    configmap,
    serviceaccount,
    service,
    endpoints,
    event,
    quotas,
    persistentvolumeclaim,
    persistentvolume,
    storage,
    priorityclass,
    poddisruptionbudget,
    lease,
    horizontalpodautoscaler,
    ingress,
    networkpolicy,
    rbac,
    webhookconfiguration,
    runtimeclass,
    certificatesigningrequest,
    reviews,
    customresourcedefinition,
)


def _all() -> dict[tuple[str, str], Rules]:
    out: dict[tuple[str, str], Rules] = {}
    for module in _MODULES:
        twice = out.keys() & module.RULES.keys()
        if twice:
            raise AssertionError(f"two modules have rules for {sorted(twice)}")
        out |= module.RULES
    return out


RULES: Mapping[tuple[str, str], Rules] = _all()
