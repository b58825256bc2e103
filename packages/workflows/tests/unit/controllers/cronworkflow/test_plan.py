"""What a CronWorkflow needs next: policies, missed slots, history, edits."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from moorage_kube.moments import rfc3339
from moorage_kube.testing.clock import NOON
from moorage_workflows.controllers.cronworkflow.plan import (
    Drop,
    Release,
    RunSeen,
    Save,
    Seen,
    Start,
    Tell,
    Terminate,
    plan,
)
from moorage_workflows.model.cronworkflow import make_run, parse_cron, run_name

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
MADE = NOON - 10 * HOUR


def a_cron(
    *,
    now: datetime = NOON,
    last: datetime | None = NOON - HOUR,
    state: dict[str, Any] | None = None,
    active: tuple[str, ...] = (),
    used: str = "0 * * * *",
    annotations: dict[str, str] | None = None,
    succeeded: int = 0,
    failed: int = 0,
    **spec: Any,
) -> Seen:
    spec = {"schedules": ["0 * * * *"], "workflowSpec": {"entrypoint": "main"}} | spec
    status: dict[str, Any] = {
        "active": [{"name": uid, "uid": uid} for uid in active],
        "conditions": [],
        "phase": "Active",
        "succeeded": succeeded,
        "failed": failed,
    }
    if last is not None:
        status["lastScheduledTime"] = rfc3339(last)
    notes = {"moorage.dev/cron-state": json.dumps(state or {})} | (annotations or {})
    if used:
        notes["workflows.argoproj.io/last-used-schedule"] = used
    meta = {
        "name": "nightly",
        "namespace": "lab",
        "uid": "u",
        "creationTimestamp": rfc3339(MADE),
        "annotations": notes,
        "labels": {"team": "a"},
    }
    document = {"metadata": meta, "spec": spec, "status": status}
    return Seen(cron=parse_cron(document), document=document, now=now)


def a_run(slot: datetime = NOON - HOUR, **fields: Any) -> RunSeen:
    name = run_name("nightly", slot)
    return RunSeen(**({"name": name, "uid": name, "created": slot, "slot": slot, "phase": "Running"} | fields))


def done(slot: datetime, phase: str = "Succeeded", **fields: Any) -> RunSeen:
    return a_run(slot, phase=phase, is_completed=True, finished=slot + MINUTE, **fields)


def seen(runs: tuple[RunSeen, ...] = (), refused: dict[str, str] | None = None, **fields: Any) -> Seen:
    return replace(a_cron(**fields), runs=runs, refused=refused or {})


def summary(given: Seen) -> list[str]:
    """The plan's actions as short words, without saves."""
    out = []
    for action in plan(given).actions:
        match action:
            case Start(slot):
                out.append(f"start {slot:%H:%M}")
            case Terminate(run):
                out.append(f"terminate {run.slot:%H:%M}")
            case Drop(run):
                out.append(f"drop {run.slot:%H:%M}")
            case Release(run):
                out.append(f"release {run.slot:%H:%M}")
            case Tell(_, reason, _):
                out.append(reason)
            case Save():
                pass
    return out


