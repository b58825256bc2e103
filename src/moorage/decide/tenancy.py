"""What holds in a tenant's namespace at admission: its own nodes, and its own hosts."""

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


def judge_ingress(
    ingress: Mapping[str, Any], tenant: Mapping[str, Any] | None, tenants: Iterable[Mapping[str, Any]]
) -> tuple[Refusal, ...]:
    """Refusals of hosts that are another team's, or not one's own where the team has a domain."""
    name, spec = _name(tenant) if tenant is not None else "", ingress.get("spec") or {}
    mine = _domain(tenant)
    others = {_domain(one): _name(one) for one in tenants if _name(one) != name and _domain(one)}
    hosts = [(f"spec.rules[{at}].host", one.get("host") or "") for at, one in enumerate(spec.get("rules") or ())]
    hosts += [
        (f"spec.tls[{at}].hosts[{n}]", host)
        for at, one in enumerate(spec.get("tls") or ())
        for n, host in enumerate(one.get("hosts") or ())
    ]
    if spec.get("defaultBackend") and (mine or others):
        hosts.append(("spec.defaultBackend", ""))
    found = []
    for where, host in hosts:
        owner = next((one for domain, one in others.items() if _is_below(host, domain)), None)
        if owner is not None and not (mine and _is_below(host, mine) and len(mine) > len(_longest(host, others))):
            found.append(Refusal(where, repr(host), f"is a host of tenant {owner}"))
        elif mine and not _is_below(host, mine):
            found.append(Refusal(where, repr(host), f"must be {mine} or below it"))
        elif not host and others:
            found.append(Refusal(where, repr(host), "must name a host: without one it takes other teams' too"))
    wanted = ((tenant or {}).get("spec") or {}).get("ingress", {}).get("className")
    chosen = spec.get("ingressClassName")
    if wanted and chosen != wanted:
        found.append(Refusal("spec.ingressClassName", repr(chosen), f"must be {wanted}"))
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


def _longest(host: str, others: Mapping[str, str]) -> str:
    return max((one for one in others if _is_below(host, one)), key=len, default="")


def _is_below(host: str, domain: str) -> bool:
    """`*.example.org` is below example.org; so is every name that ends so."""
    bare = host.lower().rstrip(".")
    return bare == domain or bare.endswith(f".{domain}")


def _is_mine(toleration: Mapping[str, Any], name: str) -> bool:
    return (
        bool(name)
        and toleration.get("key") == TENANT_LABEL
        and toleration.get("operator", "Equal") == "Equal"
        and toleration.get("value") == name
    )


def _name(tenant: Mapping[str, Any]) -> str:
    return str(tenant["metadata"]["name"])


def _domain(tenant: Mapping[str, Any] | None) -> str:
    ingress = ((tenant or {}).get("spec") or {}).get("ingress") or {}
    return str(ingress.get("domain") or "").lower().rstrip(".")


def _selector(tenant: Mapping[str, Any] | None) -> dict[str, str]:
    nodes = ((tenant or {}).get("spec") or {}).get("cpuNodes") or {}
    return dict(nodes.get("selector") or {})
