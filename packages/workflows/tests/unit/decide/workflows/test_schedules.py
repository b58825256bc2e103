"""The moments of a schedule: as the library of Argo's controller finds them, also where clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.testing.examples import examples
from moorage_workflows.decide.workflows.schedules import (
    ScheduleError,
    in_words,
    latest_slot,
    next_slot,
    parse_timetable,
    slots,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
YEARS = examples(2, full=5)  # a leap day and eight changes of clocks are in the first two
FROM = datetime(2027, 1, 1, tzinfo=UTC)
UNTIL = FROM + YEARS * 366 * DAY
HALF_HOUR = "Australia/Lord_Howe"  # its clocks change by half an hour
ZONES = ("America/New_York", "Europe/Berlin", HALF_HOUR, "Africa/Cairo", "America/Havana", "Asia/Tokyo")


def table(*schedules: str, zone: str = "", anchor: datetime = START):
    return parse_timetable(schedules, zone, anchor=anchor)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        pytest.param("0/15 * * * *", "2012-07-09T14:45", "2012-07-09T15:00", id="from a minute on, in steps"),
        pytest.param("20-35/15 * * * *", "2012-07-09T15:45", "2012-07-09T16:20", id="a range in steps"),
        pytest.param("*/15 * * * *", "2012-07-09T23:46", "2012-07-10T00:00", id="over midnight"),
        pytest.param("0 0 9 Apr-Oct ?", "2012-07-09T23:35", "2012-08-09T00:00", id="names of months, and ?"),
        pytest.param("0 0 */5 Apr,Aug,Oct Mon", "2012-07-09T23:35", "2012-08-01T00:00", id="a stepped star"),
        pytest.param("0 0 */5 Oct Mon", "2012-07-09T23:35", "2012-10-01T00:00", id="either of two days"),
        pytest.param("0 0 * Feb Mon", "2012-07-09T23:35", "2013-02-04T00:00", id="the weekday alone"),
        pytest.param("0 0 * Feb Mon/2", "2012-07-09T23:35", "2013-02-01T00:00", id="from a weekday on, in steps"),
        pytest.param("0 0 29 Feb ?", "2012-07-09T23:35", "2016-02-29T00:00", id="leap day"),
        pytest.param("0 0 29 2 *", "2096-03-01T00:00", "2104-02-29T00:00", id="leap day over a year without one"),
        pytest.param("0 0 30 Feb ?", "2012-07-09T23:35", None, id="never"),
        pytest.param("@daily", "2012-07-09T23:35", "2012-07-10T00:00", id="daily"),
        pytest.param("@weekly", "2012-07-09T23:35", "2012-07-15T00:00", id="weekly is Sunday"),
        pytest.param("@yearly", "2012-07-09T23:35", "2013-01-01T00:00", id="yearly"),
        pytest.param("5,,10 * * * *", "2012-07-09T23:06", "2012-07-09T23:10", id="empty parts"),
        pytest.param("* * * * *", "2012-07-09T23:59:59.9", "2012-07-10T00:00", id="fractions of a second"),
        pytest.param(
            "TZ=America/New_York 30 2 11 Mar ?", "2012-03-11T05:00", "2013-03-11T06:30", id="skipped hour"
        ),
        pytest.param("CRON_TZ=America/New_York 0 * * * *", "2012-03-11T06:00", "2012-03-11T07:00", id="hourly"),
        pytest.param("TZ=America/New_York 0 1 * * *", "2012-11-04T05:00", "2012-11-04T06:00", id="repeated"),
        pytest.param("TZ=America/Sao_Paulo 0 9 10 * *", "2018-10-17T09:00", "2018-11-10T11:00", id="no midnight"),
    ],
)
def test_the_next_slot_of_a_schedule(schedule, after, expected):
    moment = next_slot(table(schedule), at(after + "+00:00"))
    assert moment == (None if expected is None else at(expected + "+00:00"))


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        pytest.param("", "it has 0 fields", id="empty"),
        pytest.param("* * * *", "it has 4 fields", id="four fields"),
        pytest.param("0 * * * * *", "it has 6 fields", id="seconds"),
        pytest.param("60 * * * *", "the field minute is '60'", id="out of range"),
        pytest.param("0 0 0 * *", "use 1 to 31", id="day 0"),
        pytest.param("0 0 * * 7", "use 0 to 6, or sun to sat", id="Sunday is 0 only"),
        pytest.param("0 0 * * MON-5-6", "more than one '-'", id="two hyphens"),
        pytest.param("*/2/3 * * * *", "more than one '/'", id="two slashes"),
        pytest.param("*/0 * * * *", "a step of 0", id="step of nothing"),
        pytest.param("5-1 * * * *", "out of range", id="backwards"),
        pytest.param(", * * * *", "no value", id="a comma alone"),
        pytest.param("x * * * *", "'x' is not a number", id="a word"),
        pytest.param("@fortnightly", "use five fields, or one of", id="unknown descriptor"),
        pytest.param("@every 1d", "use a span with units h, m and s", id="days in a span"),
        pytest.param("@every 99999999h", "more than a hundred years", id="a span too long"),
        pytest.param("TZ=Mars/Olympus 0 * * * *", "invalid time zone 'Mars/Olympus'", id="no such zone"),
    ],
)
def test_an_invalid_schedule_is_refused_with_what_is_allowed(schedule, problem):
    with pytest.raises(ScheduleError) as refused:
        table(schedule)
    assert problem in refused.value.message


def test_a_time_zone_is_given_once():
    with pytest.raises(ScheduleError, match="`timezone` names a time zone too"):
        table("TZ=UTC 0 * * * *", zone="Asia/Tokyo")


def test_a_time_zone_moves_the_slots():
    assert next_slot(table("0 19 * * *", zone="Asia/Tokyo"), START) == at("2026-01-01T10:00+00:00")


def test_every_counts_from_the_anchor_whenever_it_is_asked():
    timetable = table("@every 1h30m", anchor=at("2026-01-01T00:10:00.7+00:00"))
    day = list(slots(timetable, START, START + 5 * HOUR))
    assert day == [START + timedelta(minutes=minutes) for minutes in (100, 190, 280)]
    assert next_slot(timetable, START + 4 * HOUR) == day[-1]


@pytest.mark.parametrize(("span", "seconds"), [("10ms", 1), ("1.9s", 1), ("1h1m1.5s", 3661), ("-5s", 1)])
def test_spans_are_whole_seconds(span, seconds):
    assert next_slot(table(f"@every {span}"), START) == START + timedelta(seconds=seconds)


def test_a_minute_of_two_schedules_is_one_slot():
    both = list(slots(table("*/10 * * * *", "*/15 * * * *"), START - MINUTE, START + 30 * MINUTE))
    assert both == [START + minutes * MINUTE for minutes in (0, 10, 15, 20, 30)]


ZONED = st.sampled_from((*ZONES, "Europe/London", "America/Santiago", "America/St_Johns", "Pacific/Apia", "UTC"))
TRANSITIONS = (  # moments near which some clock above is changed
    "2026-03-08T07:00", "2026-11-01T06:00", "2026-03-29T01:00", "2026-10-25T01:00", "2026-04-04T15:00",
    "2026-10-03T15:30", "2026-04-23T22:00", "2026-10-29T21:00", "2026-09-06T04:00", "2011-12-30T10:00",
    "2006-10-29T02:31", "2018-11-04T03:00", "2026-06-15T00:00",
)  # fmt: skip


@st.composite
def schedules(draw):
    def field(low: int, high: int) -> str:
        first, second = draw(st.integers(low, high)), draw(st.integers(low, high))
        kind = draw(st.sampled_from(("*", "one", "range", "list", "step")))
        first, second = min(first, second), max(first, second)
        return {
            "*": "*",
            "one": str(first),
            "range": f"{first}-{second}",
            "list": f"{first},{second}",
            "step": f"*/{draw(st.integers(1, 20))}",
        }[kind]

    return " ".join((field(0, 59), field(0, 23), field(1, 31), "*", field(0, 6)))


def minutes_by_definition(schedule: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """Every minute whose wall clock reads as the schedule says, upcoming by looking at each."""

    def values(text: str, low: int, high: int) -> set[int]:
        out: set[int] = set()
        for part in text.split(","):
            body, _, step = part.partition("/")
            first, _, last = body.partition("-")
            begin, end = (low, high) if body == "*" else (int(first), int(last or first))
            out |= set(range(begin, end + 1, int(step or 1)))
        return out

    words = schedule.split()
    minutes, hours, days = values(words[0], 0, 59), values(words[1], 0, 23), values(words[2], 1, 31)
    weekdays = values(words[4], 0, 6)
    is_open = any(word in ("*", "*/1") for word in (words[2], words[4]))
    moment, out = after.replace(second=0, microsecond=0) + MINUTE, []
    while moment <= until:
        wall = moment.astimezone(ZoneInfo(zone))
        by_date, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        is_day = (by_date and by_weekday) if is_open else (by_date or by_weekday)
        if wall.minute in minutes and wall.hour in hours and is_day:
            out.append(moment)
        moment += MINUTE
    return out


@given(schedules(), ZONED, st.sampled_from(TRANSITIONS), st.integers(-2000, 2000))
def test_a_slot_is_each_minute_whose_wall_clock_reads_so(schedule, zone, middle, shift):
    after = at(middle + "+00:00") + shift * MINUTE
    until = after + timedelta(hours=40)
    timetable = table(schedule, zone=zone)
    expected = minutes_by_definition(schedule, zone, after, until)
    assert list(slots(timetable, after, until)) == expected
    assert latest_slot(timetable, after, until) == (expected[-1] if expected else None)
    assert all(next_slot(timetable, slot - MINUTE / 60) == slot for slot in expected[:5])


@pytest.mark.parametrize("zone", [zone for zone in ZONES if zone != HALF_HOUR])
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param("*/20 */6 * * *", id="steps"),
        pytest.param("7 * * * 1", id="a weekday"),
        pytest.param("*/30 2 1-7 * *", id="a range"),
        pytest.param("0 * * 3,10,11 *", id="a list"),
        pytest.param("*/15 9-17 * * mon-fri", id="names of weekdays"),
        pytest.param("*/10 6,18 1,15 jan,MAR-apr,Oct *", id="names of months"),
    ],
)
def test_years_agree_with_another_library(schedule, zone):
    """With a star in the minutes or the hours both libraries take clocks as they are.

    But for a change of half an hour: the other one goes on by whole hours then, and misses full hours.
    """
    other = CronSim(schedule, FROM.astimezone(ZoneInfo(zone)))
    theirs = [moment.astimezone(UTC) for moment in _until(other, UNTIL)]
    assert list(slots(table(schedule, zone=zone), FROM, UNTIL)) == theirs


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin"])
def test_years_of_two_schedules_are_those_of_both(zone):
    both = ("*/20 */6 * * *", "7 * * * 1")
    moments = {
        moment.astimezone(UTC)
        for schedule in both
        for moment in _until(CronSim(schedule, FROM.astimezone(ZoneInfo(zone))), UNTIL)
    }
    assert list(slots(table(*both, zone=zone), FROM, UNTIL)) == sorted(moments)
    by_prefix = table(*(f"CRON_TZ={zone} {schedule}" for schedule in both))
    assert list(slots(by_prefix, FROM, UNTIL)) == sorted(moments)


@pytest.mark.parametrize(
    ("short", "schedule"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@weekly", "0 0 * * sun"),
        ("@monthly", "0 0 1 * *"),
    ],
)
def test_years_of_a_short_form_are_those_of_its_fields(short, schedule):
    zone = "America/Havana"  # its clocks change at midnight
    assert list(slots(table(short, zone=zone), FROM, UNTIL)) == list(
        slots(table(schedule, zone=zone), FROM, UNTIL)
    )


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("schedule", ["30 2 * * *", "30 1 * * *", "0 0 * * *", "15,45 0-3 * * *", "30 23 * * *"])
def test_years_differ_from_debian_where_clocks_change_alone(schedule, zone):
    """Debian's cron runs what was skipped right after, and what is repeated once; Argo's library does neither."""
    place = ZoneInfo(zone)
    theirs = {moment.astimezone(UTC) for moment in _until(CronSim(schedule, FROM.astimezone(place)), UNTIL)}
    ours = set(slots(table(schedule, zone=zone), FROM, UNTIL))
    for slot in ours - theirs:
        assert slot.astimezone(place).fold == 1  # the second time of that hour
    for slot in theirs - ours:
        before = (slot - timedelta(seconds=1)).astimezone(place)
        assert before.utcoffset() != slot.astimezone(place).utcoffset()  # the clocks skipped to here
    assert len(ours ^ theirs) <= YEARS * 2 * 2 * 8


def _until(moments, until):
    for moment in moments:
        if moment > until:
            return
        yield moment


@given(schedules(), ZONED, st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1)))
def test_slots_are_in_order_and_after_the_moment(schedule, zone, after):
    after = after.replace(tzinfo=UTC)
    upcoming = list(islice(slots(table(schedule, zone=zone), after), 50))
    assert all(earlier < later for earlier, later in pairwise([after, *upcoming]))


@given(st.text(max_size=40) | st.lists(st.text("0123456789*/,-?LW# @", max_size=5), max_size=6).map(" ".join))
def test_any_text_is_a_schedule_or_refused(text):
    try:
        timetable = table(text)
    except ScheduleError:
        return
    next_slot(timetable, START)
    assert in_words(text)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        pytest.param("0 19 * * *", "At 19:00 every day", id="daily"),
        pytest.param("CRON_TZ=Asia/Tokyo 0 9 * * mon-fri", "At 09:00 on Monday through Friday", id="weekdays"),
        pytest.param("@hourly", "At the start of every hour", id="hourly"),
        pytest.param("@every 90m", "Every 90m", id="a span"),
        pytest.param("x", "x", id="no schedule: as it is"),
    ],
)
def test_a_schedule_in_words(schedule, words):
    assert in_words(schedule) == words