BUSY = a_run(NOON - HOUR)
BUSY_UID = (BUSY.uid,)
LATE = NOON + 10 * MINUTE


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(seen(), ["start 12:00"], id="a slot is due"),
        pytest.param(seen(now=NOON - MINUTE), [], id="not yet"),
        pytest.param(seen(now=NOON + 59 * timedelta(seconds=1)), ["start 12:00"], id="a restart is not late"),
        pytest.param(seen(last=NOON), [], id="it ran"),
        pytest.param(seen(suspend=True), [], id="suspended"),
        pytest.param(seen((BUSY,), active=BUSY_UID), ["start 12:00"], id="Allow starts beside another"),
        pytest.param(
            seen((BUSY,), active=BUSY_UID, concurrencyPolicy="Forbid"), ["SlotSkipped"], id="Forbid skips the slot"
        ),
        pytest.param(seen(concurrencyPolicy="Forbid"), ["start 12:00"], id="Forbid starts when nothing goes on"),
        pytest.param(
            seen((BUSY,), active=BUSY_UID, concurrencyPolicy="Forbid", startingDeadlineSeconds=900),
            ["SlotWaits"],
            id="Forbid with a deadline waits",
        ),
        pytest.param(
            seen((done(NOON - HOUR),), concurrencyPolicy="Forbid", startingDeadlineSeconds=900, now=LATE),
            ["start 12:00"],
            id="and starts late when the run has ended",
        ),
        pytest.param(
            seen((BUSY,), active=BUSY_UID, concurrencyPolicy="Replace"),
            ["terminate 11:00", "start 12:00"],
            id="Replace ends the run first",
        ),
        pytest.param(
            seen((a_run(NOON - HOUR, is_stopping=True),), active=BUSY_UID, concurrencyPolicy="Replace"),
            ["start 12:00"],
            id="what is being ended is not ended twice",
        ),
        pytest.param(
            seen(
                (BUSY,),
                active=BUSY_UID,
                concurrencyPolicy="Replace",
                schedules=["0 * * * *", "*/30 * * * *"],
                used="0 * * * *,*/30 * * * *",
            ),
            ["MissedSlot", "terminate 11:00", "start 12:00"],
            id="two schedules in one minute are one slot",
        ),  # fmt: skip
        pytest.param(seen(now=LATE), ["MissedSlot"], id="late without a deadline"),
        pytest.param(seen(now=LATE, startingDeadlineSeconds=900), ["start 12:00"], id="late within the deadline"),
        pytest.param(seen(now=LATE, startingDeadlineSeconds=300), ["MissedSlot"], id="late beyond the deadline"),
        pytest.param(
            seen(now=LATE, startingDeadlineSeconds=900, last=None), ["MissedSlot"], id="not before the first"
        ),
        pytest.param(seen(now=NOON, last=NOON - 5 * HOUR), ["MissedSlot", "start 12:00"], id="only the newest"),
        pytest.param(
            seen(now=LATE, last=NOON - 5 * HOUR, annotations={"moorage.dev/catch-up": "3"}),
            ["MissedSlot", "start 10:00", "start 11:00", "start 12:00"],
            id="catch-up: three, oldest first",
        ),
        pytest.param(
            seen(
                now=LATE,
                last=NOON - 3 * HOUR,
                concurrencyPolicy="Forbid",
                annotations={"moorage.dev/catch-up": "3"},
            ),
            ["start 10:00"],
            id="catch-up with Forbid: one at a time",
        ),  # fmt: skip
        pytest.param(
            seen(
                (a_run(NOON - 2 * HOUR),),
                now=LATE,
                last=NOON - 2 * HOUR,
                concurrencyPolicy="Replace",
                active=(run_name("nightly", NOON - 2 * HOUR),),
                annotations={"moorage.dev/catch-up": "3"},
            ),
            ["SlotWaits"],
            id="catch-up with Replace: an older slot does not end a run",
        ),  # fmt: skip
        pytest.param(seen(used="30 * * * *", now=NOON), [], id="an edited schedule makes up for nothing"),
        pytest.param(seen(state={"isSuspended": True}), [], id="a resumed schedule makes up for nothing"),
        pytest.param(
            seen(state={"isSuspended": True}, startingDeadlineSeconds=900), ["start 12:00"], id="in its deadline"
        ),
        pytest.param(seen(state={"pending": [{"slot": int(NOON.timestamp())}]}), ["start 12:00"], id="an intent"),
        pytest.param(
            seen(
                (a_run(NOON, is_held=True),),
                state={"pending": [{"slot": int(NOON.timestamp())}], "cursor": int(NOON.timestamp())},
            ),
            ["release 12:00"],
            id="what was created is recorded, then released",
        ),  # fmt: skip
        pytest.param(
            seen(tuple(done(NOON - hours * HOUR) for hours in range(1, 6)), last=NOON),
            ["drop 08:00", "drop 07:00"],
            id="three successful runs are kept",
        ),
        pytest.param(
            seen(tuple(done(NOON - hours * HOUR, "Failed") for hours in range(1, 4)), last=NOON),
            ["drop 10:00", "drop 09:00"],
            id="one failed run is kept",
        ),
        pytest.param(
            seen(
                tuple(done(NOON - hours * HOUR) for hours in range(1, 3)), last=NOON, successfulJobsHistoryLimit=0
            ),
            ["drop 11:00", "drop 10:00"],
            id="no run is kept",
        ),
        pytest.param(
            seen(
                tuple(done(NOON - hours * HOUR) for hours in range(1, 5)), last=NOON, successfulJobsHistoryLimit=-1
            ),
            ["drop 08:00"],
            id="a negative limit is the default",
        ),
        pytest.param(
            seen(tuple(done(NOON - hours * HOUR, backfill="b") for hours in range(1, 9)), last=NOON),
            [],
            id="runs of a backfill are left",
        ),
        pytest.param(seen(schedules=["0 0 * *"]), ["InvalidSpec"], id="no schedule"),
        pytest.param(seen(concurrencyPolicy="Maybe"), ["InvalidSpec"], id="no policy"),
        pytest.param(
            seen(
                refused={run_name("nightly", NOON): "quota"},
                state={"pending": [{"slot": int(NOON.timestamp())}], "cursor": int(NOON.timestamp())},
            ),
            ["SubmissionFailed"],
            id="a refused workflow is not tried again",
        ),  # fmt: skip
    ],
)
def test_what_happens_next(given, expected):
    assert summary(given) == expected


