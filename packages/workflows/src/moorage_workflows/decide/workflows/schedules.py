"""The times at which a CronWorkflow is due.

A schedule has five fields, or is `@daily` and the like, or `@every 1h`, as in the library of Argo's controller:
https://pkg.go.dev/github.com/robfig/cron/v3

A slot is a minute at which the wall clock matches the schedule. So a time that the clocks skip is not a slot
on that day, and a time that they repeat is two slots. Moorage does not copy two errors of that library: after
a clock change of half an hour it misses full hours of that day, and where midnight is skipped it can fire on
the wrong day.

`@every` counts from an anchor, the creation of the CronWorkflow. Argo counts from the start of its
controller, so that a restart moves the slots.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import takewhile
from typing import assert_never

from msgspec import Struct

from moorage.decide.admission.schedules import SCHEDULES
from moorage.model.schedule import zone_named
from moorage_kube.errors import UsageError
from moorage_workflows.decide.workflows.text.limits import SCHEDULE_CHARACTERS

GAP_MAX = timedelta(days=8 * 366)  # between two slots: from 29 February 2096 to that of 2104
SPAN_MAX_SECONDS = 100 * 365 * 86400  # of `@every`
_DAY = timedelta(days=1)
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = {name: 1 + index for index, name in enumerate(_MONTH_NAMES)}
_WEEKDAYS = {name: index for index, name in enumerate(_WEEKDAY_NAMES)}
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DESCRIPTOR_NAMES = ", ".join(_DESCRIPTORS) + ", @every 1h30m"
_SPAN = re.compile(r"(?<![\d.])(\d++(?:\.\d*+)?|\.\d++)(ns|us|µs|μs|ms|s|m|h)")
_SPAN_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class ScheduleError(UsageError, ValueError):
    """A text that is not a valid schedule or time zone. The message names the text and the allowed values."""


class _Bounds(Struct, frozen=True):
    """The range and names of one of the five fields."""

    name: str
    low: int
    high: int
    words: Mapping[str, int]


_FIELDS = (
    _Bounds("minute", 0, 59, {}),
    _Bounds("hour", 0, 23, {}),
    _Bounds("day of month", 1, 31, {}),
    _Bounds("month", 1, 12, _MONTHS),
    _Bounds("day of week", 0, 6, _WEEKDAYS),
)


class Calendar(Struct, frozen=True, kw_only=True):
    """A schedule of five fields. Weekdays: Sunday is 0.

    `any_day_matches`: both the day of month and the day of week are restricted, and a match of either is enough.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day_matches: bool
    zone: tzinfo

    def has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_weekday if self.any_day_matches else by_date and by_weekday


class Every(Struct, frozen=True):
    """A schedule with a slot every so many seconds after the anchor. The anchor itself is not a slot."""

    seconds: int


Schedule = Calendar | Every


class Timetable(Struct, frozen=True, kw_only=True):
    """All schedules of one CronWorkflow. `anchor`: with a time zone, in whole seconds; `@every` counts from it."""

    schedules: tuple[Schedule, ...]
    anchor: datetime


def parse_timetable(schedules: Sequence[str], timezone: str = "", *, anchor: datetime) -> Timetable:
    """Parse the fields `schedules` and `timezone` of a CronWorkflow. An empty `timezone` is UTC.

    Raises ScheduleError.
    """
    if not schedules:
        raise ScheduleError(
            "there is no schedule: give at least one, such as '0 8 * * 1-5'", field="spec.schedules"
        )
    if len(schedules) > SCHEDULES:
        raise ScheduleError(
            f"there are {len(schedules):,} schedules; at most {SCHEDULES} are allowed", field="spec.schedules"
        )
    zone = _zone(timezone) if timezone else None
    parsed = tuple(parse_schedule(text, zone) for text in schedules)
    return Timetable(schedules=parsed, anchor=anchor.astimezone(UTC).replace(microsecond=0))


