"""`successCondition` and `failureCondition`: requirements for fields of an object, written as label selectors.

`status.succeeded > 2, status.phase in (Running, Succeeded)`. A key is a path of names and list indexes,
separated by dots. The success condition is true when all its requirements are, the failure condition when any
of its requirements is.
https://argo-workflows.readthedocs.io/en/latest/walk-through/kubernetes-resources/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from msgspec import Struct

from moorage_kube.selectors import Requirement, parse_label_selector

SHOWN_CHARACTERS = 200  # of one field's value
_ABSENT = object()


class Conditions(Struct, frozen=True):
    """The conditions that end the wait for an object."""

    success: tuple[Requirement, ...] = ()
    failure: tuple[Requirement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.success or self.failure)

    @property
    def keys(self) -> tuple[str, ...]:
        """The field paths in both conditions, each once."""
        return tuple(dict.fromkeys(requirement.key for requirement in (*self.success, *self.failure)))


def parse_condition(text: str) -> tuple[Requirement, ...]:
    """Parse a condition. Raises SelectorError with the unreadable part."""
    return parse_label_selector(text).requirements


def failed(conditions: Conditions, obj: Mapping[str, Any]) -> Requirement | None:
    """Return the first requirement of the failure condition that is true; None if all are false."""
    fields = _Fields(obj)
    return next((requirement for requirement in conditions.failure if requirement.matches(fields)), None)


def succeeded(conditions: Conditions, obj: Mapping[str, Any]) -> bool:
    """Whether all requirements of the success condition are true. True without a success condition."""
    fields = _Fields(obj)
    return all(requirement.matches(fields) for requirement in conditions.success)


def state_of(obj: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the fields of a condition for users: `status.failed is 2, status.succeeded is not set`."""
    fields = _Fields(obj)
    parts = []
    for key in keys:
        value = fields.get(key)
        shown = "not set" if value is None else value or '""'
        parts.append(f"{key} is {shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + '…'}")
    return ", ".join(parts)


class _Fields(Mapping[str, str]):
    """The fields of an object by path, as strings."""

    def __init__(self, obj: Mapping[str, Any]) -> None:
        self._obj = obj

    def __getitem__(self, path: str) -> str:
        value: Any = self._obj
        for name in path.split("."):
            if isinstance(value, Mapping):
                value = value.get(name, _ABSENT)
            elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = _ABSENT
            if value is _ABSENT:
                raise KeyError(path)
        return _text(value)

    def __iter__(self) -> Iterator[str]:
        return iter(())  # requirements ask for a key, and never for all

    def __len__(self) -> int:
        return 0


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False)
