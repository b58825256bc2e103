"""Dates in Go's way: layouts that show how the reference moment is written.

The reference is Mon Jan 2 15:04:05 MST 2006. https://pkg.go.dev/time#pkg-constants
Moments are exact to a microsecond.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from moorage.decide.workflows.text.errors import TextError

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
RFC3339 = "2006-01-02T15:04:05Z07:00"
RFC3339_NANO = "2006-01-02T15:04:05.999999999Z07:00"
RFC822 = "02 Jan 06 15:04 MST"
RFC850 = "Monday, 02-Jan-06 15:04:05 MST"
RFC1123 = "Mon, 02 Jan 2006 15:04:05 MST"
ANSIC = "Mon Jan _2 15:04:05 2006"
UNIX_DATE = "Mon Jan _2 15:04:05 MST 2006"
RUBY_DATE = "Mon Jan 02 15:04:05 -0700 2006"
KITCHEN = "3:04PM"

# longer ones first, where one begins another
_ELEMENT = re.compile(
    r"(?P<element>January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|2006|002|__2|_2(?!006)|01|02|03|04|05|06|15|PM|pm"
    r"|-07:00:00|-07:00|-0700|-07|Z07:00:00|Z07:00|Z0700|Z07|[.,]0+(?![0-9])|[.,]9+(?![0-9])|1|2|3|4|5)"
)
_DIGITS = {"2006": r"\d{4}", "002": r"\d{3}", "__2": r" {0,2}\d{1,3}", "_2": r" ?\d{1,2}"}
_DIGITS |= dict.fromkeys(("01", "02", "03", "04", "05", "06", "15"), r"\d{2}")
_DIGITS |= dict.fromkeys(("1", "2", "3", "4", "5"), r"\d{1,2}")
_FIELDS = {
    "2006": "year",
    "06": "short_year",
    "01": "month",
    "1": "month",
    "02": "day",
    "2": "day",
    "_2": "day",
    "002": "year_day",
    "__2": "year_day",
    "15": "hour",
    "03": "half_hour",
    "3": "half_hour",
    "04": "minute",
    "4": "minute",
    "05": "second",
    "5": "second",
}


def zone(name: str) -> tzinfo:
    """A time zone by its name in the IANA database. Raises TextError, naming it."""
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise TextError(f"unknown time zone {name!r}: use a name such as Europe/Zurich") from exc


@lru_cache(maxsize=256)
def _split(layout: str) -> tuple[str, ...]:
    """Literal text at even places, elements of the reference moment at odd ones."""
    parts = _ELEMENT.split(layout)
    # a fraction counts as one only after seconds
    return tuple(parts)


def rfc3339(moment: datetime) -> str:
    """The moment as Go writes it in JSON."""
    return format_moment(moment, RFC3339_NANO)


def format_moment(moment: datetime, layout: str) -> str:
    """Write a moment in a Go layout."""
    parts = list(_split(layout))
    for index in range(1, len(parts), 2):
        parts[index] = _element(moment, parts[index])
    return "".join(parts)


def _element(moment: datetime, element: str) -> str:
    match element:
        case "January":
            return MONTHS[moment.month - 1]
        case "Jan":
            return MONTHS[moment.month - 1][:3]
        case "Monday":
            return WEEKDAYS[weekday(moment)]
        case "Mon":
            return WEEKDAYS[weekday(moment)][:3]
        case "MST":
            return zone_name(moment)
        case "2006":
            return f"{moment.year:04d}"
        case "06":
            return f"{moment.year % 100:02d}"
        case "01":
            return f"{moment.month:02d}"
        case "1":
            return str(moment.month)
        case "02":
            return f"{moment.day:02d}"
        case "_2":
            return f"{moment.day:2d}"
        case "2":
            return str(moment.day)
        case "002":
            return f"{moment.timetuple().tm_yday:03d}"
        case "__2":
            return f"{moment.timetuple().tm_yday:3d}"
        case "15":
            return f"{moment.hour:02d}"
        case "03":
            return f"{moment.hour % 12 or 12:02d}"
        case "3":
            return str(moment.hour % 12 or 12)
        case "04":
            return f"{moment.minute:02d}"
        case "4":
            return str(moment.minute)
        case "05":
            return f"{moment.second:02d}"
        case "5":
            return str(moment.second)
        case "PM":
            return "PM" if moment.hour >= 12 else "AM"
        case "pm":
            return "pm" if moment.hour >= 12 else "am"
    if element[0] in ".,":
        digits = f"{moment.microsecond:06d}000"[: len(element) - 1]
        digits = digits.ljust(len(element) - 1, "0")
        if element[1] == "9":
            digits = digits.rstrip("0")
        return element[0] + digits if digits else ""
    return _offset(moment, element)


def _offset(moment: datetime, element: str) -> str:
    seconds = round((moment.utcoffset() or timedelta()).total_seconds())
    if element[0] == "Z" and seconds == 0:
        return "Z"
    sign, seconds = ("-", -seconds) if seconds < 0 else ("+", seconds)
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    match element[1:]:
        case "07":
            return f"{sign}{hours:02d}"
        case "0700":
            return f"{sign}{hours:02d}{minutes:02d}"
        case "07:00":
            return f"{sign}{hours:02d}:{minutes:02d}"
    return f"{sign}{hours:02d}:{minutes:02d}:{rest:02d}"


def weekday(moment: datetime) -> int:
    """The day of the week, Sunday 0."""
    return moment.isoweekday() % 7


def zone_name(moment: datetime) -> str:
    """The zone's short name; its offset where it has none."""
    name = moment.tzname() or "UTC"
    return _offset(moment, "-0700") if name.startswith("UTC") and name != "UTC" else name


