"""Answer POST, PUT, PATCH and DELETE on resources."""

from __future__ import annotations

from typing import Any

from moorage_kube.api import CONTENT_TYPES, PatchKind
from moorage_kube.errors import BadRequest, UnsupportedMediaType
from moorage_kube.resources import Obj
from moorage_local.apiserver.http.target import VERBS, Target
from moorage_local.apiserver.operations import Operations
from moorage_local.apiserver.pipeline.calls import Call, DeleteOptions, ListOptions
from moorage_local.apiserver.pipeline.refusals import not_allowed
from moorage_local.apiserver.wire import protobuf
from moorage_local.apiserver.wire.answers import Answer, formatted
from moorage_local.apiserver.wire.options import delete_options_of
from moorage_local.apiserver.wire.requests import YAML_TYPES, Request, read_json, read_yaml

ANSWERED_WHOLE = frozenset(
    {
        *(("", name) for name in ("persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates")),
        *(("", name) for name in ("resourcequotas", "serviceaccounts", "services")),
        ("storage.k8s.io", "storageclasses"),
    }
)
"""Collections whose deletion is answered with the object, not with a status."""
_PATCH_KINDS: dict[str, PatchKind] = {text: kind for kind, text in CONTENT_TYPES.items()}


async def write(server: Operations, request: Request, call: Call, target: Target) -> Answer:
    """Answer a request whose method changes something."""
    verb = VERBS.get(request.method)
    if verb is None:
        raise not_allowed()
    if verb == "delete" and target.name is None:
        verb = "deletecollection"
    # before a byte of the body is read, and by the URL alone
    server.pipeline.authorise(call, verb, target.kind, target.namespace, target.name or "", target.subresource)
    if target.kind.resource.namespaced and target.namespace is None:
        raise not_allowed()
    match request.method:
        case "POST":
            return await _post(server, request, call, target)
        case "PUT" if target.name is not None:
            return await _put(server, request, call, target, target.name)
        case "PATCH" if target.name is not None:
            return await _patch(server, request, call, target, target.name)
        case "DELETE":
            options = await _delete_options(request, call)
            if target.name is None:
                return await _delete_collection(server, request, call, target, options)
            return await _delete(server, request, call, target, target.name, options)
    raise not_allowed()


async def _post(server: Operations, request: Request, call: Call, target: Target) -> Answer:
    kind, name = target.kind, target.name
    if name is None:
        obj = await server.create(call, kind, await request.obj(), target.namespace)
        return formatted(request, server.clock, kind, obj, None, status=201)
    if target.subresource is None:
        raise not_allowed()
    body = await request.obj()
    return Answer(
        await server.create_subresource(call, kind, name, target.namespace, target.subresource, body), 201
    )


async def _put(server: Operations, request: Request, call: Call, target: Target, name: str) -> Answer:
    obj = await server.update(call, target.kind, await request.obj(), name, target.namespace, target.subresource)
    if target.subresource:
        return Answer(obj)
    return formatted(request, server.clock, target.kind, obj, None)


async def _patch(server: Operations, request: Request, call: Call, target: Target, name: str) -> Answer:
    patch_kind = _PATCH_KINDS.get(request.content_type)
    if patch_kind is None:
        raise UnsupportedMediaType("415: Unsupported Media Type", details={})
    data = await request.body()
    body = await read_yaml(data) if patch_kind == "apply" else read_json(data)
    creates = (
        patch_kind == "apply" and not target.subresource and not server.exists(target.kind, name, target.namespace)
    )
    obj = await server.patch(
        call,
        target.kind,
        name,
        target.namespace,
        body,
        patch_kind=patch_kind,
        subresource=target.subresource,
    )
    return formatted(request, server.clock, target.kind, obj, None, status=201 if creates else 200)


async def _delete(
    server: Operations, request: Request, call: Call, target: Target, name: str, options: DeleteOptions
) -> Answer:
    if target.subresource:
        raise not_allowed()
    resource = target.kind.resource
    obj, gone = await server.pipeline.delete(call, target.kind, name, target.namespace, options)
    if not gone or (resource.group, resource.plural) in ANSWERED_WHOLE:
        return formatted(request, server.clock, target.kind, obj, None)
    details = {"name": name, "kind": resource.plural, "uid": obj["metadata"]["uid"]}
    if resource.group:
        details["group"] = resource.group
    return Answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})


async def _delete_collection(
    server: Operations, request: Request, call: Call, target: Target, options: DeleteOptions
) -> Answer:
    selection = ListOptions(
        label_selector=request.query.get("labelSelector") or None,
        field_selector=request.query.get("fieldSelector") or None,
        limit=request.number("limit"),
        cont=request.query.get("continue") or None,
    )
    removed = await server.pipeline.delete_collection(call, target.kind, target.namespace, options, selection)
    meta: Obj = {"resourceVersion": str(server.storage.revision)}
    return formatted(request, server.clock, target.kind, removed, meta)


async def _delete_options(request: Request, call: Call) -> DeleteOptions:
    data = await request.body()
    body: Any = {}
    if data.strip():
        kind = request.content_type
        if kind and kind not in ("application/json", protobuf.CONTENT_TYPE, *YAML_TYPES):
            raise UnsupportedMediaType("the body of the request was in an unknown format")
        if kind in YAML_TYPES:
            body = await read_yaml(data)
        else:
            body = protobuf.decode(data) if kind == protobuf.CONTENT_TYPE else read_json(data)
        if not isinstance(body, dict):
            raise BadRequest("DeleteOptions must be an object")
    if body.get("dryRun"):
        if body["dryRun"] != ["All"]:
            raise BadRequest('dryRun: Unsupported value: supported values: "All"')
        call.dry_run = True
    return delete_options_of(body, request.query)
