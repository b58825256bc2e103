"""Durations of manifests."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text.durations import (
    NANOSECONDS,
    format_go_duration,
    go_nanoseconds,
    parse_duration,
    parse_go_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("0", 0, id="zero needs no unit"),
        pytest.param("90", 90, id="a whole number is seconds"),
        pytest.param("-90", -90, id="a whole number may have a sign"),
        pytest.param("10s", 10, id="seconds"),
        pytest.param("1h30m", 5400, id="parts add up"),
        pytest.param("1.5s", 1.5, id="a fraction"),
        pytest.param(".5h", 1800, id="a fraction alone"),
        pytest.param("1.s", 1, id="a point alone"),
        pytest.param("-1.5s", -1.5, id="a sign is for the whole"),
        pytest.param("+3ms", 0.003, id="plus"),
        pytest.param("250us", 0.00025, id="microseconds"),
        pytest.param("250µs", 0.00025, id="microseconds with the micro sign"),
        pytest.param("250μs", 0.00025, id="microseconds with the Greek letter"),
        pytest.param("999ns", 0, id="less than a microsecond is cut off"),
        pytest.param("-1999ns", -0.000001, id="towards zero"),
        pytest.param("1m1m", 120, id="a unit may come twice"),
    ],
)
def test_a_duration_is_read(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "write a number with a unit", id="nothing"),
        pytest.param("-", "write a number with a unit", id="a sign alone"),
        pytest.param("h", "write a number with a unit", id="a unit alone"),
        pytest.param(".s", "write a number with a unit", id="a point without digits"),
        pytest.param("1h30", "a number has no unit", id="the last part without a unit"),
        pytest.param("1d", "write days as hours", id="days, which Go does not know"),
        pytest.param("1 h", "is not a unit", id="a space"),
        pytest.param("1e3s", "is not a unit", id="an exponent"),
        pytest.param("1H", "is not a unit", id="a capital letter"),
        pytest.param("٣s", "write a number with a unit", id="other digits than 0 to 9"),
        pytest.param("9999999999h", "292 years", id="more than 64 bits of nanoseconds"),
        pytest.param("9" * 40, "292 years", id="far too many seconds"),
        pytest.param("9" * 40 + "h", "292 years", id="far too many hours"),
    ],
)
def test_what_is_no_duration_is_refused_with_its_text(text, why):
    with pytest.raises(TextError, match=why) as caught:
        parse_duration(text)
    assert repr(text[:20])[:-1] in caught.value.message


def test_go_s_form_alone_needs_a_unit():
    assert parse_go_duration("0") == timedelta()
    with pytest.raises(TextError, match="has no unit"):
        parse_go_duration("90")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (2_000_000, "2ms"),
        (1_500_000_000, "1.5s"),
        (60_000_000_000, "1m0s"),
        (5_400_000_000_000, "1h30m0s"),
        (-3_600_000_000_000, "-1h0m0s"),
    ],
)
def test_a_duration_is_written_as_go_writes_it(nanoseconds, text):
    assert format_go_duration(nanoseconds) == text


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_what_is_written_is_read_again(nanoseconds):
    assert go_nanoseconds(format_go_duration(nanoseconds)) == nanoseconds


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(sorted(NANOSECONDS))), min_size=1, max_size=5))
def test_parts_add_up(parts):
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert go_nanoseconds(text) == sum(number * NANOSECONDS[unit] for number, unit in parts)


@given(st.text(alphabet="0123456789.+-hmsnuµ de", max_size=30) | st.text(max_size=30))
def test_any_text_is_a_duration_or_refused(text):
    with contextlib.suppress(TextError):
        assert isinstance(parse_duration(text), timedelta)
