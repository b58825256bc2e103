"""Tables fit the terminal, whatever is in them; without a terminal they are whole."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli import console
from moorage.cli.tables import cut, format_table, text_width

HEADERS = ("NAME", "OWNER", "STATE", "GPUS", "NODE", "AGE", "CHECKPOINT")
ROWS = [
    ["train-7f3a", "ada", "Running", "8", "gpu-node-01", "3h", "5m ago"],
    ["a-very-long-name-of-a-run-that-nobody-can-read", "grace@example.com", "Waiting", "1", "-", "2d", "-"],
    ["学習ジョブ", "山田花子", "Failed", "0", "gpu-node-02", "12d", "none yet"],
]

cells = st.text(alphabet="abc …é日本語ｶ\u0301 ", max_size=40)


@st.composite
def tables(draw):
    names = st.sampled_from([*HEADERS, "PHASE", "READY"])
    headers = draw(st.lists(names, min_size=1, max_size=9, unique=True))
    row = st.lists(cells, min_size=len(headers), max_size=len(headers))
    return headers, draw(st.lists(row, max_size=6))


@given(tables(), st.integers(1, 250))
def test_no_line_is_longer_than_the_terminal(table, width):
    headers, rows = table
    lines = format_table(headers, rows, width=width).split("\n")
    assert len(lines) == len(rows) + 1
    assert max(text_width(line) for line in lines) <= width


@given(tables())
def test_without_a_terminal_every_cell_is_whole(table):
    headers, rows = table
    lines = format_table(headers, rows).split("\n")
    for line, row in zip(lines, [headers, *rows], strict=True):
        assert all(cell.strip() in line for cell in row)


@given(tables(), st.integers(1, 250))
def test_a_table_that_fits_is_as_without_a_terminal(table, width):
    headers, rows = table
    whole = format_table(headers, rows)
    if max(text_width(line) for line in whole.split("\n")) + 40 <= width:
        assert format_table(headers, rows, width=width) == whole


@given(cells, st.integers(0, 50))
def test_a_text_is_cut_to_a_width_and_marked(text, width):
    short = cut(text, width)
    assert text_width(short) <= width
    assert short == text or short.endswith("…") or width == 0


def test_at_60_columns_the_right_ones_go_and_a_long_name_is_cut():
    assert format_table(HEADERS, ROWS, width=60).split("\n") == [
        "NAME                      OWNER               STATE     GPUS",
        "train-7f3a                ada                 Running   8",
        "a-very-long-name-of-a-…   grace@example.com   Waiting   1",
        "学習ジョブ                山田花子            Failed    0",
    ]


def test_at_20_columns_the_state_stays():
    assert format_table(HEADERS, ROWS, width=20).split("\n") == [
        "NAME         STATE",
        "train-7f3a   Running",
        "a-very-lo…   Waiting",
        "学習ジョブ   Failed",
    ]


@pytest.mark.parametrize(
    ("environment", "terminal", "want"),
    [
        pytest.param({}, True, True, id="a terminal"),
        pytest.param({}, False, False, id="a pipe"),
        pytest.param({"NO_COLOR": "1"}, True, False, id="no-color.org"),
        pytest.param({"TERM": "dumb"}, True, False, id="a terminal without colour"),
        pytest.param({"CLICOLOR_FORCE": "1"}, False, True, id="asked for"),
        pytest.param({"CLICOLOR_FORCE": "0"}, False, False, id="not asked for"),
        pytest.param({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, True, False, id="the no wins"),
    ],
)
def test_where_colour_is_shown(environment, terminal, want, monkeypatch):
    for name in ("NO_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    assert console.has_colour(stream) is want


def test_states_have_colours_and_the_table_is_the_same_without_them():
    plain = format_table(HEADERS, ROWS, width=60)
    coloured = format_table(HEADERS, ROWS, width=60, paint=console.paint)
    assert "\x1b[32mRunning\x1b[0m" in coloured
    assert "\x1b[33mWaiting\x1b[0m" in coloured
    assert "\x1b[31mFailed\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_columns_that_are_kept_stay_before_those_on_their_left():
    headers, row = ("ATTEMPT", "POD", "NODE", "PHASE", "REASON"), ["1", "p" * 40, "n" * 40, "Failed", "OOMKilled"]
    narrow = format_table(headers, [row], width=40, kept=frozenset({"PHASE", "REASON"}))
    assert narrow.splitlines() == ["ATTEMPT   PHASE    REASON", "1         Failed   OOMKilled"]
