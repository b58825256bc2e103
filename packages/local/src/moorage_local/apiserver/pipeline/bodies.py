"""Check the apiVersion, kind, name and namespace in the body of a request."""

from __future__ import annotations

from typing import Any

from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.kinds.kind import Kind, Kinds
from moorage_local.apiserver.wire import patch

_SCHEME = "pkg/api/legacyscheme/scheme.go:30"  # the name of the real server's table of built-in kinds


def meta_of(body: Obj) -> Obj:
    """Return the metadata of a body, empty if it has none. Raises BadRequest if the metadata is not an object."""
    meta = body.get("metadata")
    if meta is None:
        return {}
    if not isinstance(meta, dict):
        raise BadRequest("metadata must be an object")
    for key in ("name", "namespace", "generateName", "resourceVersion", "uid"):
        if not isinstance(meta.get(key), str | None):
            raise BadRequest(
                f"json: cannot unmarshal {patch.json_kind(meta[key])} into metadata.{key} of type string"
            )
    return meta


def check_namespace(resource: Resource, meta: Obj, namespace: str | None) -> None:
    """Raise BadRequest if the namespace in the body is not that of the URL: only the URL's was authorized."""
    given = meta.get("namespace")
    if resource.namespaced and given and given != (namespace or ""):
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def shaped(kinds: Kinds, kind: Kind, obj: Any, namespace: str | None) -> Obj:
    """Check apiVersion, kind and namespace of a body; returns a copy of its two upper levels."""
    where = kind.resource
    if not isinstance(obj, dict):
        raise BadRequest(f"the object provided is unrecognized (must be of type {where.kind})")
    version, name = obj.get("apiVersion") or where.api_version, obj.get("kind") or where.kind
    if version != where.api_version:
        if kind.custom:
            raise BadRequest(
                f"the API version in the data ({version}) does not match the expected API"
                f" version ({where.api_version})"
            )
        raise _unhandled(kinds, name, str(version), where)
    if name != where.kind:
        raise _unhandled(kinds, name, str(version), where)
    meta = {**meta_of(obj)}
    check_namespace(where, meta, namespace)
    if where.namespaced:
        if not namespace:
            raise BadRequest("an empty namespace may not be set during creation")
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)  # as the real server
    return {**obj, "apiVersion": version, "kind": name, "metadata": meta}


def _unhandled(kinds: Kinds, name: Any, version: str, where: Resource) -> BadRequest:
    """Return the error for a body with another kind or version."""
    group, _, short = version.rpartition("/")
    known = any(
        (other.resource.group, other.resource.version, other.resource.kind) == (group, short, name)
        for other in kinds.all()
    )
    internal = where.group.split(".")[0] or "core"
    why = (
        f"converting ({short}.{name}) to ({internal}.{where.kind}): unknown conversion"
        if known
        else f'no kind "{name}" is registered for version "{version}" in scheme "{_SCHEME}"'
    )
    return BadRequest(f'{name} in version "{short}" cannot be handled as a {where.kind}: {why}')
