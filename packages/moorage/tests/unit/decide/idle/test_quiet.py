"""Quiet hours: nothing happens in them, and they do not count."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.idle.quiet import add_loud, quiet_until
from moorage.model.idle import QuietTimes

TOKYO = ZoneInfo("Asia/Tokyo")
NIGHTS = (frozenset(range(5)), time(20), time(8))
WEEKEND = (frozenset({5, 6}), time(0), time(0))
QUIET = QuietTimes(TOKYO, (NIGHTS, WEEKEND))
HOUR = timedelta(hours=1)


def tokyo(day, hour, minute=0):
    """A time of January 2026; the 5th is a Monday."""
    return datetime(2026, 1, day, hour, minute, tzinfo=TOKYO).astimezone(UTC)


def test_a_night_ends_in_the_morning():
    assert quiet_until(QUIET, tokyo(5, 23)) == tokyo(6, 8)
    assert quiet_until(QUIET, tokyo(6, 7, 59)) == tokyo(6, 8)
    assert quiet_until(QUIET, tokyo(6, 8)) is None


def test_a_night_that_touches_the_weekend_lasts_until_it_is_over():
    assert quiet_until(QUIET, tokyo(9, 21)) == tokyo(12, 0)  # Friday evening to Monday


def test_quiet_time_does_not_count():
    assert add_loud(QUIET, tokyo(9, 18), 4 * HOUR) == tokyo(12, 2)
    assert add_loud(QUIET, tokyo(5, 23), HOUR) == tokyo(6, 9)
    assert add_loud(None, tokyo(5, 23), HOUR) == tokyo(6, 0)


moments = st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 1)).map(lambda at: at.replace(tzinfo=UTC))
zones = st.sampled_from(["UTC", "Asia/Tokyo", "Europe/Berlin", "America/St_Johns"]).map(ZoneInfo)
spans = st.tuples(
    st.frozensets(st.integers(0, 4), min_size=1), st.integers(0, 23).map(time), st.integers(0, 23).map(time)
)
quiets = st.builds(QuietTimes, zones, st.lists(spans, min_size=1, max_size=3).map(tuple))


@given(quiets, moments, st.timedeltas(timedelta(minutes=1), timedelta(days=4)))
def test_a_moment_reached_is_never_quiet_and_never_early(quiet, start, span):
    at = add_loud(quiet, start, span)
    assert quiet_until(quiet, at) is None
    assert at >= start + span


@given(quiets, moments, st.timedeltas(timedelta(minutes=1), timedelta(days=2)))
def test_two_spans_after_each_other_are_as_one(quiet, start, span):
    assert add_loud(quiet, add_loud(quiet, start, span), span) == add_loud(quiet, start, 2 * span)
