"""What holds in a tenant's namespace at admission: its own nodes. Hosts: `moorage.decide.admission.hosts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import is_gpu
from moorage.decide.admission.review import Refusal
from moorage.model.names import TENANT_LABEL


def inject(pod: Mapping[str, Any], tenant: Mapping[str, Any] | None) -> tuple[Obj, ...]:
    """JSON patches that send a new pod without GPUs to the tenant's own nodes; none where it has none."""
    selector = _selector(tenant)
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


def judge_pod(
    pod: Mapping[str, Any],
    tenant: Mapping[str, Any] | None,
    tenants: Iterable[Mapping[str, Any]],
    *,
    old: Mapping[str, Any] | None = None,
) -> tuple[Refusal, ...]:
    """Refusals of a pod that would get onto another team's nodes. They matter where somebody has nodes.

    `old`: of an update, which may add tolerations and nothing else that matters here.
    """
    name = _name(tenant) if tenant is not None else ""
    if not any(_selector(tenant) for tenant in tenants if _name(tenant) != name):
        return ()
    spec, refusals = pod.get("spec") or {}, []
    before = {_fields(toleration) for toleration in ((old or {}).get("spec") or {}).get("tolerations") or ()}
    if spec.get("nodeName") and old is None:
        reason = "must be left to the scheduler where teams have nodes of their own"
        refusals.append(Refusal("spec.nodeName", repr(spec["nodeName"]), reason))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        whole = not toleration.get("key") and toleration.get("operator") == "Exists"
        other = toleration.get("key") == TENANT_LABEL and not _is_mine(toleration, name)
        reaches = (whole or other) and toleration.get("effect") in (None, "", "NoSchedule")
        if reaches and _fields(toleration) not in before:
            reason = "must not tolerate the taint of other teams' nodes"
            refusals.append(Refusal(f"spec.tolerations[{index}]", repr(toleration.get("value") or "*"), reason))
    return tuple(refusals)


def asks_for_gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod asks for GPUs, or claims devices: they may be GPUs."""
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


def _fields(toleration: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    return frozenset(toleration.items())


def _name(tenant: Mapping[str, Any]) -> str:
    return str(tenant["metadata"]["name"])


def _selector(tenant: Mapping[str, Any] | None) -> dict[str, str]:
    nodes = ((tenant or {}).get("spec") or {}).get("cpuNodes") or {}
    return dict(nodes.get("selector") or {})
