"""Parse and format durations as Argo does: a whole number of seconds, or Go's format ("1h30m", "1.5s").

https://pkg.go.dev/time#ParseDuration
"""

from __future__ import annotations

import re
from datetime import timedelta

from moorage.decide.evaluation import TextError

NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek letter mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
MAX_NANOSECONDS = 2**63 - 1  # Go's own limit, some 292 years
_PART = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?([^0-9.]*)")
_SECONDS = re.compile(r"[+-]?[0-9]+")
_UNITS = "ns, us, ms, s, m or h"


def parse_duration(text: str) -> timedelta:
    """Parse "90" (seconds) or Go's format. Raises TextError with the text.

    Parts below a microsecond are cut off.
    """
    if _SECONDS.fullmatch(text):
        nanoseconds = int(text[:24]) * NANOSECONDS["s"] if len(text) <= 24 else MAX_NANOSECONDS + 1
        if abs(nanoseconds) > MAX_NANOSECONDS:
            raise _invalid(text, "it is more than 292 years")
        return _timedelta(nanoseconds)
    return _timedelta(go_nanoseconds(text))


def parse_go_duration(text: str) -> timedelta:
    """Parse Go's format, where every number except "0" has a unit. Raises TextError with the text."""
    return _timedelta(go_nanoseconds(text))


def go_nanoseconds(text: str) -> int:
    """Parse Go's format and return exact nanoseconds. Raises TextError with the text."""
    rest = text
    negative = False
    if rest[:1] in ("-", "+"):
        negative = rest[0] == "-"
        rest = rest[1:]
    if rest == "0":
        return 0
    if not rest:
        raise _invalid(text, f"write a number with a unit ({_UNITS})")
    total = 0
    while rest:
        match = _PART.match(rest)
        assert match is not None  # it also matches nothing
        whole, point, fraction, unit = match.groups()
        if not whole and not fraction:
            raise _invalid(text, f"write a number with a unit ({_UNITS})")
        if len(whole) > 19:
            raise _invalid(text, "it is more than 292 years")
        if not unit:
            raise _invalid(text, f"a number has no unit; use {_UNITS}")
        if unit not in NANOSECONDS:
            more = "; write days as hours, such as 24h" if unit in ("d", "day", "days") else ""
            raise _invalid(text, f"{unit!r} is not a unit; use {_UNITS}{more}")
        scale = NANOSECONDS[unit]
        total += int(whole or "0") * scale
        if point and fraction:
            digits = fraction[:18]
            total += int(digits) * scale // 10 ** len(digits)
        rest = rest[match.end() :]
    if total > MAX_NANOSECONDS + negative:
        raise _invalid(text, "it is more than 292 years")
    return -total if negative else total


def format_go_duration(nanoseconds: int) -> str:
    """Write nanoseconds as Go does: "1h30m0s", "1.5s", "300ms", "0s"."""
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left == 0:
        return "0s"
    if left < NANOSECONDS["s"]:
        for unit in ("ns", "µs", "ms"):
            if left < NANOSECONDS[unit] * 1000:
                return f"{sign}{_decimal(left, NANOSECONDS[unit])}{unit}"
    hours, left = divmod(left, NANOSECONDS["h"])
    minutes, left = divmod(left, NANOSECONDS["m"])
    seconds = f"{_decimal(left, NANOSECONDS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, scale: int) -> str:
    whole, part = divmod(value, scale)
    if not part:
        return str(whole)
    return f"{whole}.{part * 1_000_000_000 // scale:09d}".rstrip("0")


def _timedelta(nanoseconds: int) -> timedelta:
    microseconds = abs(nanoseconds) // 1000
    return timedelta(microseconds=-microseconds if nanoseconds < 0 else microseconds)


def _invalid(text: str, why: str) -> TextError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return TextError(f"invalid duration {shown!r}: {why}")
