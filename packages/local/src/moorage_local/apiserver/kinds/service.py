"""Services.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, created, labels_text, spec_of, status_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import name_problems


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    spec.setdefault("sessionAffinity", "None")
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10800}})
    else:
        spec.pop("sessionAffinityConfig", None)
    kind = spec.setdefault("type", "ClusterIP")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if port.get("targetPort") in (None, 0, "") and "port" in port:
            port["targetPort"] = port["port"]
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def _prepare(obj: Obj) -> None:
    obj["status"] = {"loadBalancer": {}}


def _prepare_update(new: Obj, old: Obj) -> None:
    spec, had = own_spec(new), own_spec(old)
    if spec.get("type") != "ExternalName" and had.get("type") != "ExternalName":
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(key) and key in had:
                spec[key] = had[key]
    had_ports = {(port.get("port"), port.get("protocol")): port for port in had.get("ports") or ()}
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        for port in spec.get("ports") or ():
            was = had_ports.get((port.get("port"), port.get("protocol"))) or {}
            if not port.get("nodePort") and was.get("nodePort"):
                port["nodePort"] = was["nodePort"]


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = own_spec(obj)
    ports = spec.get("ports") or ()
    headless = spec.get("clusterIP") == "None"
    if not ports and not headless and spec.get("type") != "ExternalName":
        errors.required("spec.ports")
    names: set[str] = set()
    for at, port in enumerate(ports):
        path = f"spec.ports[{at}]"
        name = port.get("name", "")
        if len(ports) > 1 and not name:
            errors.required(f"{path}.name")
        elif name:
            for problem in name_problems(name, "label"):
                errors.invalid(f"{path}.name", name, problem)
            if name in names:
                errors.duplicate(f"{path}.name", name)
            names.add(name)
        number = port.get("port", 0)
        if not 1 <= number <= 65535:
            errors.invalid(f"{path}.port", number, "must be between 1 and 65535, inclusive")
        target = port.get("targetPort")
        if isinstance(target, int) and not 1 <= target <= 65535:
            errors.invalid(f"{path}.targetPort", target, "must be between 1 and 65535, inclusive")
    if spec.get("type") == "ExternalName" and not spec.get("externalName"):
        errors.required("spec.externalName")


def _validate_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = own_spec(new), own_spec(old)
    if spec.get("type") != "ExternalName" and had.get("clusterIP") and spec.get("clusterIP") != had["clusterIP"]:
        errors.invalid("spec.clusterIPs[0]", [spec.get("clusterIP")], "may not change once set")


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = spec_of(obj)
    kind = spec.get("type", "")
    balanced = [
        point.get("ip") or point.get("hostname") or ""
        for point in (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
    ]
    outside = [*(balanced if kind == "LoadBalancer" else ()), *(spec.get("externalIPs") or ())]
    external = ",".join(outside) or ("<pending>" if kind == "LoadBalancer" else NONE)
    if kind == "ExternalName":
        external = spec.get("externalName", "")
    ports = ",".join(
        f"{port.get('port')}:{port['nodePort']}/{port.get('protocol')}"
        if port.get("nodePort")
        else f"{port.get('port')}/{port.get('protocol')}"
        for port in spec.get("ports") or ()
    )
    addresses = spec.get("clusterIPs") or ()
    return (
        obj["metadata"]["name"],
        kind,
        addresses[0] if addresses else NONE,
        external,
        ports or NONE,
        created(obj, now),
        labels_text(spec.get("selector")),
    )


RULES = {
    ("", "services"): Rules(
        default=_default,
        prepare_create=_prepare,
        prepare_update=_prepare_update,
        validate=_validate,
        validate_update=_validate_update,
        name_form="label",
        create_on_update=True,
        field_selectors=frozenset({"spec.clusterIP", "spec.type"}),
        cells=_cells,
    ),
}
