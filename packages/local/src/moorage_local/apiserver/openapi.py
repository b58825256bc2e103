"""`/openapi/v2` and `/openapi/v3`: the types in OpenAPI form, for `kubectl apply` and `kubectl explain`.

Documents have no descriptions for the built-in types, because `builtin.json` has none.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.builtin import BuiltinCodec
from moorage_local.apiserver.kinds.kind import Kind, Kinds
from moorage_local.apiserver.types import schema

_DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
_LIST_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
_SCALARS: dict[str, Obj] = {
    "s": {"type": "string"},
    "i": {"type": "integer", "format": "int64"},
    "j": {"type": "integer", "format": "int32"},
    "b": {"type": "boolean"},
    "n": {"type": "number", "format": "double"},
    "y": {"type": "string", "format": "byte"},
    "a": {"type": "object"},
}
_NAMED: dict[str, tuple[str, Obj, Obj]] = {  # code → name, schema in v3, schema in v2
    "q": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
        {"type": "string"},
    ),
    "t": (
        "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "date-time"},
    ),
    "u": (
        "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "date-time"},
    ),
    "x": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"},
        {"type": "string", "format": "int-or-string"},
    ),
}


def v2() -> Obj:
    """Return a Swagger 2.0 document with the definitions of all built-in types, without paths."""
    definitions = {name: _struct(name, "#/definitions/", 2) for name in schema.type_names()}
    definitions |= {name: two for name, _, two in _NAMED.values()}
    return {"swagger": "2.0", "info": _info(), "paths": {}, "definitions": definitions}


def v2_protobuf() -> bytes:
    """Return that document in protobuf, without definitions: kubectl then uses its built-in merge rules.

    kubectl reads it to learn whether the server knows a kind. It does not ask for JSON instead.
    https://github.com/google/gnostic/blob/main/openapiv2/OpenAPIv2.proto
    """

    def text(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value  # shorter than 128 bytes

    info = _info()
    return text(1, b"2.0") + text(2, text(1, info["title"].encode()) + text(2, info["version"].encode()))


def v3_index(kinds: Kinds) -> Obj:
    paths = {}
    for group, versions in kinds.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(
                f"{schema.builtin()['kubernetes']}/{path}/{kinds.edition}".encode()
            ).hexdigest()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest[:32].upper()}"}
    return {"paths": paths}


def v3(kinds: Kinds, path: str) -> Obj | None:
    """Return the document of one group and version; None if it is not served."""
    parts = path.split("/")
    if len(parts) == 2 and parts[0] == "api":
        group, version = "", parts[1]
    elif len(parts) == 3 and parts[0] == "apis":
        group, version = parts[1], parts[2]
    else:
        return None
    served = [kind for kind in kinds.all() if (kind.resource.group, kind.resource.version) == (group, version)]
    if not served:
        return None
    paths: Obj = {}
    schemas: dict[str, Obj] = {}
    for kind in served:
        name = _schema_name(kind)
        if kind.custom:
            schemas[name] = _custom_schema(kind)
            _collect("#" + schema.OBJECT_META, schemas)
        else:
            _collect("#" + name, schemas)
        schemas[f"{name}List"] = _list_schema(kind, name)
        paths |= _paths(kind, name)
    _collect("#" + _DELETE_OPTIONS, schemas)
    _collect("#" + _LIST_META, schemas)
    return {"openapi": "3.0.0", "info": _info(), "paths": paths, "components": {"schemas": schemas}}


def _info() -> Obj:
    return {"title": "Kubernetes", "version": schema.builtin()["kubernetes"]}


def _schema_name(kind: Kind) -> str:
    if isinstance(kind.codec, BuiltinCodec):
        return kind.codec.type_name
    where = kind.resource
    return ".".join([*reversed(where.group.split(".")), where.version, where.kind])


def _gvk(kind: Kind, suffix: str = "") -> Obj:
    where = kind.resource
    return {"group": where.group, "version": where.version, "kind": where.kind + suffix}


def _custom_schema(kind: Kind) -> Obj:
    body = {**(kind.schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True})}
    properties = {**(body.get("properties") or {})}
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"allOf": [_reference(schema.OBJECT_META, "#/components/schemas/")], "default": {}}
    return body | {"properties": properties, "x-kubernetes-group-version-kind": [_gvk(kind)]}


def _list_schema(kind: Kind, name: str) -> Obj:
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": _reference(_LIST_META, "#/components/schemas/"),
            "items": {"type": "array", "items": _reference(name, "#/components/schemas/")},
        },
        "x-kubernetes-group-version-kind": [_gvk(kind, "List")],
    }


def _collect(code: Any, schemas: dict[str, Obj]) -> None:
    """Add a type and all types that it refers to."""
    todo = [code]
    while todo:
        type_code = todo.pop()
        while isinstance(type_code, list) and type_code[0] in "lmo":
            type_code = type_code[1]
        if not isinstance(type_code, str):
            continue
        if type_code in _NAMED:
            name, three, _ = _NAMED[type_code]
            schemas[name] = three
        elif type_code.startswith("#") and type_code[1:] not in schemas:
            schemas[type_code[1:]] = _struct(type_code[1:], "#/components/schemas/", 3)
            todo += schema.builtin()["types"][type_code[1:]].get("f", {}).values()


@lru_cache(maxsize=2048)
def _struct(name: str, base: str, version: int) -> Obj:
    entry = schema.builtin()["types"][name]
    if entry.get("any"):
        return {"type": "object"} if "JSON" not in name else {}
    out: Obj = {
        "type": "object",
        "properties": {field: _property(code, base, version) for field, code in entry["f"].items()},
    }
    if entry.get("r"):
        out["required"] = entry["r"]
    if entry.get("k"):
        out["x-kubernetes-group-version-kind"] = [
            {"group": group, "version": version, "kind": kind} for group, version, kind in entry["k"]
        ]
    return out


def _reference(name: str, base: str) -> Obj:
    return {"$ref": base + name}


def _property(code: Any, base: str, version: int) -> Obj:
    if isinstance(code, str):
        if code in _SCALARS:
            return _SCALARS[code]
        reference = _reference(_NAMED[code][0] if code in _NAMED else code[1:], base)
        return reference if version == 2 else {"allOf": [reference]}
    match code[0]:
        case "e":
            return {"type": "string", "enum": code[1]}
        case "m":
            return {"type": "object", "additionalProperties": _property(code[1], base, version)}
        case "o":
            return _property(code[1], base, version) | {"x-kubernetes-patch-strategy": code[2]["how"]}
    out: Obj = {"type": "array", "items": _property(code[1], base, version)}
    for short, long in (
        ("key", "x-kubernetes-patch-merge-key"),
        ("how", "x-kubernetes-patch-strategy"),
        ("type", "x-kubernetes-list-type"),
        ("keys", "x-kubernetes-list-map-keys"),
    ):
        if short in code[2]:
            out[long] = code[2][short]
    return out


def _paths(kind: Kind, name: str) -> Obj:
    where = kind.resource
    base = f"/apis/{where.group}/{where.version}" if where.group else f"/api/{where.version}"
    scope = "/namespaces/{namespace}" if where.namespaced else ""
    collection, item = f"{base}{scope}/{where.plural}", f"{base}{scope}/{where.plural}/{{name}}"
    # all operations of a kind have the same schema as body and answer
    body = {"application/json": {"schema": _reference(name, "#/components/schemas/")}}
    answer = {"200": {"description": "OK", "content": body}}
    write = [_query("dryRun"), _query("fieldManager"), _query("fieldValidation")]

    def operation(action: str, parameters: list[Obj], request: Obj | None = None) -> Obj:
        out: Obj = {
            "operationId": f"{action}{where.group.replace('.', '')}{where.version}{where.kind}",
            "parameters": parameters,
            "responses": answer,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(kind),
        }
        if request is not None:
            out["requestBody"] = {"content": request, "required": True}
        return out

    # only built-in kinds have merge keys for strategic merge patches
    patches = {
        name: {"schema": {"type": "object"}}
        for name in ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
    }
    if kind.codec.patch_type is not None:
        patches["application/strategic-merge-patch+json"] = {"schema": {"type": "object"}}
    # list only the verbs that the kind has
    at_collection: Obj = {}
    at_item: Obj = {}
    if "list" in kind.verbs:
        at_collection["get"] = operation(
            "list", [_query("labelSelector"), _query("fieldSelector"), _query("limit")]
        )
    if "create" in kind.verbs:
        at_collection["post"] = operation("post", write, body)
    if "get" in kind.verbs:
        at_item["get"] = operation("get", [])
    if "update" in kind.verbs:
        at_item["put"] = operation("put", write, body)
    if "patch" in kind.verbs:
        at_item["patch"] = operation("patch", [*write, _query("force")], patches)
    if "delete" in kind.verbs:
        at_item["delete"] = operation("delete", [_query("dryRun")])
    return {collection: at_collection, item: at_item} if at_item else {collection: at_collection}


def _query(name: str) -> Obj:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
