"""Custom resources: from a stored CustomResourceDefinition to served kinds.

A definition is served as soon as it is stored. A deleted definition takes no new objects, deletes its objects,
and is removed with the last one. Conversion is `None` only: all versions are the same object with another
apiVersion.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from moorage_kube.errors import ApiError, NotFound, StorageError
from moorage_kube.resources import CRDS, Obj, Resource
from moorage_local.apiserver.auth.users import service_user
from moorage_local.apiserver.kinds.cells import age
from moorage_local.apiserver.kinds.customresourcedefinition import CLEANUP
from moorage_local.apiserver.kinds.kind import Column, Kind, Rules, Subresource
from moorage_local.apiserver.pipeline.calls import Call, DeleteOptions
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.types import jsonpath
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.structural import StructuralCodec
from moorage_local.apiserver.wire.patch import go_text
from moorage_local.storage.contract import WatchClosed

log = logging.getLogger(__name__)
REPLICAS_MAX = 2**31 - 1
VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_NAME_COLUMN = Column(name="Name", type="string", format="name")
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def kinds_of(obj: Obj) -> list[Kind]:
    """Return a kind for each served version of a definition."""
    spec = obj["spec"]
    terminating = bool(obj["metadata"].get("deletionTimestamp"))
    storage = next(
        (version["name"] for version in spec["versions"] if version.get("storage")), spec["versions"][0]["name"]
    )
    return [
        _kind(spec, version, storage, terminating) for version in spec["versions"] if version.get("served", True)
    ]


def _kind(spec: Obj, version: Obj, storage_version: str, terminating: bool) -> Kind:
    # names, scope and schema
    names, group = spec["names"], spec["group"]
    namespaced = spec.get("scope") == "Namespaced"
    resource = Resource(group, version["name"], names["plural"], names["kind"], namespaced)
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {"type": "object"}
    preserve = (
        bool(spec.get("preserveUnknownFields")) or schema.get("x-kubernetes-preserve-unknown-fields") is True
    )
    # subresources
    given = version.get("subresources") or {}
    has_status = "status" in given
    scale = given.get("scale")
    read_write = ("get", "patch", "update")
    subresources = {}
    if has_status:
        subresources["status"] = Subresource(name="status", kind=names["kind"], verbs=read_write)
    if scale is not None:
        subresources["scale"] = Subresource(
            name="scale", kind="Scale", verbs=read_write, group="autoscaling", version="v1"
        )
    # columns, selectable fields and the warning
    columns = version.get("additionalPrinterColumns") or [_AGE]
    stored_version = f"{group}/{storage_version}"
    selectable = frozenset(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ())
    deprecated = None
    if version.get("deprecated"):
        deprecated = version.get("deprecationWarning") or f"{resource.api_version} {resource.kind} is deprecated"
    return Kind(
        resource=resource,
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        verbs=tuple(verb for verb in VERBS if not (terminating and verb == "create")),
        codec=StructuralCodec(schema, preserve=preserve, kind=names["kind"], version=version["name"]),
        rules=Rules(
            generation=_changed_but_status if has_status else _changed,
            unconditional_update=False,
            qualified_finalizers=False,
            keep_status_on_create=not has_status,
            field_selectors=selectable,
            validate=_scale_checked(scale) if scale is not None else _always_valid,
            cells=_cells(columns),
            to_storage=lambda obj: {**obj, "apiVersion": stored_version},
            stored_otherwise=stored_version != resource.api_version,
        ),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=subresources,
        columns=(_NAME_COLUMN, *(_column(column) for column in columns)),
        prefix=f"{group}/{names['plural']}/",
        custom=True,
        schema=schema,
        scale_paths=dict(scale or {}),
        deprecated=deprecated,
    )


def _always_valid(_: Obj, __: FieldErrors) -> None:
    return None


def _scale_checked(paths: Mapping[str, str]) -> Callable[[Obj, FieldErrors], None]:
    """Check the replicas that a scale subresource reads: a number from 0 to 2³¹ - 1."""
    path = paths.get("specReplicasPath", "")
    keys = path.lstrip(".").split(".")

    def validate(obj: Obj, errors: FieldErrors) -> None:
        value: Any = obj
        for at, key in enumerate(keys):
            if value is None:
                return
            if not isinstance(value, dict):
                errors.invalid(path, 0, _accessor_error(keys[: at + 1], value, "map[string]interface{}"))
                return
            if key not in value:
                return
            value = value[key]
        if type(value) is not int:
            errors.invalid(path, 0, _accessor_error(keys, value, "int64"))
        elif value < 0:
            errors.invalid(path, value, "should be a non-negative integer")
        elif value > REPLICAS_MAX:
            errors.invalid(path, value, f"should be less than or equal to {REPLICAS_MAX}")

    return validate


def _accessor_error(keys: Sequence[str], value: Any, wanted: str) -> str:
    kinds = {str: "string", bool: "bool", float: "float64", int: "int64", list: "[]interface {}"}
    kind = kinds.get(type(value), "<nil>" if value is None else "map[string]interface {}")
    return f".{'.'.join(keys)} accessor error: {go_text(value)} is of the type {kind}, expected {wanted}"


def _changed(new: Obj, old: Obj) -> bool:
    return {**new, "metadata": None} != {**old, "metadata": None}


def _changed_but_status(new: Obj, old: Obj) -> bool:
    return {**new, "metadata": None, "status": None} != {**old, "metadata": None, "status": None}


def _column(column: Mapping[str, Any]) -> Column:
    return Column(
        name=column["name"],
        type=column["type"],
        format=column.get("format", ""),
        description=column.get("description")
        or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
        priority=column.get("priority", 0),
    )


def _cells(columns: Sequence[Mapping[str, Any]]) -> Callable[[Obj, datetime], Sequence[Any]]:
    paths = [(column["jsonPath"], column["type"]) for column in columns]

    def cells(obj: Obj, now: datetime) -> Sequence[Any]:
        return (obj["metadata"]["name"], *(_cell(obj, path, kind, now) for path, kind in paths))

    return cells


def _cell(obj: Obj, path: str, kind: str, now: datetime) -> Any:
    values = jsonpath.find(path, obj)
    if not values or values[0] is None:
        return None
    value = values[0]
    match kind:
        case "integer":
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            return age(value, now) if isinstance(value, str) else None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    import json

    return json.dumps(value, separators=(",", ":"))


class CustomResources:
    """Serves the kinds of the stored definitions, and deletes the objects of deleted definitions."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._emptying: dict[str, asyncio.Task[None]] = {}

    def load(self) -> None:
        """Serve the stored definitions; continue deletions that were under way."""
        for obj in self._pipeline.every(self._definitions()):
            self._serve(obj)

    def stored(self, kind: Kind, before: Obj | None, after: Obj | None) -> None:
        if kind.resource != CRDS:
            return
        if after is not None:
            self._serve(after)
        elif before is not None:
            self._pipeline.kinds.remove(before["spec"]["group"], before["spec"]["names"]["plural"])

    async def stop(self) -> None:
        tasks = list(self._emptying.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _definitions(self) -> Kind:
        kind = self._pipeline.kinds.of(CRDS)
        assert kind is not None
        return kind

    def _serve(self, obj: Obj) -> None:
        spec = obj["spec"]
        kinds = self._pipeline.kinds
        kinds.remove(spec["group"], spec["names"]["plural"])
        for kind in kinds_of(obj):
            kinds.add(kind)
        name = obj["metadata"]["name"]
        meta = obj["metadata"]
        going = meta.get("deletionTimestamp") and CLEANUP in (meta.get("finalizers") or ())
        if going and name not in self._emptying:
            task = asyncio.get_running_loop().create_task(self._empty(name))
            self._emptying[name] = task
            task.add_done_callback(lambda _: self._emptying.pop(name, None))

    async def _empty(self, name: str) -> None:
        """Delete every object of a definition, wait until all are deleted, then remove the definition."""
        pipeline = self._pipeline
        call = Call(user=service_user("system:apiserver"))
        definitions = self._definitions()
        obj = pipeline.peek(definitions, name)
        if obj is None:
            return
        spec = obj["spec"]
        kind = pipeline.kinds.any_version(spec["group"], spec["names"]["plural"])
        try:
            if kind is None:
                kind = _kind(spec, spec["versions"][0], spec["versions"][0]["name"], True)
            # delete every object, then wait until their finalizers let them go
            while True:
                start = pipeline.storage.revision
                records = pipeline.storage.list(kind.prefix).records
                if not records:
                    break
                for record in records:
                    meta = record.obj["metadata"]
                    if not meta.get("deletionTimestamp"):
                        with contextlib.suppress(NotFound):
                            await pipeline.remove(
                                call, kind, meta["name"], meta.get("namespace"), DeleteOptions(), admit=False
                            )
                watch = pipeline.storage.watch(kind.prefix, after=start)
                try:
                    if pipeline.storage.list(kind.prefix).records:
                        await watch.next()
                finally:
                    watch.close()

            # let the definition go
            async def release(current: Obj) -> Obj:
                meta = current["metadata"]
                meta["finalizers"] = [
                    finalizer for finalizer in meta.get("finalizers") or () if finalizer != CLEANUP
                ]
                if not meta["finalizers"]:
                    del meta["finalizers"]
                return current

            with contextlib.suppress(NotFound):
                await pipeline.write_raw(call, definitions, name, None, release)
        except (WatchClosed, asyncio.CancelledError):
            return  # the server stops; the next start continues
        except (ApiError, StorageError) as error:
            log.warning("emptying a custom resource failed", extra={"definition": name, "error": str(error)})
