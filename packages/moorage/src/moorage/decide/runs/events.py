"""The events of a run: those of its Jobs and pods in one list, without repetitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from moorage_kube.integers import integer_or
from moorage_kube.moments import readable_moment
from moorage_kube.resources import Obj

EVENTS_SHOWN = 30
_NEVER = datetime.min.replace(tzinfo=UTC)


class RunEvent(Struct, frozen=True, kw_only=True):
    """An event about an object of a run, reported `count` times; `at` is the newest time."""

    at: datetime | None
    is_warning: bool
    reason: str
    message: str
    about: str  # kind and name, such as "pod train-abc"
    count: int


def merge_events(objs: Iterable[Obj], *, most: int = EVENTS_SHOWN) -> tuple[RunEvent, ...]:
    """The newest `most` events, newest first. Equal events of one object are merged and counted."""
    merged: dict[tuple[str, str, str], RunEvent] = {}
    for obj in objs:
        event = _event_of(obj)
        key = (event.about, event.reason, event.message)
        known = merged.get(key)
        if known is not None:
            event = RunEvent(
                at=max(known.at or _NEVER, event.at or _NEVER),
                is_warning=known.is_warning or event.is_warning,
                reason=event.reason,
                message=event.message,
                about=event.about,
                count=known.count + event.count,
            )
        merged[key] = event
    ordered = sorted(merged.values(), key=lambda event: event.at or _NEVER, reverse=True)
    return tuple(ordered[:most])


def newest_events(objs: Iterable[Obj], most: int) -> tuple[RunEvent, ...]:
    """The newest `most` events, oldest first. Equal events are not merged."""
    ordered = sorted(objs, key=lambda obj: (time_of(obj) or _NEVER, str(obj["metadata"].get("name") or "")))
    return tuple(_event_of(obj) for obj in ordered[-most:])


def _event_of(obj: Obj) -> RunEvent:
    """Parse an event in both forms: with `count`, or with `series` as newer clients write it.

    https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
    """
    about, series = obj.get("involvedObject") or {}, obj.get("series") or {}
    return RunEvent(
        at=time_of(obj),
        is_warning=obj.get("type") == "Warning",
        reason=str(obj.get("reason") or ""),
        message=str(obj.get("message") or ""),
        about=f"{str(about.get('kind') or '').lower()} {about.get('name') or ''}".strip(),
        count=max(1, integer_or(str(series.get("count") or obj.get("count") or 1), 1)),
    )


def time_of(event: Mapping[str, Any]) -> datetime | None:
    """The time when an event was last seen. None if the event has no readable time."""
    series, meta = event.get("series") or {}, event.get("metadata") or {}
    return _moment(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or meta.get("creationTimestamp")
    )


def _moment(text: object) -> datetime | None:
    """Parse the time of an event. None if unreadable: any user may write events."""
    return readable_moment(str(text) if text else None)
