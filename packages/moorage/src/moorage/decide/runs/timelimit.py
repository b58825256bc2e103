"""Time limits of runs, in the form of user input and of messages."""

from __future__ import annotations

import re

TIME_MAX_SECONDS = 365 * 86400
TIME_RANGE = "1s to 365d"
TIME_FORMAT_HINT = "write it as 2h, 90m or 1d12h"

_TIME = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s?)?")


def parse_time(text: str) -> int:
    """Parse "2h", "90m", "1d12h", "45s" or a number of seconds to seconds. Raises ValueError."""
    match = _TIME.fullmatch(text.strip().lower())
    if not text.strip() or not match or not any(match.groups()):
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    if not 0 < total <= TIME_MAX_SECONDS:
        raise ValueError(text)
    return total


def format_seconds(seconds: int) -> str:
    """Format seconds exactly, in the form that `parse_time` reads: 5400 → "1h30m", 90 → "1m30s"."""
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
