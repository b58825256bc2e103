"""Fields of a price file; each error names the field, the value and the allowed values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from moorage_kube.errors import QuantityError, UsageError
from moorage_kube.quantity import parse_count, parse_milli


def mapping_of(value: object, where: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} must be a mapping of fields, not {type(value).__name__}")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise UsageError(f"{where} has no field {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return value


def list_of(value: object, where: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise UsageError(f"{where} must be a list, not {type(value).__name__}")
    return value


def number_of(fields: Mapping[str, Any], name: str, where: str, *, least: float = 0.0) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number < math.inf:
        raise UsageError(f"{where}.{name} is {value!r}, not a number of at least {least:g}")
    return number


def quantity_of(value: object, where: str, *, milli: bool = False) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise QuantityError(f"invalid quantity {value!r}: use a number with a unit, such as 500m or 2Gi")
        quantity = parse_milli(value) if milli else parse_count(value)
    except QuantityError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from error
    if quantity < 0:
        raise UsageError(f"{where} is {value!r}, less than 0")
    return quantity


def money_of(fields: Mapping[str, Any], name: str, where: str) -> Fraction | None:
    """A price exactly as written: 0.96 is 96/100. None if it is missing."""
    number = number_of(fields, name, where)
    return None if number is None else exactly(fields[name])


def exactly(value: object) -> Fraction:
    """A number of a document exactly as written: a float is read by its shortest decimal form."""
    return Fraction(Decimal(str(value)))
