"""Dates in Go's layouts."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text import moments
from moorage_workflows.decide.workflows.text.moments import format_moment, parse_moment

MOMENT = datetime(2024, 2, 5, 7, 8, 9, 120000, tzinfo=UTC)
EVENING = datetime(2009, 11, 10, 23, 0, 0, tzinfo=timezone(timedelta(hours=-7, minutes=-30)))


@pytest.mark.parametrize(
    ("layout", "morning", "evening"),
    [
        (moments.RFC3339, "2024-02-05T07:08:09Z", "2009-11-10T23:00:00-07:30"),
        (moments.RFC3339_NANO, "2024-02-05T07:08:09.12Z", "2009-11-10T23:00:00-07:30"),
        (moments.ANSIC, "Mon Feb  5 07:08:09 2024", "Tue Nov 10 23:00:00 2009"),
        (moments.RUBY_DATE, "Mon Feb 05 07:08:09 +0000 2024", "Tue Nov 10 23:00:00 -0730 2009"),
        (moments.RFC850, "Monday, 05-Feb-24 07:08:09 UTC", "Tuesday, 10-Nov-09 23:00:00 -0730"),
        (moments.KITCHEN, "7:08AM", "11:00PM"),
        ("2006-01-02 15:04:05.000", "2024-02-05 07:08:09.120", "2009-11-10 23:00:00.000"),
        ("January 2 '06 at 03:04 pm", "February 5 '24 at 07:08 am", "November 10 '09 at 11:00 pm"),
        ("Jan _2 002 __2 1/2 3.4.5", "Feb  5 036  36 2/5 7.8.9", "Nov 10 314 314 11/10 11.0.0"),
        ("20060102150405Z07", "20240205070809Z", "20091110230000-07"),
        ("no element", "no element", "no element"),
    ],
)
def test_a_moment_is_written_in_a_layout(layout, morning, evening):
    assert (format_moment(MOMENT, layout), format_moment(EVENING, layout)) == (morning, evening)


@pytest.mark.parametrize(
    ("text", "layout", "want"),
    [
        ("2024-02-05T07:08:09.120Z", moments.RFC3339, MOMENT),
        ("2024-02-05 07:08:09,12", "2006-01-02 15:04:05", MOMENT),
        ("2009-11-10T23:00:00-07:30", moments.RFC3339, EVENING),
        ("feb 5 2024 7:08 am", "Jan 2 2006 3:04 pm", datetime(2024, 2, 5, 7, 8, tzinfo=UTC)),
        ("12:30AM", moments.KITCHEN, datetime(1, 1, 1, 0, 30, tzinfo=UTC)),
        ("69-01-01", "06-01-02", datetime(1969, 1, 1, tzinfo=UTC)),
        ("2024 060", "2006 002", datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_in_a_layout(text, layout, want):
    assert parse_moment(text, layout) == want


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("2024-02-30", "2006-01-02"),
        ("2024-2-3", "2006-01-02"),
        ("24:00", "15:04"),
        ("13:00PM", moments.KITCHEN),
        ("2024-01-01T00:00:00+99:00", moments.RFC3339),
        ("", "2006"),
        ("٢٠٢٤", "2006"),
    ],
)
def test_what_does_not_fit_a_layout_is_refused(text, layout):
    with pytest.raises(TextError, match="date"):
        parse_moment(text, layout)


OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30), timezones=OFFSETS))
def test_what_is_written_is_read_again(moment):
    assert parse_moment(format_moment(moment, moments.RFC3339_NANO), moments.RFC3339_NANO) == moment
    assert parse_moment(format_moment(moment, moments.RUBY_DATE), moments.RUBY_DATE) == moment.replace(
        microsecond=0
    )


@given(st.text(alphabet="0123456789JanuaryMonPMZ.,:-_ ", max_size=30))
def test_any_layout_can_be_written_and_read_or_refused(layout):
    text = format_moment(MOMENT, layout)
    with contextlib.suppress(TextError):
        parse_moment(text, layout)
