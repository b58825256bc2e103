"""NetworkPolicies.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, selector_text, spec_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules, spec_changed


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if "egress" in spec else ["Ingress"]
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], selector_text(spec_of(obj).get("podSelector")), created(obj, now)


RULES = {
    ("networking.k8s.io", "networkpolicies"): Rules(default=_default, generation=spec_changed, cells=_cells),
}
