"""The subresource `namespaces/finalize`: the finalizers that block the deletion of a namespace."""

from __future__ import annotations

from typing import Any

from moorage_kube.resources import NAMESPACES, Obj
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.kinds.builtin import BuiltinCodec
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.subresources.bodies import read_as

NAMESPACE = BuiltinCodec("io.k8s.api.core.v1.Namespace", NAMESPACES)


async def finalize(core: Core, call: Call, kind: Kind, name: str, body: Any) -> Obj:
    """`namespaces/finalize`: replace `spec.finalizers`; the namespace is removed with its last finalizer."""
    body = read_as(body, NAMESPACE)
    wanted = (body.get("spec") or {}).get("finalizers") or []
    version = (body.get("metadata") or {}).get("resourceVersion")

    async def make(namespace: Obj) -> Obj:
        given = body.get("metadata") or {}
        for key in ("labels", "annotations"):  # they are replaced with the rest, as by the real server
            if given.get(key):
                namespace["metadata"][key] = given[key]
            else:
                namespace["metadata"].pop(key, None)
        kind.rules.default(namespace)
        spec = namespace.setdefault("spec", {})
        if wanted:
            spec["finalizers"] = wanted
        else:
            spec.pop("finalizers", None)
        if version:
            namespace["metadata"]["resourceVersion"] = version
        return namespace

    return await core.pipeline.write_raw(call, kind, name, None, make)
