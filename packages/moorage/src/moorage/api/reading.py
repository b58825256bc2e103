"""Read answers of any server version as API types; unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read(kind: type[T], value: Any) -> T:
    """Convert an answer to its type. Raises msgspec.ValidationError if it does not match."""
    return msgspec.convert(without_nulls(value), kind)


def without_nulls(value: Any) -> Any:
    """The value without null fields, since their types have defaults."""
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [without_nulls(part) for part in value]
    return value
