"""`moor cron`, as typed."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage_kube.moments import rfc3339, rfc3339_micro
from moorage_kube.resources import LEASES
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import NOON, FakeClock

HOUR = timedelta(hours=1)
SLOT = int(NOON.timestamp())
SPEC = {"entrypoint": "main", "templates": [{"name": "main", "suspend": {}}]}
MANIFEST = """\
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: nightly}
spec:
  schedules: ["0 19 * * *"]
  timezone: Asia/Tokyo
  workflowSpec:
    entrypoint: main
    arguments: {parameters: [{name: day, value: today}]}
    templates: [{name: main, suspend: {}}]
"""


@pytest.fixture
def moor(moor):
    moor.clock = FakeClock()
    return moor


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cron.yaml"
    path.write_text(MANIFEST)
    return path


def a_cron(moor, *, status=None, annotations=None, **spec):
    spec = {"schedules": ["0 * * * *"], "workflowSpec": SPEC} | spec
    labels = {"workflows.argoproj.io/controller-instanceid": "moorage"}
    meta = {"namespace": "default", "uid": "u1", "created": NOON - 100 * HOUR, "labels": labels}
    cron = an_object(CRON_WORKFLOWS, "nightly", annotations=annotations, spec=spec, status=status, **meta)
    moor.api.put(CRON_WORKFLOWS, cron)


def a_run(moor, slot, phase="Succeeded", message=""):
    notes = {"workflows.argoproj.io/scheduled-time": rfc3339(slot)}
    labels = {"workflows.argoproj.io/cron-workflow": "nightly"}
    meta = {"namespace": "default", "created": slot, "labels": labels, "annotations": notes}
    times = {"startedAt": rfc3339(slot), "finishedAt": rfc3339(slot + timedelta(minutes=5))}
    status = {"phase": phase, "message": message, **times}
    name = f"nightly-{int(slot.timestamp())}"
    moor.api.put(WORKFLOWS, an_object(WORKFLOWS, name, spec={}, status=status, **meta))


def test_a_schedule_is_created_as_ours_and_says_when_it_is_due(moor, file):
    done = moor("cron", "create", str(file))
    assert (done.code, done.out) == (0, "nightly\n")
    assert "next slot: 2026-11-22 19:00 JST" in done.err
    stored = moor.api.objects["cronworkflows", "default", "nightly"]
    assert stored["metadata"]["labels"] == {"workflows.argoproj.io/controller-instanceid": "moorage"}


def test_a_dry_run_prints_the_next_slots(moor, file):
    done = moor("cron", "create", str(file), "--dry-run")
    assert done.out == "nightly: 2026-11-22 19:00 JST, 2026-11-23 19:00 JST, 2026-11-24 19:00 JST\n"
    assert moor.api.named(CRON_WORKFLOWS) == []


def test_a_schedule_that_exists_is_changed_when_asked_to(moor, file):
    assert moor("cron", "create", str(file)).code == 0
    file.write_text(MANIFEST.replace("0 19", "30 19"))
    refused = moor("cron", "create", str(file))
    assert (refused.code, "--replace" in refused.err) == (1, True)
    assert "next slot: 2026-11-22 19:30 JST" in moor("cron", "create", str(file), "--replace").err
    assert moor.api.objects["cronworkflows", "default", "nightly"]["spec"]["schedules"] == ["30 19 * * *"]


def test_where_argo_runs_workflows_the_schedule_is_argos(moor, file):
    lease = {"holderIdentity": "x", "renewTime": rfc3339_micro(NOON), "leaseDurationSeconds": 15}
    moor.api.put(LEASES, {"metadata": {"name": "workflow-controller", "namespace": "argo"}, "spec": lease}, "argo")
    done = moor("cron", "create", str(file))
    assert "Argo's controller runs workflows on this cluster" in done.err
    assert "labels" not in moor.api.objects["cronworkflows", "default", "nightly"]["metadata"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        pytest.param("0 19 * * *", "0 25 * * *", "the field hour is '25'", id="schedule"),
        pytest.param("0 19 * * *", "0 0 31 2 *", "never comes: name a day that exists", id="never"),
        pytest.param("Asia/Tokyo", "Asia/Tokio", "invalid time zone 'Asia/Tokio'", id="zone"),
        pytest.param("nightly", "n" * 53, "use at most 52 of a-z", id="name"),
        pytest.param("CronWorkflow", "Workflow", "use a CronWorkflow of argoproj.io/v1alpha1", id="kind"),
        pytest.param("  timezone:", "  concurrencyPolicy: No\n  timezone:", "use Allow, Forbid", id="policy"),
    ],
)
def test_an_invalid_schedule_is_refused(moor, file, before, after, message):
    file.write_text(MANIFEST.replace(before, after))
    done = moor("cron", "create", str(file))
    assert done.code == 2
    assert message in done.err
    assert moor.api.named(CRON_WORKFLOWS) == []


def test_all_that_is_wrong_is_said_at_once(moor, file):
    file.write_text(MANIFEST.replace("0 19", "0 25").replace("nightly", "N"))
    done = moor("cron", "create", str(file))
    assert "name: 'N'" in done.err
    assert "the field hour is '25'" in done.err


def test_the_list_says_when_and_how_it_went(moor):
    a_cron(moor, status={"lastScheduledTime": rfc3339(NOON - HOUR)})
    a_run(moor, NOON - 2 * HOUR)
    a_run(moor, NOON - HOUR, "Failed")
    done = moor("cron", "list")
    assert [line.split() for line in done.out.splitlines()] == [
        ["NAME", "SCHEDULE", "TIME-ZONE", "NEXT", "LAST", "RESULT"],
        ["nightly", "At", "the", "start", "of", "every", "hour", "UTC", "in", "60m", "60m", "ago", "Failed"],
    ]


def test_an_empty_list_says_what_to_do(moor):
    assert "create one: moor cron create FILE" in moor("cron", "list").err


def test_one_schedule_in_full(moor):
    a_cron(moor, status={"lastScheduledTime": rfc3339(NOON - HOUR), "succeeded": 3, "failed": 1})
    a_run(moor, NOON - HOUR, "Failed", "child 'a' failed")
    assert moor("cron", "get", "nightly").out.splitlines() == [
        "Schedule:    0 * * * * (At the start of every hour)",
        "Time zone:   UTC",
        "State:       active",
        "Next slot:   2026-11-21 13:00 UTC (in 60m)",
        "While busy:  Allow",
        "Last slot:   2026-11-21 11:00 UTC",
        f"Last run:    nightly-{SLOT - 3600} Failed: child 'a' failed",
        "Goes on:     nothing",
        "So far:      3 succeeded, 1 failed",
    ]


def test_suspend_and_resume(moor):
    a_cron(moor)
    assert moor("cron", "suspend", "nightly").out == "nightly is suspended\n"
    assert moor.api.objects["cronworkflows", "default", "nightly"]["spec"]["suspend"] is True
    assert "suspended" in moor("cron", "list").out
    assert moor("cron", "resume", "nightly").out == "nightly: next slot 2026-11-21 13:00 UTC\n"


def test_run_starts_it_now_with_arguments(moor):
    arguments = {"parameters": [{"name": "day", "value": "today"}]}
    a_cron(moor, workflowSpec=SPEC | {"arguments": arguments})
    done = moor("cron", "run", "nightly", "-p", "day=2026-01-31")
    assert done.code == 0, done.err
    (run,) = [obj for (kind, _, _), obj in moor.api.objects.items() if kind == "workflows"]
    assert run["metadata"]["name"] == done.out.strip()
    assert run["metadata"]["labels"]["workflows.argoproj.io/cron-workflow"] == "nightly"
    assert run["spec"]["arguments"]["parameters"] == [{"name": "day", "value": "2026-01-31"}]


def test_backfill_asks_the_operator_for_the_slots_that_did_not_run(moor):
    a_cron(moor)
    a_run(moor, NOON - 2 * HOUR)
    done = moor("cron", "backfill", "nightly", "--from", "3h", "--parallel", "2")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [rfc3339(NOON - hours * HOUR) for hours in (3, 1, 0)]
    assert "3 slots run, 2 at a time; 1 have run" in done.err
    annotations = moor.api.objects["cronworkflows", "default", "nightly"]["metadata"]["annotations"]
    wish = json.loads(annotations["moorage.dev/cron-backfill"])
    assert (wish["slots"], wish["parallel"]) == ([SLOT - 10800, SLOT - 3600, SLOT], 2)
    again = moor("cron", "backfill", "nightly", "--from", "3h")
    assert again.code == 1
    assert f"backfill {wish['id']} of schedule 'nightly' is still running" in again.err


def test_a_dry_backfill_starts_nothing(moor):
    a_cron(moor)
    done = moor("cron", "backfill", "nightly", "--from", "20h", "--dry-run")
    assert done.out.splitlines()[-1] == "… and 11 more"
    assert "21 slots would run" in done.err
    assert "annotations" not in moor.api.objects["cronworkflows", "default", "nightly"]["metadata"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--from", "100d"), "the stretch has more than 1000 slots", id="too long"),
        pytest.param(("--from", "1h", "--to", "2h"), "before it begins", id="backwards"),
        pytest.param(("--from", "soon"), "use a span, a day or a time", id="no time"),
    ],
)
def test_an_invalid_stretch_is_refused(moor, words, message):
    a_cron(moor)
    done = moor("cron", "backfill", "nightly", *words)
    assert done.code == 2
    assert message in done.err


def test_a_backfill_and_the_history_come_from_the_server_where_there_is_one(moor):
    a_cron(moor)
    path = "/api/v1/crons/default/nightly"
    moor.server.answers[f"{path}/history"] = {"runs": [{"name": "nightly-1", "phase": "Succeeded", "gone": True}]}
    moor.server.answers[f"{path}/backfill"] = {"slots": [rfc3339(NOON)], "id": "b1"}
    assert moor("cron", "history", "nightly", "-o", "name").out == "nightly-1\n"
    assert moor("cron", "backfill", "nightly", "--from", "1h").out == f"{rfc3339(NOON)}\n"


def test_the_history_of_what_is_not_there(moor):
    done = moor("cron", "history", "nightli")
    assert done.code == 1
    assert "cron 'nightli' not found in namespace default" in done.err


def test_delete_with_yes_does_not_ask(moor):
    a_cron(moor)
    assert moor("cron", "delete", "nightly", "--yes").out == "nightly is deleted\n"
    assert moor.api.named(CRON_WORKFLOWS) == []
