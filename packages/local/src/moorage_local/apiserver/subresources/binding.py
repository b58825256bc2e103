"""The subresource `pods/binding`: bind a pod to a node."""

from __future__ import annotations

from typing import Any

from moorage_kube.clock import rfc3339
from moorage_kube.errors import BadRequest, Conflict
from moorage_kube.meta import with_condition
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.kinds.builtin import BuiltinCodec
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.bodies import check_namespace, meta_of
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.subresources.bodies import SUCCESS, read_named

BINDING = BuiltinCodec("io.k8s.api.core.v1.Binding", Resource("", "v1", "bindings", "Binding"))


async def bind(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, body: Any) -> Obj:
    """Bind a pod to a node. Raises Conflict if the pod is already bound, gated or being deleted."""
    binding = read_named(body, name, BINDING)
    check_namespace(kind.resource, meta_of(binding), namespace)
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise BadRequest("target.name: Required value")
    meta = binding.get("metadata") or {}
    now = rfc3339(core.clock.now())

    async def make(pod: Obj) -> Obj:
        why = ""
        if meta.get("uid") and meta["uid"] != pod["metadata"]["uid"]:
            uid = pod["metadata"]["uid"]
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {uid}"
        elif pod["metadata"].get("deletionTimestamp"):
            why = f"pod {name} is being deleted, cannot be assigned to a host"
        elif pod["spec"].get("nodeName"):
            why = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        elif pod["spec"].get("schedulingGates"):
            why = f"pod {name} has non-empty .spec.schedulingGates"
        if why:
            raise Conflict(
                f'Operation cannot be fulfilled on pods/binding "{name}": {why}',
                details={"name": name, "kind": "pods/binding"},
            )
        pod["spec"]["nodeName"] = node
        for key in ("annotations", "labels"):
            if meta.get(key):
                pod["metadata"][key] = {**(pod["metadata"].get(key) or {}), **meta[key]}
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        status["conditions"] = with_condition_true(status.get("conditions"), "PodScheduled", now)
        return pod

    await core.pipeline.write_raw(call, kind, name, namespace, make)
    return dict(SUCCESS)


def with_condition_true(conditions: Any, kind: str, now: str, *, reason: str = "", message: str = "") -> list[Obj]:
    """Return the conditions with one set to True; an empty reason or message is left out, as in Go."""
    made = with_condition(list(conditions or ()), kind, "True", now=now, reason=reason, message=message)
    return [
        {key: value for key, value in condition.items() if value != "" or key == "status"} for condition in made
    ]
