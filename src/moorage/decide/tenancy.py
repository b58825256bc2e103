"""What holds in a tenant's namespace at admission: its own nodes. Hosts: `moorage.decide.hosts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import is_gpu
from moorage.decide.guardrails import Refusal
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
    if not any(_is_mine(one, _name(tenant)) for one in tolerated):
        patches.append({"op": "add", "path": "/spec/tolerations", "value": [*tolerated, mine]})
    return tuple(patches)


def judge_pod(
    pod: Mapping[str, Any], tenant: Mapping[str, Any] | None, tenants: Iterable[Mapping[str, Any]]
) -> tuple[Refusal, ...]:
    """Refusals of a new pod that would get onto another team's nodes. They matter where somebody has nodes."""
    name = _name(tenant) if tenant is not None else ""
    if not any(_selector(one) for one in tenants if _name(one) != name):
        return ()
    spec, found = pod.get("spec") or {}, []
    if spec.get("nodeName"):
        said = "must be left to the scheduler where teams have nodes of their own"
        found.append(Refusal("spec.nodeName", repr(spec["nodeName"]), said))
    for index, one in enumerate(spec.get("tolerations") or ()):
        whole = not one.get("key") and one.get("operator") == "Exists"
        other = one.get("key") == TENANT_LABEL and not _is_mine(one, name)
        if (whole or other) and one.get("effect") in (None, "", "NoSchedule"):
            said = "tolerates the taint of other teams' nodes"
            found.append(Refusal(f"spec.tolerations[{index}]", repr(one.get("value") or "*"), said))
    return tuple(found)


def asks_for_gpus(pod: Mapping[str, Any]) -> bool:
    spec = pod.get("spec") or {}
    return any(
        is_gpu(name)
        for table in ("initContainers", "containers")
        for one in spec.get(table) or ()
        for amounts in (one.get("resources") or {}).values()
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


def _selector(tenant: Mapping[str, Any] | None) -> dict[str, str]:
    nodes = ((tenant or {}).get("spec") or {}).get("cpuNodes") or {}
    return dict(nodes.get("selector") or {})
