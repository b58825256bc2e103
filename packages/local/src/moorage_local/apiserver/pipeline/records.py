"""Objects in storage: their stored form, and their form in a version of their kind."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from moorage_kube.clock import Clock
from moorage_kube.errors import BadRequest, ServerError, StorageError, TooLarge
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.kind import Kind, Kinds
from moorage_local.apiserver.pipeline.calls import Stored
from moorage_local.apiserver.pipeline.refusals import already_exists, not_found
from moorage_local.storage import CompareFailed, Record, Storage

OBJECT_MAX_BYTES = 1536 * 1024  # of one object as it is stored: etcd's limit on a request


class Records:
    """Reads and writes stored objects without authorization.

    `on_stored` is called after each write that is durable.
    """

    def __init__(self, storage: Storage, kinds: Kinds, clock: Clock) -> None:
        self.storage = storage
        self.kinds = kinds
        self.clock = clock
        self.on_stored: list[Stored] = []

    def read(self, kind: Kind, name: str, namespace: str | None) -> Record:
        """Return the stored record. Raises NotFound."""
        if kind.resource.namespaced and not namespace:
            raise BadRequest("an empty namespace may not be set when a resource name is provided")
        record = self.storage.get(kind.key(name, namespace))
        if record is None:
            raise not_found(kind.resource, name)
        return record

    def peek(self, kind: Kind, name: str, namespace: str | None = None) -> Obj | None:
        """Return the stored object or None, for checks such as admission.

        The object is shared: do not change it.
        """
        record = self.storage.get(kind.key(name, namespace))
        return None if record is None else self.view(kind, record)

    def every(self, kind: Kind, namespace: str | None = None) -> list[Obj]:
        """Return all stored objects. They are shared: do not change them."""
        return [self.view(kind, record) for record in self.storage.list(kind.list_prefix(namespace)).records]

    def view(self, kind: Kind, record: Record, *, own: bool = False) -> Obj:
        """Return a record as an object of the kind's version. Do not change the object unless `own` is set."""
        if kind.rules.converts:
            return kind.rules.from_storage(record.copy())
        obj = record.copy() if own else record.obj
        if obj.get("apiVersion") != kind.resource.api_version or obj.get("kind") != kind.resource.kind:
            obj = {**obj, "apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
        return obj

    async def put(self, kind: Kind, key: str, obj: Obj, expected: int, name: str) -> Record:
        meta = obj["metadata"]
        version = meta.pop("resourceVersion", None)
        rules = kind.rules
        stored = rules.to_storage(obj) if rules.converts or rules.stored_otherwise else obj
        if kind.custom:
            stored = _whole_numbers(stored)
        value = msgspec.json.encode(stored)
        if len(value) > OBJECT_MAX_BYTES:
            raise TooLarge(
                f"Request entity too large: {kind.resource} {json.dumps(name)} has {len(value)} bytes,"
                f" the limit is {OBJECT_MAX_BYTES}"
            )
        if version is not None:
            meta["resourceVersion"] = version
        try:
            return await self.storage.put(key, value, expected=expected)
        except CompareFailed:
            if expected == 0:
                current = self.storage.get(key)
                raise already_exists(kind.resource, name, None if current is None else current.obj) from None
            raise
        except StorageError as error:
            raise ServerError(error.message, hint=error.hint) from error

    async def drop(self, kind: Kind, key: str, name: str, expected: int) -> None:
        try:
            await self.storage.delete(key, expected=expected)
        except CompareFailed as error:
            if error.current is None:
                raise not_found(kind.resource, name) from None
            raise
        except StorageError as error:
            raise ServerError(error.message, hint=error.hint) from error

    def tell(self, kind: Kind, before: Obj | None, after: Obj | None) -> None:
        for hook in self.on_stored:
            hook(kind, before, after)


def _whole_numbers(value: Any) -> Any:
    """Convert 1.0 to 1, as Go writes it (Go does so only up to 1e21)."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return value
