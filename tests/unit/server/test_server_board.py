from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.usage.gpus import Counts
from moorage.server.pages.board import HUES, owner_hues, span, spoken, type_name


@given(st.sets(st.text(min_size=1, max_size=8), max_size=20))
def test_owners_have_colours_of_their_own_while_there_are_enough(owners):
    hues = owner_hues(owners)
    assert set(hues) == owners
    assert all(0 <= hue < HUES for hue in hues.values())
    if len(owners) <= HUES:
        assert len(set(hues.values())) == len(owners)
    assert hues == owner_hues(sorted(owners, reverse=True))


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (-5, "0s"),
        (45, "45s"),
        (61, "1m"),
        (3600, "1h"),
        (3 * 3600 + 120, "3h 2m"),
        (9 * 3600 + 60, "9h"),
        (100000, "1d 3h"),
        (86400 * 30, "30d"),
    ],
)
def test_spans_are_short(seconds, want):
    assert span(timedelta(seconds=seconds)) == want


@pytest.mark.parametrize(
    ("label", "want"),
    [
        ("NVIDIA-A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("a100", "a100"),
        ("Tesla-T4", "Tesla T4"),
        ("NVIDIA-", "NVIDIA-"),
    ],
)
def test_gpu_types_read_as_people_say_them(label, want):
    assert type_name(label) == want


def test_what_is_spoken_is_a_sentence():
    assert spoken(Counts(), 0) == "No node has GPUs."
    assert spoken(Counts(total=4, free=1, used=3), 1) == "1 of 4 GPUs free, 1 run waits."
    assert spoken(Counts(total=4, free=1, used=3), 0) == "1 of 4 GPUs free, no runs wait."
