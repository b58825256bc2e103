"""Format and parse dates as Go does: a layout shows how the reference time is written.

The reference is Mon Jan 2 15:04:05 MST 2006. https://pkg.go.dev/time#pkg-constants
Times are exact to a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from moorage.decide.evaluation import TextError, TooMuchWork
from moorage_workflows.decide.workflows.text.limits import LAYOUT_CHARACTERS

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
# the fewest and the most digits of a number; the most blanks before it
_DIGITS = {"2006": (4, 4, 0), "002": (3, 3, 0), "__2": (1, 3, 2), "_2": (1, 2, 1)}
_DIGITS |= dict.fromkeys(("01", "02", "03", "04", "05", "06", "15"), (2, 2, 0))
_DIGITS |= dict.fromkeys(("1", "2", "3", "4", "5"), (1, 2, 0))
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
    """Return a time zone of the IANA database. Raises TextError with its name."""
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise TextError(f"unknown time zone {name!r}: use a name such as Europe/Zurich") from exc


@lru_cache(maxsize=256)
def _split(layout: str) -> tuple[str, ...]:
    """Split a layout: literal text at even indexes, elements of the reference time at odd ones.

    Raises TooMuchWork.
    """
    if len(layout) > LAYOUT_CHARACTERS:
        raise TooMuchWork(
            f"the layout of a date has {len(layout):,} characters; the limit is {LAYOUT_CHARACTERS:,}"
        )
    return tuple(_ELEMENT.split(layout))


def rfc3339(moment: datetime) -> str:
    """Return a time as Go writes it in JSON."""
    return format_moment(moment, RFC3339_NANO)


def format_moment(moment: datetime, layout: str) -> str:
    """Format a time with a Go layout."""
    parts = list(_split(layout))
    for index in range(1, len(parts), 2):
        parts[index] = _element(moment, parts[index])
    return "".join(parts)


def _element(moment: datetime, element: str) -> str:
    # elements of a date, by Go's reference time
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
        # elements of a time
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
    # fractions of a second: 0 pads, 9 drops trailing zeros
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
    """Return the day of the week; Sunday is 0."""
    return moment.isoweekday() % 7


def zone_name(moment: datetime) -> str:
    """Return the short name of the zone; its offset if it has none."""
    name = moment.tzname() or "UTC"
    return _offset(moment, "-0700") if name.startswith("UTC") and name != "UTC" else name


def parse_moment(text: str, layout: str, where: tzinfo = UTC) -> datetime:
    """Parse a time with a Go layout, in the zone `where` unless the text has a zone. Raises TextError with both.

    Each element takes as much of the text as it can, without backtracking. As in Go, the work grows only with the
    length of the layout.
    """
    fields = _read(text, _split(layout))
    if fields is None:
        raise TextError(f"date {text[:60]!r} does not have the form {layout[:60]!r}")
    try:
        return _moment(fields, where)
    except ValueError as exc:
        raise TextError(f"date {text[:60]!r} has a part out of range: {exc}") from exc


def _read(text: str, parts: Sequence[str]) -> dict[str, str] | None:
    """The text of each field, at its first place; None where the text has another form."""
    fields: dict[str, str] = {}
    place = 0
    for index, part in enumerate(parts):
        if index % 2 == 0:
            if text[place : place + len(part)].lower() != part.lower():
                return None
            place += len(part)
            continue
        taken = _take(text, place, part)
        if taken is None:
            return None
        name, value, place = taken
        if value:
            fields.setdefault(name, value)
        follows, after = [*parts[index + 1 : index + 3], "", ""][:2]
        if part in ("05", "5") and (follows or after[:1] not in (".", ",")):
            end = _fraction_end(text, place)  # a fraction that the layout does not show
            fields.setdefault("loose", text[place:end])
            place = end
    return fields if place == len(text) else None


def _take(text: str, place: int, element: str) -> tuple[str, str, int] | None:
    """Read an element at `place`. Returns its field, its text and its end; None if the text has another format."""
    if element in _FIELDS:
        least, most, blanks = _DIGITS[element]
        for _ in range(blanks):
            place += text.startswith(" ", place)
        end = _digits_end(text, place, most)
        return (_FIELDS[element], text[place:end], end) if end - place >= least else None
    match element:
        case "January" | "Jan":
            return _take_name(text, place, MONTHS, "month_name", 3 if element == "Jan" else None)
        case "Monday" | "Mon":
            return _take_name(text, place, WEEKDAYS, "weekday", 3 if element == "Mon" else None)
        case "PM" | "pm":
            return _take_name(text, place, ("AM", "PM"), "half", None)
        case "MST":
            return _take_zone(text, place)
    if element[0] in ".,":
        end = _fraction_end(text, place)
        return ("fraction", text[place:end], end) if end > place or element[1] == "9" else None
    if element[0] == "Z" and text[place : place + 1] in ("Z", "z"):
        return "offset", "Z", place + 1
    end = place + len(element)
    offset = text[place:end]
    is_like = len(offset) == len(element) and offset[0] in "+-" and all(
        _is_digit(sign) if shape.isdigit() else sign == shape
        for sign, shape in zip(offset[1:], element[1:], strict=True)
    )  # fmt: skip
    return ("offset", offset, end) if is_like else None


def _take_name(
    text: str, place: int, names: Sequence[str], field: str, letters: int | None
) -> tuple[str, str, int] | None:
    for name in names:
        written = name[:letters]
        if text[place : place + len(written)].lower() == written.lower():
            return field, written, place + len(written)
    return None


def _take_zone(text: str, place: int) -> tuple[str, str, int] | None:
    """Read a zone: a short name of 3 to 5 letters, or an offset of hours, with or without minutes."""
    end = place
    if text[place : place + 1] in ("+", "-"):
        end = _digits_end(text, place + 1, 4)
        end -= (end - place - 1) % 2
        return ("zone_name", text[place:end], end) if end - place > 2 else None
    if text[place : place + 3].upper() == "UTC":
        return "zone_name", text[place : place + 3], place + 3
    while end - place < 5 and text[end : end + 1].isascii() and text[end : end + 1].isalpha():
        end += 1
    return ("zone_name", text[place:end], end) if end - place >= 3 else None


def _fraction_end(text: str, place: int) -> int:
    """Return the end of a fraction of 1 to 9 digits; `place` if there is none."""
    if text[place : place + 1] not in (".", ","):
        return place
    end = _digits_end(text, place + 1, 9)
    return end if end > place + 1 else place


def _digits_end(text: str, place: int, most: int) -> int:
    end = place
    while end - place < most and _is_digit(text[end : end + 1]):
        end += 1
    return end


def _is_digit(character: str) -> bool:
    return character.isascii() and character.isdigit()


def _moment(fields: Mapping[str, str], where: tzinfo) -> datetime:
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


def _zone_of(fields: Mapping[str, str], where: tzinfo) -> tzinfo:
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
