"""`intstr.IntOrString`: a number, or a percentage of another number."""

from __future__ import annotations

from moorage_kube.errors import UsageError
from moorage_kube.integers import INT32_MAX, integer_or


def scaled(value: int | str, total: int, *, up: bool) -> int:
    """Return a number unchanged, or a percentage of `total`, rounded up or down.

    Raises UsageError for other values.
    """
    if isinstance(value, int):
        return value
    number = integer_or(value.removesuffix("%"), -1, maximum=INT32_MAX)
    if number < 0:
        raise UsageError(f"{value[:40]!r} is neither a number nor a percentage", hint="write 2 or 25%")
    if not value.endswith("%"):
        return number
    share = number * total
    return -(-share // 100) if up else share // 100
