"""Events of `v1` and `events.k8s.io/v1`. Both are the same objects with different field names, stored as `v1`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import age
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors

_NEW_TO_CORE = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
_CORE_TO_NEW = {core: new for new, core in _NEW_TO_CORE.items()}
_FIELD_SELECTORS = frozenset(
    {
        *(
            f"involvedObject.{key}"
            for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        ),
        "reason",
        "reportingComponent",
        "source",
        "source.component",
        "type",
    }
)


def _to_core(obj: Obj) -> Obj:
    """Convert an event from `events.k8s.io/v1` to `v1`."""
    return (
        {"source": {}} | {_NEW_TO_CORE.get(key, key): value for key, value in obj.items()} | {"apiVersion": "v1"}
    )


def _to_new(obj: Obj) -> Obj:
    """Convert an event from `v1` to `events.k8s.io/v1`."""
    kept = {key: value for key, value in obj.items() if value != "" and (value != {} or key == "source")}
    return {_CORE_TO_NEW.get(key, key): value for key, value in kept.items()} | {"apiVersion": "events.k8s.io/v1"}


def _default(obj: Obj) -> None:
    if obj.get("apiVersion") == "v1":
        _default_reporter(obj)


def _default_reporter(obj: Obj) -> None:
    """Set the fields of `v1` that all clients of events read."""
    obj.setdefault("source", {})
    obj.setdefault("reportingComponent", "")
    obj.setdefault("reportingInstance", "")


def _validate(obj: Obj, errors: FieldErrors) -> None:
    target = obj.get("involvedObject") or obj.get("regarding") or {}
    namespace = obj["metadata"].get("namespace")
    wanted = target.get("namespace")
    if (wanted or "default") != namespace and not (wanted is None and namespace in ("default", "kube-system")):
        errors.invalid("involvedObject.namespace", wanted or "", "does not match event.namespace")


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    first = age(obj.get("firstTimestamp") or obj.get("eventTime"), now)
    last = age(obj["lastTimestamp"], now) if obj.get("lastTimestamp") else first
    count = obj.get("count") or 1
    if obj.get("series"):
        last = age(obj["series"].get("lastObservedTime"), now)
        count = obj["series"].get("count", count)
    target = obj.get("involvedObject") or {}
    kind, name = target.get("kind", "").lower(), target.get("name")
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return (
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{name}" if name else kind,
        target.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        (obj.get("message") or "").strip(),
        first,
        count,
        obj["metadata"]["name"],
    )


def _new_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return _cells(_to_core(obj), now)


RULES = {
    ("", "events"): Rules(
        default=_default,
        validate=_validate,
        name_form="path",
        create_on_update=True,
        field_selectors=_FIELD_SELECTORS,
        cells=_cells,
    ),
    ("events.k8s.io", "events"): Rules(
        name_form="path",
        validate=_validate,
        create_on_update=True,
        to_storage=_to_core,
        from_storage=_to_new,
        converts=True,
        field_selectors=frozenset(
            {
                "reason",
                "type",
                "reportingController",
                "regarding.kind",
                "regarding.name",
                "regarding.namespace",
                "regarding.uid",
            }
        ),
        cells=_new_cells,
    ),
}
