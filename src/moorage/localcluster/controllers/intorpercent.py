"""`intstr.IntOrString`: a number, or a part of another in percent."""

from __future__ import annotations

import re

from moorage.errors import UsageError

_PERCENT = re.compile(r"([0-9]+)%")


def scaled(value: int | str, total: int, *, up: bool) -> int:
    """`value` itself, or that percentage of `total`, rounded up or down. Raises UsageError for anything else."""
    if isinstance(value, int):
        return value
    found = _PERCENT.fullmatch(value)
    if not found:
        if value.isdecimal():
            return int(value)
        raise UsageError(f"{value!r} is neither a number nor a percentage", hint="write 2 or 25%")
    share = int(found[1]) * total
    return -(-share // 100) if up else share // 100