def test_each_start_comes_after_a_save_that_names_it():
    actions = plan(seen()).actions
    assert isinstance(actions[0], Save)
    assert [pending.slot for pending in actions[0].record.state.pending] == [int(NOON.timestamp())]
    assert actions[0].record.last_scheduled == NOON - HOUR  # it moves when the Workflow is there
    assert actions[-1] == Start(NOON)


def test_an_ended_run_is_counted_once():
    ended = done(NOON - HOUR, "Failed")
    first = plan(seen((ended,), active=(ended.uid,), last=NOON)).actions
    assert isinstance(first[0], Save)
    assert (first[0].record.failed, first[0].record.active) == (1, ())
    assert plan(seen((ended,), failed=1, last=NOON)).actions == ()


def test_the_next_look_is_at_the_next_slot():
    assert plan(seen(last=NOON, now=NOON + 55 * MINUTE)).look_again_in == 5 * MINUTE
    assert plan(seen(last=NOON, now=NOON)).look_again_in == 10 * MINUTE


@pytest.mark.parametrize(("parallel", "starts"), [(1, 1), (2, 2), (9, 4)])
def test_a_backfill_runs_a_few_slots_at_a_time_and_passes_over_those_that_ran(parallel, starts):
    wanted = [int((NOON - hours * HOUR).timestamp()) for hours in range(6, 1, -1)]
    wish = json.dumps({"id": "b1", "slots": wanted, "parallel": parallel})
    given = seen((done(NOON - 6 * HOUR),), last=NOON, annotations={"moorage.dev/cron-backfill": wish})
    assert summary(given) == [f"start {7 + number:02}:00" for number in range(starts)]


def test_a_backfill_does_not_count_for_the_policy():
    run = a_run(NOON - 6 * HOUR, backfill="b1")
    assert summary(seen((run,), concurrencyPolicy="Forbid")) == ["start 12:00"]


def test_a_backfill_ends():
    wish = json.dumps({"id": "b1", "slots": [int(NOON.timestamp()) - 3600]})
    state = {"backfillId": "b1", "backfillDone": 1}
    given = seen(
        (done(NOON - HOUR, backfill="b1"),),
        last=NOON,
        state=state,
        annotations={"moorage.dev/cron-backfill": wish},
    )
    actions = plan(given).actions
    assert isinstance(actions[0], Save)
    assert not actions[0].record.has_backfill
    assert summary(given) == ["BackfillDone"]


def test_the_workflow_of_a_slot():
    document = {
        "metadata": {
            "name": "nightly",
            "namespace": "lab",
            "uid": "u",
            "labels": {
                "workflows.argoproj.io/controller-instanceid": "moorage",
                "moorage.dev/owner": "ada",
                "team": "a",
            },
            "annotations": {"moorage.dev/owner": "ada@example.com"},
        },
        "spec": {
            "workflowMetadata": {"labels": {"x": "1"}, "annotations": {"y": "2"}},
            "workflowSpec": {
                "arguments": {"parameters": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]},
            },
        },
    }
    run = make_run(document, slot=NOON, parameters={"b": "3"})
    assert run == {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": f"nightly-{int(NOON.timestamp())}",
            "namespace": "lab",
            "labels": {
                "x": "1",
                "moorage.dev/owner": "ada",
                "workflows.argoproj.io/cron-workflow": "nightly",
                "workflows.argoproj.io/controller-instanceid": "moorage",
            },
            "annotations": {
                "y": "2",
                "moorage.dev/owner": "ada@example.com",
                "workflows.argoproj.io/scheduled-time": "2026-11-21T12:00:00Z",
            },
            "finalizers": [],
            "ownerReferences": [
                {
                    "apiVersion": "argoproj.io/v1alpha1",
                    "kind": "CronWorkflow",
                    "name": "nightly",
                    "uid": "u",
                    "controller": True,
                    "blockOwnerDeletion": True,
                },
            ],
        },
        "spec": {"arguments": {"parameters": [{"name": "a", "value": "1"}, {"name": "b", "value": "3"}]}},
    }


@pytest.mark.parametrize(("own", "owner"), [({}, None), ({"moorage.dev/owner": "ada"}, "ada")])
def test_the_metadata_of_a_schedules_workflows_does_not_say_whose_they_are(own, owner):
    key = "moorage.dev/owner"
    document = {
        "metadata": {"name": "nightly", "namespace": "lab", "uid": "u", "labels": own, "annotations": own},
        "spec": {"workflowMetadata": {"labels": {key: "eve", "team": "x"}, "annotations": {key: "eve"}}},
    }
    meta = make_run(document, slot=NOON)["metadata"]
    assert (meta["labels"].get(key), meta["annotations"].get(key)) == (owner, owner)
    assert meta["labels"]["team"] == "x"