def parse_schedule(text: str, zone: tzinfo | None = None) -> Schedule:
    """Parse one schedule. `zone` None: the zone in its `CRON_TZ=…` or `TZ=…`, else UTC.

    Raises ScheduleError.
    """
    if len(text) > SCHEDULE_CHARACTERS:
        raise ScheduleError(
            f"the schedule {text[:20]!r}… has {len(text):,} characters; at most {SCHEDULE_CHARACTERS} are allowed"
        )
    rest = text.strip()
    prefix = re.match(r"(?:CRON_)?TZ=(\S*)\s+", rest)
    if prefix is not None:
        if zone is not None:
            raise ScheduleError(f"invalid schedule {text!r}: `timezone` names a time zone too: use one of them")
        zone, rest = _zone(prefix.group(1)), rest[prefix.end() :]
    if rest.startswith("@every "):
        return Every(_whole_seconds_of(text, rest.removeprefix("@every ").strip()))
    if rest.startswith("@"):
        if rest not in _DESCRIPTORS:
            raise ScheduleError(f"invalid schedule {text!r}: use five fields, or one of {_DESCRIPTOR_NAMES}")
        rest = _DESCRIPTORS[rest]
    words = rest.split()
    if len(words) != len(_FIELDS):
        raise ScheduleError(
            f"invalid schedule {text!r}: it has {len(words)} fields; use five, such as '0 8 * * 1-5': "
            "minute, hour, day of month, month, day of week"
        )
    (minutes, _), (hours, _), (days, any_day), (months, _), (weekdays, any_weekday) = (
        _parse_field(text, word, bounds) for word, bounds in zip(words, _FIELDS, strict=True)
    )
    return Calendar(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(weekdays),
        any_day_matches=not (any_day or any_weekday),
        zone=zone or UTC,
    )


def _zone(name: str) -> tzinfo:
    try:
        return zone_named(name)
    except ValueError as error:
        raise ScheduleError(str(error), field="spec.timezone") from error


def _parse_field(text: str, word: str, bounds: _Bounds) -> tuple[set[int], bool]:
    """Return the values of a field, and whether a part of it is a star without a step."""
    values: set[int] = set()
    is_star = False
    for part in filter(None, word.split(",")):
        range_text, *steps = part.split("/")
        low_text, *highs = range_text.split("-")
        if len(steps) > 1:
            raise _bad_field(text, word, bounds, "more than one '/'")
        step = _number(text, word, bounds, steps[0]) if steps else 1
        if step == 0:
            raise _bad_field(text, word, bounds, "a step of 0")
        if low_text in ("*", "?"):
            low, high = bounds.low, bounds.high
            is_star = is_star or step == 1
        else:
            if len(highs) > 1:
                raise _bad_field(text, word, bounds, "more than one '-'")
            low = _number(text, word, bounds, low_text)
            high = _number(text, word, bounds, highs[0]) if highs else bounds.high if steps else low
        if low < bounds.low or high > bounds.high or low > high:
            raise _bad_field(text, word, bounds, f"{range_text!r} is out of range")
        values.update(range(low, high + 1, step))
    if not values:
        raise _bad_field(text, word, bounds, "no value")
    return values, is_star


def _number(text: str, word: str, bounds: _Bounds, digits: str) -> int:
    named = bounds.words.get(digits.lower())
    if named is not None:
        return named
    if not re.fullmatch(r"\+?[0-9]{1,9}", digits):
        raise _bad_field(text, word, bounds, f"{digits!r} is not a number")
    return int(digits)


def _bad_field(text: str, word: str, bounds: _Bounds, problem: str) -> ScheduleError:
    names = f", or {next(iter(bounds.words))} to {list(bounds.words)[-1]}" if bounds.words else ""
    return ScheduleError(
        f"invalid schedule {text!r}: the field {bounds.name} is {word!r}: {problem}; "
        f"use {bounds.low} to {bounds.high}{names}, with '*', ',', '-' and '/'"
    )


def _whole_seconds_of(text: str, span: str) -> int:
    """Return a duration in whole seconds, at least 1; fractions are cut off. Raises ScheduleError."""
    sign, digits = (span[:1], span[1:]) if span[:1] in ("+", "-") else ("", span)
    parts = list(_SPAN.finditer(digits))
    if not parts or "".join(part.group() for part in parts) != digits or len(digits) > 100:
        raise ScheduleError(f"invalid schedule {text!r}: use a span with units h, m and s, such as '@every 1h30m'")
    seconds = sum(float(part.group(1)) * _SPAN_UNITS[part.group(2)] for part in parts)
    if seconds > SPAN_MAX_SECONDS:
        raise ScheduleError(f"invalid schedule {text!r}: the span is more than a hundred years")
    return max(1, int(seconds)) if sign != "-" else 1


