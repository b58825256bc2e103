"""Nodes.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.meta import condition
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, UNKNOWN, created, spec_of, status_of
from moorage_local.apiserver.kinds.common import own_spec
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import label_value_problems, qualified_name_problems

_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


def _prepare(obj: Obj) -> None:
    status = obj.setdefault("status", {})
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = dict.fromkeys(_NODE_INFO, "") | (status.get("nodeInfo") or {})


def _default(obj: Obj) -> None:
    status = obj.get("status")
    if status and "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])


def _validate(obj: Obj, errors: FieldErrors) -> None:
    seen: set[tuple[str, str]] = set()
    for at, taint in enumerate(own_spec(obj).get("taints") or ()):
        path = f"metadata.taints[{at}]"  # as the real server says
        key, effect = taint.get("key", ""), taint.get("effect", "")
        for problem in qualified_name_problems(key):
            errors.invalid(f"{path}.key", key, problem)
        for problem in label_value_problems(taint.get("value") or ""):
            errors.invalid(f"{path}.value", taint["value"], problem)
        if not effect:
            errors.required(f"{path}.effect")
        if (key, effect) in seen:
            errors.duplicate(path, taint)
        seen.add((key, effect))


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    status, info = status_of(obj), status_of(obj).get("nodeInfo") or {}
    ready = condition(obj, "Ready")
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if spec_of(obj).get("unschedulable"):
        words.append("SchedulingDisabled")
    roles = set()
    for key, value in (obj["metadata"].get("labels") or {}).items():
        if key.startswith("node-role.kubernetes.io/"):
            roles.add(key.partition("/")[2])
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    addresses = {address["type"]: address["address"] for address in reversed(status.get("addresses") or ())}
    kernel = info.get("kernelVersion") or UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return (
        obj["metadata"]["name"],
        ",".join(words),
        ",".join(sorted(roles - {""})) or NONE,
        created(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or UNKNOWN,
        kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    )


RULES = {
    ("", "nodes"): Rules(
        default=_default,
        prepare_create=_prepare,
        validate=_validate,
        keep_status_on_create=True,
        field_selectors=frozenset({"spec.unschedulable"}),
        cells=_cells,
    ),
}
