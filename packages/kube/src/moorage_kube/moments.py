"""Times and durations in the format of Kubernetes.

The pure part of `moorage_kube.clock`, for code that may not read the clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

from moorage_kube.clock import format_duration, parse_rfc3339, rfc3339, rfc3339_micro

_NOTHING = (datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC))  # Unix' and Go's times of zero
SPAN_MAX_SECONDS = 100 * 365 * 86400  # a span that, added to any moment of our time, still gives a date

__all__ = ["format_duration", "moment", "parse_rfc3339", "rfc3339", "rfc3339_micro", "span_of", "whole_seconds"]


def span_of(seconds: float) -> timedelta:
    """Return a number of seconds from an object as a timedelta of at most a hundred years, forwards or backwards.

    Objects have numbers of 64 bits; a larger timedelta plus a date would be out of range.
    """
    return timedelta(seconds=max(-SPAN_MAX_SECONDS, min(seconds, SPAN_MAX_SECONDS)))


def moment(text: str | None) -> datetime | None:
    """Read an optional `metav1.Time`. None, the empty string and the zero times are None.

    A kubelet reports 1970 as the start of a container that could not start; Go's own zero time is in the year 1.
    Raises ValueError with the text in its message.
    """
    when = parse_rfc3339(text) if text else None
    return None if when in _NOTHING else when


def readable_moment(text: str | None) -> datetime | None:
    """As `moment`, for untrusted text such as an annotation: an unreadable value counts as missing."""
    try:
        return moment(text)
    except ValueError:
        return None


@overload
def whole_seconds(at: datetime) -> datetime: ...


@overload
def whole_seconds(at: datetime | None) -> datetime | None: ...


def whole_seconds(at: datetime | None) -> datetime | None:
    """Return a time without fractions of a second, in UTC, as answers and `metav1.Time` have it."""
    return at.astimezone(UTC).replace(microsecond=0) if at is not None else None
