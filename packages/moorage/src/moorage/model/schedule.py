"""The times of a cron expression in a time zone.

Five fields, in the semantics of Debian's cron: a time that is skipped when clocks change runs right
afterwards, and a repeated time runs once. https://github.com/cuu508/cronsim
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

FURTHEST = timedelta(days=4 * 366)  # 29 February comes within it (but for the year 2100)


def zone_named(name: str) -> tzinfo:
    """The time zone with this name; "" means UTC. Raises ValueError."""
    if not name or name.upper() == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:
        raise ValueError(f"invalid time zone {name!r}: use an IANA name, such as Europe/Berlin") from error


def problem_of_zone(name: str) -> str:
    """The problem with a time zone's name; "" if none."""
    try:
        zone_named(name)
    except ValueError:
        return "must be a time zone of the IANA database, such as Europe/Berlin"
    return ""


def problem_of_cron(text: str) -> str:
    """The problem with a cron expression; "" if none."""
    from cronsim import CronSim, CronSimError

    message = "must be five fields, such as `0 8 * * 1-5`: minute, hour, day of month, month, day of week"
    if len(text.split()) != 5:
        return message
    try:
        CronSim(text, datetime(2024, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError) as error:  # a ValueError: more digits than int() reads
        return f"{message} ({str(error)[:1].lower()}{str(error)[1:]})"
    return ""


def next_moment(text: str, after: datetime, zone: tzinfo = UTC) -> datetime | None:
    """The first time after `after`, in UTC. None if there is none within four years."""
    from cronsim import CronSim

    moment: datetime | None = next(CronSim(text, after.astimezone(zone)), None)
    return None if moment is None or moment - after > FURTHEST else moment.astimezone(UTC)


def last_moment(text: str, until: datetime, after: datetime, zone: tzinfo = UTC) -> datetime | None:
    """The newest time in (after, until], in UTC. None if there is none."""
    from cronsim import CronSim

    # it returns times before its start: begin a second later, so that `until` itself counts
    start = until.replace(microsecond=0).astimezone(zone) + timedelta(seconds=1)
    moment: datetime | None = next(CronSim(text, start, reverse=True), None)
    return moment.astimezone(UTC) if moment is not None and moment > after else None
