"""Moments in user input: a time before now, a day, or a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from moorage.api.errors import ErrorCode
from moorage.decide.runs.timelimit import parse_time
from moorage_kube.errors import UsageError


def moment_before(text: str, now: datetime, field: str) -> datetime:
    """Parse "24h" (24 hours before `now`), "2026-01-31" (its first moment in UTC) or an RFC 3339 time.

    A time without a zone is in UTC. Raises UsageError with the field.
    """
    try:
        return now - timedelta(seconds=parse_time(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"invalid {field} {text!r}: use a span, a day or a time",
            hint="write 24h, 7d or 90m before now, 2026-01-31, or 2026-01-31T12:00:00Z",
            code=ErrorCode.BAD_REQUEST,
            field=field,
        ) from error
