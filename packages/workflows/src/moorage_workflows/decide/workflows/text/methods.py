"""Methods of dates, durations and time zones in expressions, with the names of Go's package time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text.durations import format_go_duration
from moorage_workflows.decide.workflows.text.functions import Call, text
from moorage_workflows.decide.workflows.text.moments import format_moment, weekday
from moorage_workflows.decide.workflows.text.values import (
    Duration,
    add,
    is_integer,
    shifted,
    shown,
    subtract,
    type_name,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Method = Callable[[Any, Sequence[Any], Call], Any]


def call_method(owner: Any, name: str, arguments: Sequence[Any], call: Call) -> Any:
    """Call a method of a value. Raises TextError for an unknown method and for a wrong number of arguments."""
    if isinstance(owner, datetime):
        methods = _OF_MOMENT
    elif isinstance(owner, Duration):
        methods = _OF_DURATION
    elif isinstance(owner, tzinfo):
        methods = _OF_ZONE
    else:
        raise TextError(f"{shown(owner)} ({type_name(owner)}) has no method {name}")
    if name not in methods:
        raise TextError(f"a {type_name(owner)} has no method {name}; use one of {', '.join(sorted(methods))}")
    count, method = methods[name]
    if len(arguments) != count:
        raise TextError(f"{name} takes {count} arguments, not {len(arguments)}")
    return method(owner, arguments, call)


def _moment(value: Any, name: str) -> datetime:
    if not isinstance(value, datetime):
        raise TextError(f"{name}: {shown(value)} is not a date")
    return value


def _span(value: Any, name: str) -> Duration:
    if is_integer(value):
        return Duration(value)
    if not isinstance(value, Duration):
        raise TextError(f"{name}: {shown(value)} is not a duration; use duration('1h')")
    return value


def unix_nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND * 1000


def _add_date(moment: datetime, arguments: Sequence[Any], _call: Call) -> datetime:
    """Add years, months and days. As in Go, a day after the end of a month moves into the next month."""
    for argument in arguments:
        if not is_integer(argument):
            raise TextError(f"AddDate: {shown(argument)} is not a whole number")
    years, months, days = arguments
    count = (moment.year + years) * 12 + moment.month - 1 + months
    year, month = divmod(count, 12)
    if not 1 <= year <= 9999 or abs(days) > 4_000_000:
        raise TextError(f"AddDate: the year {year} is outside 1 to 9999")
    offset = date(year, month + 1, 1).toordinal() + moment.day - 1 + days - moment.toordinal()
    return shifted(moment, timedelta(days=offset))


def _truncated(moment: datetime, span: Duration) -> datetime:
    if span.nanoseconds < 1000:
        return moment
    microseconds = (moment - _ZERO) // _MICROSECOND
    return moment - timedelta(microseconds=microseconds % (span.nanoseconds // 1000))


def _rounded(moment: datetime, span: Duration) -> datetime:
    if span.nanoseconds < 1000:
        return moment
    cut = _truncated(moment, span)
    return shifted(cut, span.timedelta) if (moment - cut) * 2 >= span.timedelta else cut


def _in_zone(moment: datetime, arguments: Sequence[Any], _call: Call) -> datetime:
    if not isinstance(arguments[0], tzinfo):
        raise TextError(f"In: {shown(arguments[0])} is not a time zone; use timezone('Europe/Zurich')")
    try:
        return moment.astimezone(arguments[0])
    except OverflowError as exc:
        raise TextError("In: the date is outside the years 1 to 9999") from exc


def _attribute(name: str) -> tuple[int, Method]:
    def attribute(moment: datetime, _arguments: Sequence[Any], _call: Call) -> int:
        return int(getattr(moment, name))

    return 0, attribute


def _compare(left: datetime, right: datetime) -> int:
    return (left > right) - (left < right)


_OF_MOMENT: dict[str, tuple[int, Method]] = {
    "Year": _attribute("year"),
    "Month": _attribute("month"),
    "Day": _attribute("day"),
    "Hour": _attribute("hour"),
    "Minute": _attribute("minute"),
    "Second": _attribute("second"),
    "Nanosecond": (0, lambda moment, _arguments, _call: moment.microsecond * 1000),
    "Weekday": (0, lambda moment, _arguments, _call: weekday(moment)),
    "YearDay": (0, lambda moment, _arguments, _call: moment.timetuple().tm_yday),
    "Unix": (0, lambda moment, _arguments, _call: unix_nanoseconds(moment) // 10**9),
    "UnixMilli": (0, lambda moment, _arguments, _call: unix_nanoseconds(moment) // 10**6),
    "UnixMicro": (0, lambda moment, _arguments, _call: unix_nanoseconds(moment) // 10**3),
    "UnixNano": (0, lambda moment, _arguments, _call: unix_nanoseconds(moment)),
    "Format": (1, lambda moment, arguments, _call: format_moment(moment, text(arguments[0], "Format"))),
    "String": (
        0,
        lambda moment, _arguments, _call: format_moment(moment, "2006-01-02 15:04:05.999999999 -0700 MST"),
    ),
    "Add": (1, lambda moment, arguments, call: add(moment, _span(arguments[0], "Add"), call.budget)),
    "Sub": (1, lambda moment, arguments, _call: subtract(moment, _moment(arguments[0], "Sub"))),
    "AddDate": (3, _add_date),
    "Before": (1, lambda moment, arguments, _call: moment < _moment(arguments[0], "Before")),
    "After": (1, lambda moment, arguments, _call: moment > _moment(arguments[0], "After")),
    "Equal": (1, lambda moment, arguments, _call: moment == _moment(arguments[0], "Equal")),
    "Compare": (1, lambda moment, arguments, _call: _compare(moment, _moment(arguments[0], "Compare"))),
    "In": (1, _in_zone),
    "UTC": (0, lambda moment, _arguments, _call: moment.astimezone(UTC)),
    "IsZero": (0, lambda moment, _arguments, _call: moment == _ZERO),
    "Truncate": (1, lambda moment, arguments, _call: _truncated(moment, _span(arguments[0], "Truncate"))),
    "Round": (1, lambda moment, arguments, _call: _rounded(moment, _span(arguments[0], "Round"))),
    "Location": (0, lambda moment, _arguments, _call: moment.tzinfo),
}


def _cut(value: Duration, span: Duration) -> Duration:
    if span.nanoseconds <= 0:
        return value
    return Duration(
        int(math.copysign(1, value.nanoseconds)) * (abs(value.nanoseconds) // span.nanoseconds * span.nanoseconds)
    )


def _round_span(value: Duration, span: Duration) -> Duration:
    if span.nanoseconds <= 0:
        return value
    size = (abs(value.nanoseconds) * 2 + span.nanoseconds) // (span.nanoseconds * 2) * span.nanoseconds
    return Duration(-size if value.nanoseconds < 0 else size)


_OF_DURATION: dict[str, tuple[int, Method]] = {
    "Hours": (0, lambda span, _arguments, _call: span.nanoseconds / 3.6e12),
    "Minutes": (0, lambda span, _arguments, _call: span.nanoseconds / 6e10),
    "Seconds": (0, lambda span, _arguments, _call: span.nanoseconds / 1e9),
    "Milliseconds": (0, lambda span, _arguments, _call: int(span.nanoseconds / 1e6)),
    "Microseconds": (0, lambda span, _arguments, _call: int(span.nanoseconds / 1e3)),
    "Nanoseconds": (0, lambda span, _arguments, _call: span.nanoseconds),
    "String": (0, lambda span, _arguments, _call: format_go_duration(span.nanoseconds)),
    "Abs": (0, lambda span, _arguments, _call: Duration(abs(span.nanoseconds))),
    "Round": (1, lambda span, arguments, _call: _round_span(span, _span(arguments[0], "Round"))),
    "Truncate": (1, lambda span, arguments, _call: _cut(span, _span(arguments[0], "Truncate"))),
}

_OF_ZONE: dict[str, tuple[int, Method]] = {
    "String": (0, lambda zone, _arguments, _call: str(zone)),
}
