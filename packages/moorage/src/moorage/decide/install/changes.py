"""The differences between two versions of an object, field by field, for display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

NOISE = frozenset({"creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"})
_SHOWN = 80  # characters of a value


class Change(Struct, frozen=True):
    """The change of one field. None: the field is absent."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_short(self.before)} → {_short(self.after)}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Fields that differ, by path; without the fields that the API server sets, and without the status."""
    return list(_compare("", _without_noise(before), _without_noise(after)))


def _without_noise(obj: Mapping[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in NOISE}
    return {key: value for key, value in obj.items() if key != "status"} | {"metadata": meta}


def _compare(path: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in (*before, *(key for key in after if key not in before)):
            yield from _compare(f"{path}.{key}" if path else str(key), before.get(key), after.get(key))
        return
    if isinstance(before, list) and isinstance(after, list):
        was, now = _by_name(before), _by_name(after)
        if was is not None and now is not None:
            for name in (*was, *(name for name in now if name not in was)):
                yield from _compare(f"{path}[{name}]", was.get(name), now.get(name))
            return
    yield Change(path, before, after)


def _by_name(items: Sequence[Any]) -> dict[str, Any] | None:
    """The items of a list by their names. None if the items have no names, or names repeat."""
    named = {str(item["name"]): item for item in items if isinstance(item, Mapping) and "name" in item}
    return named if len(named) == len(items) else None


def _short(value: Any) -> str:
    if value is None:
        return "(none)"
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "⏎") or '""'
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
