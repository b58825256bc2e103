"""One spelling for fields that Argo accepts in several, so that other modules read only one.

Argo's Go types read numbers where texts are meant (parameters, quantities). Argo v3 had fields for one
schedule, mutex or semaphore; v4 has lists in their place.

https://argo-workflows.readthedocs.io/en/latest/deprecations/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from moorage.decide.admission.fields import Path
from moorage_kube.resources import Obj

# fields of a parameter that Argo reads as texts
_TEXTS = frozenset(("value", "default", "description"))
_QUANTITY_MAPS = frozenset(("limits", "requests"))  # in `resources` and `podResources`
_QUANTITIES = frozenset(("sizeLimit", "divisor"))
# fields below them are not Argo's: they stay as they are, nulls included
OPAQUE = frozenset(("withItems", "plugin", "labels", "annotations", "status", "managedFields"))
# v3 field → v4 field that holds a list of it
_LISTS = {"mutex": "mutexes", "semaphore": "semaphores"}


class OldSpelling(NamedTuple):
    """A field of Argo v3 that v4 does not have. `new`: the field that replaces it."""

    path: Path
    new: str


def normalise(document: Mapping[str, Any]) -> Obj:
    """A copy with texts for numbers where Argo reads texts, v4's names of fields, and without nulls.

    Values of a wrong shape stay as they are: `lint` reports them.
    """
    made: Obj = _normalised(document, ())
    spec = made.get("spec")
    if made.get("kind") == "CronWorkflow" and isinstance(spec, dict):
        _move(spec, "schedule", "schedules")
    return made


def old_spellings(document: Mapping[str, Any]) -> Iterator[OldSpelling]:
    """Yield the fields of a document that `normalise` renames, with their paths."""
    spec = document.get("spec")
    if document.get("kind") == "CronWorkflow" and isinstance(spec, Mapping) and spec.get("schedule") is not None:
        yield OldSpelling(("spec", "schedule"), "schedules")
    yield from _old_locks(document, ())


def text_of(value: Any) -> Any:
    """Return a number or boolean as Argo writes it ("3", "1.5", "true"); other values are not changed.

    Integers keep all their digits, also those beyond 2^53, which Argo rounds.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if value.is_integer():
            return str(int(value))
        case float():
            return format(Decimal(repr(value)), "f")
    return value


def _normalised(value: Any, path: Path) -> Any:
    """Return a normalised copy of a mapping or list. Only the last names of `path` matter."""
    if isinstance(value, Mapping):
        made: Obj = {}
        for name, inner in value.items():
            if inner is None:
                continue
            made[name] = inner if name in OPAQUE else _field(str(name), inner, path)
        if path[-1:] == ("synchronization",):
            for old, new in _LISTS.items():
                _move(made, old, new)
        return made
    if isinstance(value, list):
        return [_normalised(inner, path) for inner in value]
    return value


def _field(name: str, value: Any, path: Path) -> Any:
    if path[-1:] == ("parameters",):
        if name in _TEXTS:
            return text_of(value)
        if name == "enum" and isinstance(value, list):
            return [text_of(choice) for choice in value]
    elif (name == "default" and path[-1:] == ("valueFrom",)) or name in _QUANTITIES:
        return text_of(value)
    if name in _QUANTITY_MAPS and isinstance(value, Mapping):
        return {resource: text_of(amount) for resource, amount in value.items() if amount is not None}
    return _normalised(value, (*path[-1:], name))


def _move(fields: Obj, old: str, new: str) -> None:
    """Insert the value of the old field as the first entry of the new list field."""
    if old in fields and isinstance(fields.get(new, []), list):
        fields[new] = [fields.pop(old), *fields.get(new, [])]


def _old_locks(value: Any, path: Path) -> Iterator[OldSpelling]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if path[-1:] == ("synchronization",) and name in _LISTS and inner is not None:
                yield OldSpelling((*path, str(name)), _LISTS[str(name)])
            elif name not in OPAQUE:
                yield from _old_locks(inner, (*path, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _old_locks(inner, (*path, index))
