"""Whole numbers from outside: ASCII digits, within bounds, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import NumberError
from moorage_kube.integers import INT64_MAX, integer_or, is_digits, parse_integer

ODD = [
    "",
    "²",
    "٣",
    "１",
    "1_000",
    " 7 ",
    "7\n",
    "--7",
    "+",
    "-",
    "1e3",
    "0x10",
    "7.0",
    "NaN",
    "9" * 5000,
    "-9" * 3,
]


@given(st.integers(-(2**70), 2**70), st.integers(-(2**64), 2**64), st.integers(0, 2**64))
def test_a_number_is_read_exactly_when_it_is_in_range(value: int, minimum: int, more: int) -> None:
    maximum = minimum + more
    if minimum <= value <= maximum:
        assert parse_integer(str(value), minimum=minimum, maximum=maximum) == value
    else:
        with pytest.raises(NumberError):
            parse_integer(str(value), minimum=minimum, maximum=maximum)


@given(st.text())
def test_whatever_the_text_nothing_but_a_refusal_is_raised(text: str) -> None:
    try:
        assert parse_integer(text) == int(text)
    except NumberError:
        assert integer_or(text, -1) == -1


@pytest.mark.parametrize("text", ODD)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(NumberError, match="^limit must be a whole number from 0 to 9223372036854775807, not '"):
        parse_integer(text, name="limit")
    assert integer_or(text, 5) == 5


def test_signs_and_leading_zeros_are_read() -> None:
    assert parse_integer("+7") == 7
    assert parse_integer("-7", minimum=-10) == -7
    assert parse_integer("0" * 9000 + "7") == 7


@pytest.mark.parametrize("text", ["+7", "-7", "-0"])
def test_a_sign_is_refused_where_none_is_allowed(text: str) -> None:
    with pytest.raises(NumberError):
        parse_integer(text, minimum=-10, signed=False)
    assert integer_or(text, 5, minimum=-10, signed=False) == 5
    assert parse_integer("-0") == 0
    assert parse_integer(str(INT64_MAX)) == INT64_MAX
    assert integer_or(None, 3) == 3


def test_only_ascii_digits_are_digits() -> None:
    assert is_digits("0123")
    assert not any(map(is_digits, ("", "²", "٣", "-1", " 1")))