def slots(timetable: Timetable, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
    """Yield each slot in (after, until] once, in order and in UTC. `until` None: without an end.

    Ends also if no further slot comes within `GAP_MAX`.
    """
    merged = heapq.merge(
        *(_slots_of(schedule, timetable.anchor, after, until) for schedule in timetable.schedules)
    )
    last = None
    for slot in merged if until is None else takewhile(lambda slot: slot <= until, merged):
        if slot != last:
            yield slot
        last = slot


def next_slot(timetable: Timetable, after: datetime) -> datetime | None:
    """Return the first slot after `after`; None if there is none."""
    return next(slots(timetable, after), None)


def latest_slot(timetable: Timetable, after: datetime, until: datetime) -> datetime | None:
    """Return the newest slot in (after, until]; None if there is none."""
    for window in (timedelta(hours=1), _DAY, 32 * _DAY, 366 * _DAY, until - after):
        start = max(after, until - window)
        latest = None
        for latest in slots(timetable, start, until):  # noqa: B007
            pass
        if latest is not None or start == after:
            return latest
    return None


def _slots_of(schedule: Schedule, anchor: datetime, after: datetime, until: datetime | None) -> Iterator[datetime]:
    match schedule:
        case Every(seconds):
            count = max(1, (after - anchor) // timedelta(seconds=seconds) + 1)
            while True:
                try:
                    yield anchor + timedelta(seconds=seconds * count)
                except OverflowError:  # past the year 9999
                    return
                count += 1
        case Calendar():
            yield from _slots_of_calendar(schedule, after, until)
        case _:
            assert_never(schedule)


def _slots_of_calendar(schedule: Calendar, after: datetime, until: datetime | None) -> Iterator[datetime]:
    """Yield the slots of a calendar. It stops after the day of `until`, so an impossible schedule costs little."""
    last = until.astimezone(schedule.zone).date() + _DAY if until is not None else date.max
    day = after.astimezone(schedule.zone).date() - _DAY
    carried: list[datetime] = []  # of the day before, where clocks go back over midnight
    newest = after
    while day.year < 9999:
        if day > last or day - newest.date() > GAP_MAX:
            return
        if not carried and day.month not in schedule.months:
            day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            continue
        if _is_regular(day, schedule.zone) and not carried:
            if schedule.has_day(day):
                for slot in _slots_of_regular_day(schedule, day, after):
                    newest = slot
                    yield slot
            day += _DAY
            continue
        times = sorted({*carried, *(_slots_of_odd_day(schedule, day) if schedule.has_day(day) else ())})
        day += _DAY
        border = datetime.combine(day, time(), tzinfo=schedule.zone).astimezone(UTC)
        for slot in times:
            if after < slot < border:
                newest = slot
                yield slot
        carried = [slot for slot in times if slot >= border]


def _is_regular(day: date, zone: tzinfo) -> bool:
    """Whether the clock does not change on that day."""
    if zone is UTC:
        return True
    begin = datetime.combine(day, time(), tzinfo=zone)
    end = datetime.combine(day + _DAY, time(fold=1), tzinfo=zone)
    return begin.utcoffset() == end.utcoffset()


def _slots_of_regular_day(schedule: Calendar, day: date, after: datetime) -> Iterator[datetime]:
    midnight = datetime.combine(day, time(), tzinfo=schedule.zone).astimezone(UTC)
    for hour in schedule.hours:
        if midnight + timedelta(hours=hour + 1) <= after:
            continue
        for minute in schedule.minutes:
            slot = midnight + timedelta(hours=hour, minutes=minute)
            if slot > after:
                yield slot


def _slots_of_odd_day(schedule: Calendar, day: date) -> Iterator[datetime]:
    """Yield the slots of a day with a clock change, unordered: each wall time as often as it occurs."""
    for hour in schedule.hours:
        for minute in schedule.minutes:
            for fold in (0, 1):
                wall = datetime.combine(day, time(hour, minute, fold=fold), tzinfo=schedule.zone)
                slot = wall.astimezone(UTC)
                if slot.astimezone(schedule.zone).replace(tzinfo=None) == wall.replace(tzinfo=None):
                    yield slot


def in_words(text: str) -> str:
    """Return a schedule as a phrase: "At 08:00 on Monday through Friday"; unchanged if there is no phrase."""
    from cronsim import CronSimError
    from cronsim.explain import Expression

    prefix = re.match(r"(?:CRON_)?TZ=\S*\s+", text.strip())
    rest = text.strip()[prefix.end() :] if prefix else text.strip()
    if rest.startswith("@every "):
        return f"Every {rest.removeprefix('@every ').strip()}"
    words = _DESCRIPTORS.get(rest, rest).replace("?", "*").upper().split()
    try:
        parse_schedule(rest)
        phrase = str(Expression(["0", *words]).explain())
    except (ScheduleError, CronSimError, ValueError, IndexError, KeyError, AssertionError):
        return text
    return phrase