def parse_moment(text: str, layout: str, where: tzinfo = UTC) -> datetime:
    """Read a moment in a Go layout, in a zone unless the text names one. Raises TextError, naming both."""
    match = _pattern(layout).fullmatch(text)
    if match is None:
        raise TextError(f"date {text[:60]!r} does not have the form {layout!r}")
    fields = match.groupdict()
    try:
        return _moment(fields, where)
    except ValueError as exc:
        raise TextError(f"date {text[:60]!r} has a part out of range: {exc}") from exc


@lru_cache(maxsize=256)
def _pattern(layout: str) -> re.Pattern[str]:
    seen: set[str] = set()
    written: list[str] = []
    parts = _split(layout)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            written.append(re.escape(part))
            continue
        body, name = _element_pattern(part)
        follows = parts[index + 1] if index + 1 < len(parts) else ""
        if name in seen:
            written.append(f"(?:{body})")
        else:
            seen.add(name)
            written.append(f"(?P<{name}>{body})")
        after = parts[index + 2] if index + 2 < len(parts) else ""
        if part in ("05", "5") and not (not follows and after[:1] in (".", ",")):
            written.append("(?P<loose>[.,][0-9]{1,9})?" if "loose" not in seen else "")
            seen.add("loose")
    return re.compile("".join(written), re.IGNORECASE | re.ASCII)


def _element_pattern(element: str) -> tuple[str, str]:
    """The pattern of an element, and the field it gives."""
    match element:
        case "January":
            return "|".join(MONTHS), "month_name"
        case "Jan":
            return "|".join(name[:3] for name in MONTHS), "month_name"
        case "Monday":
            return "|".join(WEEKDAYS), "weekday"
        case "Mon":
            return "|".join(name[:3] for name in WEEKDAYS), "weekday"
        case "MST":
            return "[A-Za-z]{3,5}|[+-][0-9]{2}(?:[0-9]{2})?", "zone_name"
        case "PM" | "pm":
            return "AM|PM", "half"
    if element in _FIELDS:
        return _DIGITS[element], _FIELDS[element]
    if element[0] in ".,":
        return (r"[.,][0-9]{1,9}" if element[1] == "0" else r"(?:[.,][0-9]{1,9})?"), "fraction"
    if element[0] == "Z":
        return f"Z|{_offset_pattern(element[1:])}", "offset"
    return _offset_pattern(element[1:]), "offset"


def _offset_pattern(form: str) -> str:
    match form:
        case "07":
            return r"[+-][0-9]{2}"
        case "0700":
            return r"[+-][0-9]{4}"
        case "07:00":
            return r"[+-][0-9]{2}:[0-9]{2}"
    return r"[+-][0-9]{2}:[0-9]{2}:[0-9]{2}"


def _moment(fields: dict[str, str | None], where: tzinfo) -> datetime:
    def number(name: str, default: int) -> int:
        value = fields.get(name)
        return int(value) if value else default

    year = number("year", 1)  # Go's year 0, which Python does not have
    if short := fields.get("short_year"):
        year = int(short) + (1900 if int(short) >= 69 else 2000)
    month = number("month", 1)
    if name := fields.get("month_name"):
        month = 1 + [month_name[:3].lower() for month_name in MONTHS].index(name[:3].lower())
    hour = number("hour", 0)
    if fields.get("half_hour"):
        hour = number("half_hour", 0)
        if hour > 12:
            raise ValueError("the hour is above 12")
    if half := fields.get("half"):
        hour = hour % 12 + (12 if half.lower() == "pm" else 0)
    fraction = (fields.get("fraction") or fields.get("loose") or "")[1:]
    moment = datetime(
        max(year, 1),
        month,
        number("day", 1),
        hour,
        number("minute", 0),
        number("second", 0),
        int(fraction[:6].ljust(6, "0")) if fraction else 0,
        tzinfo=_zone_of(fields, where),
    )
    if year_day := number("year_day", 0):
        moment = moment.replace(month=1, day=1) + timedelta(days=year_day - 1)
    return moment


def _zone_of(fields: dict[str, str | None], where: tzinfo) -> tzinfo:
    if offset := fields.get("offset"):
        if offset in ("Z", "z"):
            return UTC
        digits = offset[1:].replace(":", "").ljust(6, "0")
        span = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:]))
        if not span:
            return UTC
        if span >= timedelta(hours=24):
            raise ValueError(f"the zone {offset} is a day or more from UTC")
        return timezone(-span if offset[0] == "-" else span)
    name = fields.get("zone_name")
    if name is None or name.upper() in ("UTC", "GMT"):
        return UTC if name else where
    return timezone(timedelta(0), name)  # Go too knows no offset for a short name
