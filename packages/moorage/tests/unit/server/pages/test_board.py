from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.runs.state import State, view_run
from moorage.decide.usage.gpus import Counts
from moorage.decide.usage.intervals import UsageRow
from moorage.server.pages.board import (
    ENDED_SHOWN,
    HUES,
    initials,
    lay_out,
    owner_hues,
    shown_runs,
    span,
    spoken,
    type_name,
    why_words,
)
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import a_run


@given(st.sets(st.text(min_size=1, max_size=8), max_size=20))
def test_owners_have_colours_of_their_own_while_there_are_enough(owners):
    hues = owner_hues(owners)
    assert set(hues) == owners
    assert all(0 <= hue < HUES for hue in hues.values())
    if len(owners) <= HUES:
        assert len(set(hues.values())) == len(owners)
    assert hues == owner_hues(sorted(owners, reverse=True))


@given(
    st.sets(st.text(min_size=1, max_size=8), max_size=20), st.sets(st.text(min_size=1, max_size=8), max_size=20)
)
def test_nobody_changes_colour_when_somebody_comes_or_goes(before, after):
    kept = owner_hues(before)
    hues = owner_hues(after, kept)
    assert set(hues) == after
    assert all(hues[owner] == kept[owner] for owner in before & after)
    if len(after) <= HUES:
        assert len(set(hues.values())) == len(after)


@pytest.mark.parametrize(
    ("owner", "want"),
    [
        ("ada.lovelace", "AL"),
        ("mika", "MI"),
        ("a_b-c@example.com", "AC"),
        ("x", "X"),
        ("user07", "U07"),
        ("u123", "U23"),
        ("-", "?"),
        ("山田 太郎", "山太"),
    ],
)
def test_a_person_has_two_letters(owner, want):
    assert initials(owner) == want


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


def test_a_reason_of_kubernetes_is_said_in_words():
    run = view_run([{"metadata": {"name": "train"}, "spec": {"template": {"spec": {}}}}], [])
    assert why_words(replace(run, reason="Unschedulable")) == "no room on any node now"
    assert why_words(replace(run, reason="exit code 1")) == "exit code 1"
    assert why_words(replace(run, reason="Waiting")) == ""


@pytest.mark.parametrize(
    ("hours", "want"),
    [(0.0025, "< 0.01"), (0.009, "0.01"), (0.4, "0.40"), (1.26, "1.3"), (99.9, "99.9"), (1234.5, "1,234")],
)
def test_few_gpu_hours_are_not_shown_as_none(hours, want):
    users = [UsageRow(name="ada", gpu_time=timedelta(hours=hours))]
    model = lay_out(waiting=[], waiting_more=0, users=users, teams=[], now=NOON, hues={})
    assert [row.hours for row in model.users] == [want]


def test_what_is_spoken_is_a_sentence():
    assert spoken(Counts(), 0) == "There are no GPUs."
    assert spoken(Counts(total=4, free=1, used=3), 1) == "1 of 4 GPUs free, 1 run waits."
    assert spoken(Counts(total=4, free=1, used=3), 0) == "1 of 4 GPUs free, no runs wait."


def test_runs_at_work_come_first_and_few_that_ended_follow():
    ended = [a_run(f"old-{at}", state=State.FAILED) for at in range(30)]
    live = [a_run("waits", state=State.WAITING), a_run("runs"), a_run("again", state=State.RESTARTING)]
    names = [run.name for run in shown_runs([*ended, *live])]
    assert names == ["runs", "again", "waits", *(run.name for run in ended[:ENDED_SHOWN])]
