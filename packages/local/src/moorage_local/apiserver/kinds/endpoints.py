"""Endpoints and EndpointSlices.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, created, with_more
from moorage_local.apiserver.kinds.kind import Rules


def _default_endpoints(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _default_endpointslice(obj: Obj) -> None:
    obj.setdefault("endpoints", [])
    obj.setdefault("ports", [])
    for endpoint in obj["endpoints"]:
        endpoint.setdefault("conditions", {})
    for port in obj["ports"]:
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def _slice_changed(new: Obj, old: Obj) -> bool:
    return any(new.get(key) != old.get(key) for key in ("endpoints", "ports", "addressType"))


def _endpoints_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    addresses = []
    for subset in obj.get("subsets") or ():
        ports = subset.get("ports") or ()
        for address in subset.get("addresses") or ():
            addresses += [f"{address.get('ip')}:{port.get('port')}" for port in ports] or [str(address.get("ip"))]
    return obj["metadata"]["name"], with_more(addresses, NONE), created(obj, now)


def _endpointslice_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    ports = [str(port.get("port") or port.get("name") or "*") for port in obj.get("ports") or ()]
    addresses = [address for endpoint in obj.get("endpoints") or () for address in endpoint.get("addresses") or ()]
    name, kind = obj["metadata"]["name"], obj.get("addressType", "")
    return name, kind, with_more(ports), with_more(addresses), created(obj, now)


RULES = {
    ("", "endpoints"): Rules(default=_default_endpoints, create_on_update=True, cells=_endpoints_cells),
    ("discovery.k8s.io", "endpointslices"): Rules(
        default=_default_endpointslice, generation=_slice_changed, cells=_endpointslice_cells
    ),
}
