"""A tenant's pods are sent to its own nodes. `moorage.decide.admission.guardednodes` refuses other pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.model.names import TENANT_LABEL
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu


def inject(pod: Mapping[str, Any], tenant: Mapping[str, Any] | None) -> tuple[Obj, ...]:
    """JSON patches that send a new pod without GPUs to the tenant's dedicated nodes.

    Empty if the tenant has none.
    """
    selector = own_selector(tenant)
    if not selector or tenant is None or asks_for_gpus(pod):
        return ()
    spec = pod.get("spec") or {}
    patches: list[Obj] = []
    had = spec.get("nodeSelector") or {}
    if had | selector != had:
        patches.append({"op": "add", "path": "/spec/nodeSelector", "value": had | selector})
    tolerated = spec.get("tolerations") or []
    mine = {"key": TENANT_LABEL, "operator": "Equal", "value": _name(tenant), "effect": "NoSchedule"}
    if not any(_is_mine(toleration, _name(tenant)) for toleration in tolerated):
        patches.append({"op": "add", "path": "/spec/tolerations", "value": [*tolerated, mine]})
    return tuple(patches)


def asks_for_gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod requests GPUs, or claims devices, which may be GPUs."""
    spec = pod.get("spec") or {}
    return bool(spec.get("resourceClaims")) or any(
        is_gpu(name)
        for table in ("initContainers", "containers")
        for entry in spec.get(table) or ()
        for amounts in (entry.get("resources") or {}).values()
        if isinstance(amounts, Mapping)
        for name in amounts
    )


def _is_mine(toleration: Mapping[str, Any], name: str) -> bool:
    return (
        bool(name)
        and toleration.get("key") == TENANT_LABEL
        and toleration.get("operator", "Equal") == "Equal"
        and toleration.get("value") == name
    )


def _name(tenant: Mapping[str, Any]) -> str:
    return str(tenant["metadata"]["name"])


def own_selector(tenant: Mapping[str, Any] | None) -> dict[str, str]:
    """The labels of the tenant's dedicated nodes; empty if it has none."""
    nodes = ((tenant or {}).get("spec") or {}).get("cpuNodes") or {}
    return dict(nodes.get("selector") or {})
