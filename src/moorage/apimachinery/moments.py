"""Moments and spans as Kubernetes writes them.

The pure part of `moorage.clock`, for code that may not read the clock.
"""

from __future__ import annotations

from datetime import datetime

from moorage.clock import format_duration, parse_rfc3339, rfc3339, rfc3339_micro

__all__ = ["format_duration", "moment", "parse_rfc3339", "rfc3339", "rfc3339_micro"]


def moment(text: str | None) -> datetime | None:
    """Read an optional `metav1.Time`; None and the empty string are None. Raises ValueError naming the text."""
    return parse_rfc3339(text) if text else None
