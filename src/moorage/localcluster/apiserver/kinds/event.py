"""The two forms of events: `v1` is stored, `events.k8s.io/v1` is the same object with other names."""

from __future__ import annotations

from moorage.apimachinery.resources import Obj

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


def to_core(obj: Obj) -> Obj:
    """From `events.k8s.io/v1` to `v1`."""
    return (
        {"source": {}} | {_NEW_TO_CORE.get(key, key): value for key, value in obj.items()} | {"apiVersion": "v1"}
    )


def to_new(obj: Obj) -> Obj:
    """From `v1` to `events.k8s.io/v1`."""
    kept = {key: value for key, value in obj.items() if value != "" and (value != {} or key == "source")}
    return {_CORE_TO_NEW.get(key, key): value for key, value in kept.items()} | {"apiVersion": "events.k8s.io/v1"}


def prepare_core(obj: Obj) -> None:
    """Fields of `v1` that every client of events reads."""
    obj.setdefault("source", {})
    obj.setdefault("reportingComponent", "")
    obj.setdefault("reportingInstance", "")
