"""What a pod used, as a line of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.present.usechart import WIDTH, Line, bars, chart_lines, squeezed


@pytest.mark.parametrize(
    ("values", "most", "blocks", "want"),
    [
        ([0, 50, 100, None, 100], 100.0, True, "▁▅█·█"),
        ([0, 50, 100, None, 100], 100.0, False, "158.8"),
        ([1.0, 2.0], 0.0, True, "▅█"),
        ([0.0, 0.0], 0.0, True, "▁▁"),
        ([500.0], 100.0, True, "█"),
        ([], 100.0, True, ""),
    ],
)
def test_high_and_low_are_blocks_and_gaps_are_dots(values, most, blocks, want):
    assert bars(values, most=most, blocks=blocks) == want


def test_many_values_share_a_column_and_a_gap_takes_nothing_from_its_neighbour():
    assert squeezed([1.0, 3.0, None, 4.0, None, None], 3) == [2.0, 4.0, None]


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=2000))
def test_a_chart_is_never_wider_than_its_width(values):
    assert len(squeezed(values)) <= WIDTH
    assert len(bars(squeezed(values))) == len(squeezed(values))


def test_measures_are_aligned_and_those_that_nobody_measured_left_out():
    lines = [
        Line(name="GPU", values=[0.0, 100.0], most=100.0, mean="50 %", peak="100 %"),
        Line(name="CPU", values=[None, None], most=0.0, mean="", peak=""),
        Line(name="memory", values=[1.0, None], most=0.0, mean="1.0 GiB", peak="1.5 GiB"),
    ]
    assert chart_lines(lines) == ["GPU        50 %  ▁█  peak 100 %", "memory  1.0 GiB  █·  peak 1.5 GiB"]
