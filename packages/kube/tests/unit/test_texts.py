"""Texts of strangers, made fit to be shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.texts import camel, header_text, hidden_characters, visible, visible_lines


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("ada", "ada"),
        ("Zoë 数据 é", "Zoë 数据 é"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2K\x07", r"\e[2K\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("ada\u202eroot", r"ada\u202eroot"),
        ("\u2066x\u2069\u200b\ufeff", r"\u2066x\u2069\u200b\ufeff"),
        ("a\u2028b", r"a\u2028b"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
    ],
)
def test_hidden_characters_are_shown_as_escapes(text, want):
    assert visible(text) == want


@given(st.text(st.characters()))
def test_what_is_shown_has_no_hidden_character_and_is_one_line(text):
    shown = visible(text)
    assert not hidden_characters(shown)
    assert all(unicodedata.category(one) not in {"Cc", "Cf", "Zl", "Zp", "Cs"} for one in shown)
    assert len(shown.splitlines()) <= 1
    assert visible(shown) == shown


@given(st.text(st.characters()))
def test_a_whole_text_keeps_its_lines_and_no_other_control_character(text):
    shown = visible_lines(text)
    assert shown.count("\n") == text.count("\n")
    assert not set(hidden_characters(shown)) - {"\n", "\t"}


@pytest.mark.parametrize(
    ("value", "want"), [(b"plain", "plain"), ("jürgen".encode(), "jürgen"), (b"j\xfcrgen", "jürgen")]
)
def test_headers_are_utf_8_where_they_can_be(value, want):
    assert header_text(value) == want


@pytest.mark.parametrize(("name", "want"), [("gpus", "gpus"), ("gpu_type", "gpuType"), ("a_b_cd", "aBCd")])
def test_names_of_python_are_written_as_in_yaml(name, want):
    assert camel(name) == want
