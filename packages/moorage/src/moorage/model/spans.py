"""Time spans in files and commands: "45s", "90m", "2h", "1d12h"."""

from __future__ import annotations

import re
from datetime import timedelta

SPAN_MAX = timedelta(days=365)
SPAN_PATTERN = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$"
SPAN_HINT = "use a span such as 45s, 90m, 2h or 1d12h, up to 365d"

_SPAN = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")


def parse_span(text: str) -> timedelta:
    """Parse "2h", "90m" or "1d12h": above zero, at most `SPAN_MAX`. Raises ValueError. A day has 24 hours."""
    match = _SPAN.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    span = timedelta(seconds=days * 86400 + hours * 3600 + minutes * 60 + seconds)
    if not timedelta(0) < span <= SPAN_MAX:
        raise ValueError(text)
    return span


def format_span(span: timedelta) -> str:
    """Format a span to the second: "1h30m". Zero and less give "0s"."""
    rest, parts = int(span.total_seconds()), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(max(rest, 0), size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
