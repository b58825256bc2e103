"""Kubernetes quantities with exact arithmetic.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from moorage_kube.errors import QuantityError

if TYPE_CHECKING:
    from fractions import Fraction

_FORM = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([numkMGTPE]|[KMGTPE]i)|([eE][+-]?[0-9]+))?")
_DIGITS_MAX = 100  # beyond any real amount; far below the limit of int() itself
BYTES_LEAST = 1024 * 1024
_SUFFIX: dict[str, tuple[int, int]] = {  # numerator and denominator
    "n": (1, 10**9),
    "u": (1, 10**6),
    "m": (1, 1000),
    "k": (10**3, 1),
    "M": (10**6, 1),
    "G": (10**9, 1),
    "T": (10**12, 1),
    "P": (10**15, 1),
    "E": (10**18, 1),
    "Ki": (2**10, 1),
    "Mi": (2**20, 1),
    "Gi": (2**30, 1),
    "Ti": (2**40, 1),
    "Pi": (2**50, 1),
    "Ei": (2**60, 1),
}


@lru_cache(maxsize=4096)
def parse_quantity(text: str | int | float) -> Fraction:
    """Read a quantity: "500m", "2", "1.5Gi", "1e3". No rounding: 1.5Gi is 1610612736.

    Raises QuantityError, naming the text, for anything the API server itself would refuse.
    """
    from fractions import Fraction  # slow to import: a command that asks once does without

    match = _FORM.fullmatch(str(text))
    if not match or len(match[0]) > _DIGITS_MAX:
        raise QuantityError(f"invalid quantity {text!r}: use a number with a unit, such as 500m or 2Gi")
    sign, digits, suffix, exponent = match.groups()
    value = Fraction(digits if not digits.endswith(".") else digits[:-1])
    if suffix:
        value *= Fraction(*_SUFFIX[suffix])
    elif exponent:
        power = int(exponent[1:])
        if abs(power) > 30:
            raise QuantityError(f"invalid quantity {text!r}: the exponent must be from -30 to 30, not {power}")
        value *= Fraction(10) ** power
    return -value if sign == "-" else value


def parse_count(text: str | int | float) -> int:
    """Read a quantity in whole units, rounded up, as `Quantity.Value()` does."""
    return -((-parse_quantity(text)).__floor__())


def problem_of_bytes(text: str | int | float) -> tuple[str, str] | None:
    """The problem of an amount of bytes that a user typed, and a hint: less than 1 MiB is a slip. None without.

    Zero is not a slip. The API server takes all of them, and warns of parts of a byte. Raises QuantityError.
    """
    if not 0 < parse_quantity(text) < BYTES_LEAST:
        return None
    typed = str(text)
    if parts := {"m": "thousandths", "u": "millionths", "n": "billionths"}.get(typed[-1]):
        return f"the suffix {typed[-1]} means {parts} of a byte", f"use Mi, such as {typed[:-1]}Mi"
    return "less than 1 MiB", f"the unit may be missing: {typed}Gi"


def parse_milli(text: str | int | float) -> int:
    """Read a quantity in thousandths, rounded up, as `Quantity.MilliValue()` does."""
    return -((-parse_quantity(text) * 1000).__floor__())


def amount(resource: str, text: str | int | float) -> int:
    """Read a quantity as the scheduler's integer: millicores for `cpu`, whole units (bytes, devices) otherwise."""
    return _amount(resource, text) if type(text) is str else _read_amount(resource, text)


def _read_amount(resource: str, text: str | int | float) -> int:
    return parse_milli(text) if resource == "cpu" else parse_count(text)


_amount = lru_cache(maxsize=4096)(_read_amount)  # a cluster writes few quantities, many times each


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 item", "1,200 items", "2 copies".

    `plural` if it does not end in a plain s.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_bytes(count: int) -> str:
    """Format bytes for people, in the largest binary unit with at most one decimal, rounded down: free space is
    never overstated. Manifests that must be exact write the plain number instead.

    1610612736 → "1.5Gi", 8589934592 → "8Gi", 1000 → "1000".
    """
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit, _ = _SUFFIX[suffix]
        if count >= unit:
            whole, tenths = divmod(count * 10 // unit, 10)
            return f"{whole}.{tenths}{suffix}" if tenths else f"{whole}{suffix}"
    return str(count)


def format_milli(milli: int) -> str:
    """Millicores as a quantity: 1500 → "1500m", 2000 → "2"."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def format_amount(resource: str, value: int) -> str:
    """Return the quantity string of an integer that `amount` returned."""
    if resource == "cpu":
        return format_milli(value)
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return format_bytes(value)
    return str(value)
