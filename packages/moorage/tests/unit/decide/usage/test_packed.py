"""Rows of numbers in few bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.usage.packed import pack, unpack

WIDTH = 4
numbers = st.one_of(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1))
rows = st.lists(st.tuples(*[numbers] * WIDTH), max_size=12)


@given(rows)
def test_rows_are_unpacked_as_they_were_packed(some):
    assert unpack(pack(some)) == some


def test_columns_that_repeat_themselves_or_the_one_before_take_a_byte():
    assert len(pack([(7, 1, 1_000_000 + n, 1_000_000 + n) for n in range(10)])) == 3 + 1 + 1 + (1 + 10 * 5) + 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xff", id="something else"),
        pytest.param(pack([(1, 2), (3, 4)])[:-1], id="cut off"),
        pytest.param(b"\x92\x02\x91\xc0", id="a first column that repeats none"),
        pytest.param(b"\x92\x02\x92\x92\x01\x02\x91\x01", id="columns of different lengths"),
        pytest.param(b"\x92\x03\x91\x92\x01\x02", id="fewer values than rows"),
    ],
)
def test_what_is_not_packed_rows_is_refused(data):
    with pytest.raises(ValueError, match="not packed rows"):
        unpack(data)
