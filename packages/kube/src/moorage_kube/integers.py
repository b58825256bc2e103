"""Read whole numbers from text that users or other programs wrote.

`int()` and `str.isdigit()` accept more than a plain number: "²" or "٣" are digits for them, and "1_000" and " 7 "
are integers. `int()` raises for more than 4,300 digits. All callers use this module, so that an invalid number is
refused and never causes a defect.
"""

from __future__ import annotations

from moorage_kube.errors import NumberError

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1  # also the largest that SQLite and PostgreSQL store as an integer
UINT64_MAX = (1 << 64) - 1  # resource versions
_SHOWN_MAX = 40  # characters of the text in a message


def parse_integer(
    text: str, *, minimum: int = 0, maximum: int = INT64_MAX, name: str = "the value", signed: bool = True
) -> int:
    """Read ASCII digits, from `minimum` to `maximum`, with an optional sign if `signed`.

    Go's ParseInt and Atoi take a sign, its ParseUint takes none.
    Raises NumberError with `name`, the text and the allowed range.
    """
    value = _read(text, max(len(str(minimum)), len(str(maximum))), signed=signed)
    if value is None or not minimum <= value <= maximum:
        shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
        raise NumberError(f"{name} must be a whole number from {minimum} to {maximum}, not {shown!r}")
    return value


def integer_or(
    text: str | None, usual: int, *, minimum: int = 0, maximum: int = INT64_MAX, signed: bool = True
) -> int:
    """Return the integer in an annotation, a label or a name.

    `usual` if it is not an integer or is out of range.
    """
    if text is None:
        return usual
    value = _read(text, max(len(str(minimum)), len(str(maximum))), signed=signed)
    return value if value is not None and minimum <= value <= maximum else usual


def is_digits(text: str) -> bool:
    """Whether a text is one or more of the digits 0 to 9 and nothing else."""
    return text.isascii() and text.isdigit()


def _read(text: str, digits_max: int, *, signed: bool) -> int | None:
    sign = text[:1] if signed and text[:1] in ("-", "+") else ""
    digits = text[len(sign) :]
    if not is_digits(digits):
        return None
    digits = digits.lstrip("0") or "0"
    return int(sign + digits) if len(digits) <= digits_max else None
