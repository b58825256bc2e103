"""When a CronJob starts a Job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.clock import rfc3339
from moorage_kube.testing import builders
from moorage_local.controllers.catalogue import CRONJOBS
from moorage_local.controllers.cronjob.plan import Observed, Plan, Schedule, ScheduleError, plan, started

NOON = datetime(2026, 3, 5, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def a_cron(
    schedule: str = "* * * * *", *, last: datetime | None = None, active: Any = (), meta: Any = None, **spec: Any
) -> Any:
    made = {
        "schedule": schedule,
        "concurrencyPolicy": "Allow",
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}},
    }
    status = builders.given(active=list(active), lastScheduleTime=builders.time_of(last))
    cron = builders.an_object(CRONJOBS, "c", uid="u", created="2026-03-05T11:59:45Z", metadata=meta)
    return cron | {"spec": made | spec, "status": status}


def a_job(name: str, ended: str = "", *, at: datetime = NOON) -> Any:
    return builders.a_job(name, uid=f"uid-{name}", started=at, end=ended, finished=at + MINUTE)


def a_ref(name: str) -> Any:
    return {"kind": "Job", "name": name, "namespace": "lab", "uid": f"uid-{name}"}


def decided(cron: Any, *jobs: Any, now: datetime = NOON) -> Plan:
    return plan(Observed(cron=cron, jobs=jobs, now=now))


def reasons(steps: Plan) -> list[str]:
    return [event.reason for event in steps.events]


def test_a_job_is_named_by_its_moment_and_says_it() -> None:
    steps = decided(a_cron(timeZone="Europe/Berlin"))
    assert steps.start == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "c-29545200",
            "namespace": "lab",
            "labels": {"a": "b"},
            "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-05T13:00:00+01:00"},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "name": "c",
                    "uid": "u",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {"template": {}},
    }
    assert steps.look_again == timedelta(seconds=30, milliseconds=100)


@pytest.mark.parametrize(
    ("cron", "starts", "events"),
    [
        pytest.param(a_cron(), True, [], id="due since it was made"),
        pytest.param(a_cron(last=NOON - MINUTE), True, [], id="due since the last time"),
        pytest.param(a_cron(last=NOON.replace(second=0)), False, [], id="done already"),
        pytest.param(a_cron("0 3 * * *"), False, [], id="not yet"),
        pytest.param(a_cron(suspend=True), False, [], id="suspended"),
        pytest.param(a_cron(startingDeadlineSeconds=10), False, [], id="too late"),
        pytest.param(a_cron(startingDeadlineSeconds=60), True, [], id="late, but not too late"),
        pytest.param(a_cron(last=NOON - timedelta(days=1)), True, ["TooManyMissedTimes"], id="many were missed"),
        pytest.param(a_cron("0 12 * * *", last=NOON - timedelta(days=9)), True, [], id="a few were missed"),
        pytest.param(a_cron("@daily", last=NOON - timedelta(days=1)), True, [], id="a macro"),
        pytest.param(a_cron("@every 1h"), False, ["UnparseableSchedule"], id="what is not run"),
        pytest.param(a_cron(timeZone="Nowhere/City"), False, ["UnknownTimeZone"], id="no such zone"),
        pytest.param(a_cron(meta={"deletionTimestamp": "2026-03-05T12:00:00Z"}), False, [], id="being deleted"),
    ],
)
def test_when_a_job_is_started(cron: Any, starts: bool, events: list[str]) -> None:
    steps = decided(cron)
    assert (steps.start is not None, reasons(steps)) == (starts, events)


def test_what_still_runs_is_let_run_forbids_or_is_replaced() -> None:
    running, ref = a_job("c-1"), a_ref("c-1")
    assert decided(a_cron(active=[ref]), running).start is not None
    forbidden = decided(a_cron(active=[ref], concurrencyPolicy="Forbid"), running)
    assert (forbidden.start, reasons(forbidden)) == (None, ["JobAlreadyActive"])
    replaced = decided(a_cron(active=[ref], concurrencyPolicy="Replace"), running)
    assert replaced.replace == (running,)
    assert replaced.start is not None
    assert replaced.scheduled is not None
    job = {**replaced.start, "metadata": replaced.start["metadata"] | {"uid": "new", "resourceVersion": "7"}}
    status = started(replaced.status, job, replaced.scheduled, ["uid-c-1"])
    assert [ref["name"] for ref in status["active"]] == ["c-29545200"]
    assert status["lastScheduleTime"] == "2026-03-05T12:00:00Z"


def test_what_became_of_jobs_is_told_and_the_oldest_are_deleted() -> None:
    done = [a_job(f"c-{at}", "Complete", at=NOON - at * MINUTE) for at in range(5)]
    failed = [a_job(f"f-{at}", "Failed", at=NOON - at * MINUTE) for at in range(2)]
    cron = a_cron(active=[a_ref("c-0"), a_ref("gone")], last=NOON)
    steps = decided(cron, *done, *failed, a_job("odd"))
    assert reasons(steps) == ["SawCompletedJob", "MissingJob", "UnexpectedJob"]
    assert [job["metadata"]["name"] for job in steps.delete] == ["c-4", "c-3", "f-1"]
    assert "active" not in steps.status
    assert steps.status["lastSuccessfulTime"] == rfc3339(NOON + MINUTE)


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)), st.sampled_from(["*/7 * * * *", "0 9-17 * * 1-5"])
)
def test_the_last_moment_is_never_after_now_and_the_next_never_before(at: datetime, line: str) -> None:
    now, schedule = at.replace(tzinfo=UTC), Schedule.of(a_cron(line))
    last, following = schedule.until(now), schedule.after(now)
    assert last is not None
    assert following is not None
    assert last <= now < following
    assert schedule.after(last) == following


def test_a_schedule_that_no_calendar_has_is_not_run() -> None:
    with pytest.raises(ScheduleError):
        Schedule.of(a_cron("61 * * * *"))
