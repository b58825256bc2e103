"""Runs that are idle say so in lists, in `moor show`, over REST and on their pages."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from moorage.actions.runs import job_of, summary_of
from moorage.cli.joblist import row
from moorage.cli.jobshow import show_text
from moorage.decide.idle.states import Record, State, write_record
from moorage.decide.runs.state import State as RunState
from moorage.decide.runs.state import view_run
from moorage.present.idlemarks import mark_of
from moorage.present.joboverview import make_overview
from moorage.server.pages.jobboard import job_model
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import a_run_job, keyed

HOUR = timedelta(hours=1)
AGO, LATER = NOON - 2 * HOUR, NOON + 2 * HOUR
WARNED = Record(state=State.WARNED, since=NOON - 3 * HOUR, why="GPU below 5 %", next="suspend", next_at=LATER)
SUSPENDED = Record(state=State.SUSPENDED, since=NOON - HOUR, suspended_at=NOON)


def a_job(record=WARNED, **job):
    return a_run_job(namespace="team", uid="u", annotations=keyed(idle=write_record(record)), gpus=1, **job)


@pytest.mark.parametrize(
    ("record", "mark"),
    [
        (Record(), ""),
        (WARNED, "idle 3h, suspended in 2h"),
        (
            Record(state=State.IDLE, since=AGO, next="warn", next_at=LATER),
            "idle 2h, warned in 2h",
        ),
        (Record(state=State.REMINDED, since=AGO), "idle 2h"),
        (Record(state=State.SNOOZED, since=AGO, snoozed_until=LATER), "snoozed for 2h"),
        (Record(state=State.SNOOZED, since=AGO, snoozed_until=AGO), "snoozed for 0s"),
        (Record(state=State.EXEMPT, why="its name is exempt"), ""),
    ],
)
def test_a_mark_has_its_start_and_the_next_step(record, mark):
    assert mark_of(record, NOON) == mark


def test_a_run_shows_it_everywhere():
    run = view_run([a_job()], [])
    assert "Waiting (idle 3h, suspended in 2h)" in row(job_of(run, NOON), NOON)
    shown = show_text(make_overview(run, job_of(run, NOON), NOON), NOON)
    assert "idle        idle 3h, suspended in 2h: GPU below 5 %" in shown
    told = summary_of(run)
    assert (told.idle_since, told.idle_next, told.idle_next_at) == (NOON - 3 * HOUR, "suspend", NOON + 2 * HOUR)
    facts = {fact.name: fact.text for fact in job_model(run, a_job(), NOON, private=False).times}
    assert facts["Use of its GPUs"] == "idle 3h, suspended in 2h"


def test_a_run_that_is_used_suspended_or_over_shows_no_mark():
    used = view_run([a_job(Record())], [])
    suspended = replace(used, state=RunState.SUSPENDED, idle=SUSPENDED)
    for run in (used, suspended):
        assert str(run.state) in row(job_of(run, NOON), NOON)
        assert "\nidle " not in show_text(make_overview(run, job_of(run, NOON), NOON), NOON)
        assert "Use of its GPUs" not in {fact.name for fact in job_model(run, a_job(), NOON, private=False).times}
    assert view_run([a_job(end="Complete")], []).idle == Record()
