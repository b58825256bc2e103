"""The subresource `scale`: the number of replicas of all kinds that have one."""

from __future__ import annotations

from typing import Any

from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj, Resource
from moorage_kube.selectors import label_selector_of
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.kinds.builtin import BuiltinCodec
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.bodies import check_namespace, meta_of
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.subresources.bodies import read_as
from moorage_local.apiserver.types.fields import FieldErrors

SCALE = BuiltinCodec("io.k8s.api.autoscaling.v1.Scale", Resource("autoscaling", "v1", "scales", "Scale"))


def scale_of(kind: Kind, obj: Obj) -> Obj:
    """Return the `autoscaling/v1` Scale of an object."""
    paths = kind.scale_paths
    meta = obj["metadata"]
    replicas = _at(obj, paths.get("specReplicasPath", ".spec.replicas"))
    status: Obj = {"replicas": _at(obj, paths.get("statusReplicasPath", ".status.replicas")) or 0}
    if kind.custom:
        selector = _at(obj, paths["labelSelectorPath"]) if paths.get("labelSelectorPath") else None
        if selector:
            status["selector"] = selector
    elif (obj.get("spec") or {}).get("selector"):
        selector = obj["spec"]["selector"]
        if "matchLabels" not in selector and "matchExpressions" not in selector:
            selector = {"matchLabels": selector}
        status["selector"] = str(label_selector_of(selector))
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas is not None else {},
        "status": status,
    }


async def set_scale(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, scale: Any) -> Obj:
    """Set `spec.replicas` from a Scale."""
    scale = read_as(scale, SCALE)
    check_namespace(kind.resource, meta_of(scale), namespace)
    wanted = (scale.get("spec") or {}).get("replicas", 0)
    errors = FieldErrors()
    if wanted < 0:
        errors.invalid("spec.replicas", wanted, "must be greater than or equal to 0")
    errors.raise_if_any(SCALE.resource, name)
    version = (scale.get("metadata") or {}).get("resourceVersion")
    path = kind.scale_paths.get("specReplicasPath", ".spec.replicas")

    async def make(obj: Obj) -> Obj:
        inner = obj
        *parents, last = path.strip(".").split(".")
        for key in parents:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise BadRequest(f"{path} cannot be set: {key} of the object is not an object")
        inner[last] = wanted
        if version:
            obj["metadata"]["resourceVersion"] = version
        else:
            obj["metadata"].pop("resourceVersion", None)
        return obj

    return scale_of(kind, await core.pipeline.write(call, kind, name, namespace, make, decode=True))


def _at(obj: Obj, path: str) -> Any:
    value: Any = obj
    for key in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
