"""The run controller before an API: killed at every call, it neither loses nor doubles an attempt."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from moorage.actions.suspension import resume_run
from moorage.controllers.base import Shared
from moorage.controllers.run.controller import RunController
from moorage.decide.runs.state import view_run
from moorage.model.kueue import QUEUE_LABEL, WORKLOADS
from moorage_kube.errors import Forbidden, Invalid
from moorage_kube.meta import Key
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, Obj, Resource
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.builders import a_run_job, a_run_pod, keyed
from moorage_testing.controllers import Killed, MortalApi, running, writes

pytestmark = pytest.mark.anyio

KEY = Key("lab", "train")
MESSAGE = "Pod lab/train-x has condition DisruptionTarget matching FailJob rule at index 0"


def a_job(name: str = "train", attempt: int = 1, *, failed: bool = True, **annotations: str) -> Obj:
    made: Obj = {"annotations": keyed(**annotations), "spec": {"backoffLimit": 0}}
    end: Obj = {
        "end": "Failed",
        "reason": "PodFailurePolicy",
        "message": MESSAGE,
        "finished": "2026-11-21T12:00:00Z",
    }
    return a_run_job("train", attempt, name=name, **made | (end | {"status": {"failed": 1}} if failed else {}))


def a_controller(
    api: FakeApi, clock: FakeClock | None = None
) -> contextlib.AbstractAsyncContextManager[RunController]:
    shared = Shared(api=api, clock=clock or FakeClock(), lost_after=timedelta(minutes=5))
    return running(RunController(shared))


async def settle(api: FakeApi, clock: FakeClock | None = None) -> timedelta | None:
    """A fresh operator looks until it has nothing more to write; returns when it would look again."""
    for _ in range(6):
        async with a_controller(api, clock) as controller:
            before = len(writes(api))
            again = await controller.reconcile(KEY)
            if len(writes(api)) == before:
                return again
    raise AssertionError("never settled")


async def notes(api: FakeApi, name: str = "train") -> dict[str, str]:
    job = await api.get(JOBS, name, "lab")
    return {key.removeprefix("moorage.dev/"): text for key, text in job["metadata"]["annotations"].items()}


async def jobs(api: FakeApi) -> list[str]:
    return [job["metadata"]["name"] for job in (await api.list(JOBS)).items]


async def events(api: FakeApi) -> list[tuple[str, str]]:
    return [(event["type"], event["reason"]) for event in (await api.list(EVENTS)).items]


async def test_a_disrupted_run_gets_its_next_attempt() -> None:
    api = FakeApi()
    first = api.put(JOBS, a_job())
    await settle(api)
    assert await jobs(api) == ["train", "train-r2"]
    second = await api.get(JOBS, "train-r2", "lab")
    assert second["metadata"]["ownerReferences"][0]["uid"] == first["metadata"]["uid"]
    assert await notes(api) == {"used-seconds": "0", "attempts": "2"}
    assert await events(api) == [("Normal", "Restarted")]


def a_suspended_job(**annotations: str) -> Obj:
    """The Job of a run without restarts, which failed when its suspension interrupted the program."""
    job = a_job(restart_limit="0", **annotations)
    job["spec"]["suspend"] = True
    [failed] = job["status"]["conditions"]
    failed["message"] = (
        "Container main for pod lab/train-x failed with exit code 85 matching FailJob rule at index 1"
    )
    job["status"]["conditions"].append({"type": "Suspended", "status": "True"})
    return job


async def test_a_run_whose_suspension_interrupted_its_program_goes_on_when_it_is_resumed() -> None:
    """It is no restart."""
    api, clock = FakeApi(), FakeClock()
    api.put(JOBS, a_suspended_job(suspended='{"by": "ada", "at": "2026-11-21T11:59:00Z"}'))
    await settle(api, clock)
    assert await jobs(api) == ["train"]
    await resume_run(api, "lab", "train", clock=clock)
    await settle(api, clock)
    assert await jobs(api) == ["train", "train-r2"]
    assert not (await api.get(JOBS, "train-r2", "lab"))["spec"].get("suspend")
    [event] = (await api.list(EVENTS)).items
    assert event["message"] == "Started again as train-r2 after a suspension"
    attempts = [await api.get(JOBS, name, "lab") for name in ("train", "train-r2")]
    run = view_run(attempts, [])
    assert (run.restarts, run.restart_limit) == (0, 0)


async def test_a_run_that_a_drain_interrupts_after_a_suspension_has_its_limit_of_restarts() -> None:
    api, clock = FakeApi(), FakeClock()
    first = a_suspended_job(attempts="2")
    first["spec"]["suspend"] = False
    api.put(JOBS, first)
    api.put(JOBS, a_job("train-r2", 2))
    await settle(api, clock)
    assert await jobs(api) == ["train", "train-r2"]
    assert (await notes(api))["ended"].startswith("RestartLimit: disrupted again after being")


@pytest.mark.parametrize("by_person", [False, True])
async def test_a_run_that_kueue_suspends_goes_back_into_its_queue(by_person: bool) -> None:
    """Kueue resumes no Job that has ended. What a person suspended waits for them in a queue, too."""
    api, clock = FakeApi(), FakeClock()
    job = a_suspended_job(**({"suspended": '{"by": "ada"}'} if by_person else {}))
    job["metadata"] |= {"uid": "u1", "labels": job["metadata"]["labels"] | {QUEUE_LABEL: "gpus"}}
    api.put(JOBS, job)
    await settle(api, clock)
    assert await jobs(api) == (["train"] if by_person else ["train", "train-r2"])
    if by_person:
        await resume_run(api, "lab", "train", clock=clock)
        await settle(api, clock)
    assert (await api.get(JOBS, "train-r2", "lab"))["metadata"]["labels"][QUEUE_LABEL] == "gpus"


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
@pytest.mark.parametrize("dies_at", range(1, 6))
async def test_killed_at_any_write_the_next_operator_finishes(dies_at: int, after: bool) -> None:
    whole = MortalApi()
    api = MortalApi(dies_at, after=after)
    for one in (whole, api):
        one.put(JOBS, a_job(time_limit_seconds="600", restart_limit="3") | {"kind": "Job"})
    await settle(whole)
    async with a_controller(api) as controller:
        with contextlib.suppress(Killed):
            await controller.reconcile(KEY)
    await settle(api)
    assert await jobs(api) == await jobs(whole) == ["train", "train-r2"]
    assert await notes(api) == await notes(whole)
    made = [call for call in writes(api) if call.startswith("create jobs")]
    assert len(made) <= 2, "the second is refused by the name"


async def test_at_the_limit_the_run_ends_and_people_are_told() -> None:
    api = FakeApi()
    api.put(JOBS, a_job(restart_limit="1", used_seconds="1", attempts="2"))
    api.put(JOBS, a_job("train-r2", 2, used_seconds="1"))
    await settle(api)
    assert await jobs(api) == ["train", "train-r2"]
    assert (await notes(api))["ended"].startswith("RestartLimit: ")
    assert await events(api) == [("Warning", "RestartLimit")]


async def test_a_copy_that_is_behind_decides_nothing() -> None:
    api = FakeApi()
    api.put(JOBS, a_job())
    async with a_controller(api) as controller:
        # what the watch has not brought yet: the user cancelled meanwhile
        for watcher in list(api._watchers):
            api._watchers.remove(watcher)
        api.put(JOBS, a_job(ended="Cancelled by ada"))
        await controller.reconcile(KEY)
    assert writes(api) == []


async def test_a_name_that_belongs_to_another_ends_the_run_with_the_reason() -> None:
    api = FakeApi()
    api.put(JOBS, a_job())
    api.put(JOBS, {"metadata": {"name": "train-r2", "namespace": "lab"}, "spec": {}})
    await settle(api)
    assert (await notes(api))["ended"] == "CannotRestart: a Job named train-r2 exists that is not of this run"


async def test_an_attempt_the_api_will_never_take_ends_the_run() -> None:
    api = MortalApi()
    api.refusals[JOBS] = Invalid("spec.template: nonsense")
    api.put(JOBS, a_job())
    await settle(api)
    assert (await notes(api))["ended"] == "CannotRestart: spec.template: nonsense"


async def test_a_quota_that_is_full_is_tried_again_later() -> None:
    api = MortalApi()
    api.refusals[JOBS] = Forbidden("exceeded quota")
    api.put(JOBS, a_job())
    async with a_controller(api) as controller:
        with pytest.raises(Forbidden):
            await controller.reconcile(KEY)
    assert "ended" not in await notes(api)
    api.refusals.clear()
    await settle(api)
    assert await jobs(api) == ["train", "train-r2"]


async def test_a_first_job_that_would_be_collected_is_kept_for_its_attempts() -> None:
    api = FakeApi()
    job = a_job()
    job["spec"]["ttlSecondsAfterFinished"] = 60
    api.put(JOBS, job)
    await settle(api)
    assert "ttlSecondsAfterFinished" not in (await api.get(JOBS, "train", "lab"))["spec"]
    assert "ttlSecondsAfterFinished" not in (await api.get(JOBS, "train-r2", "lab"))["spec"]


async def test_a_second_attempt_that_was_deleted_does_not_come_back() -> None:
    api = FakeApi()
    api.put(JOBS, a_job())
    await settle(api)
    api.remove(JOBS, "train-r2", "lab")
    await settle(api)
    assert await jobs(api) == ["train"]
    assert (await notes(api))["ended"].startswith("Deleted: ")


def a_stuck_pod(job: Obj) -> Obj:
    made: Obj = {"node": "n1", "started": "2026-11-21T11:00:00Z", "deleting": "2026-11-21T12:00:30Z"}
    owner = {"uid": job["metadata"]["uid"], "controller": True}
    return a_run_pod(attempt=1, owner=owner, metadata={"deletionGracePeriodSeconds": 30}, **made)


async def test_nothing_is_remembered_of_runs_whose_jobs_and_pods_are_gone() -> None:
    api = FakeApi()
    async with a_controller(api) as controller:
        for at in range(20):
            job = api.put(JOBS, a_job(f"run{at}", failed=False))
            pod = a_stuck_pod(job)
            pod["metadata"]["name"] = f"run{at}-x"
            api.put(PODS, pod | {"metadata": pod["metadata"] | {"deletionTimestamp": None}})
            if at % 2:  # the Job goes before its pod is told
                api.remove(JOBS, f"run{at}", "lab")
            api.put(PODS, pod)
            api.remove(PODS, f"run{at}-x", "lab")
            if not at % 2:
                api.remove(JOBS, f"run{at}", "lab")
        api.put(PODS, a_stuck_pod({"metadata": {"uid": "last"}}))
        async with asyncio.timeout(60):
            while "last" not in controller._stopped_at:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert set(controller._stopped_at) == {"last"}
        assert controller._left_queue == set()


async def test_a_pod_on_a_node_that_is_gone_is_let_go_after_five_minutes() -> None:
    api, clock = FakeApi(), FakeClock()
    job = api.put(JOBS, a_job(failed=False, report_token_sha256="00"))
    api.put(PODS, a_stuck_pod(job))
    assert await settle(api, clock) == timedelta(minutes=5, seconds=30)
    assert writes(api) == []
    clock.advance(timedelta(minutes=5, seconds=31))
    await settle(api, clock)
    assert writes(api) == ["patch pods train-x", "delete pods train-x"]
    assert await events(api) == [("Warning", "NodeLost")]


async def test_a_pod_on_a_node_that_answers_is_left_to_it() -> None:
    api, clock = FakeApi(), FakeClock()
    job = api.put(JOBS, a_job(failed=False, report_token_sha256="00"))
    api.put(PODS, a_stuck_pod(job))
    api.put(NODES, {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    clock.advance(timedelta(hours=1))
    assert await settle(api, clock) is None
    assert writes(api) == []


@pytest.mark.parametrize(
    "end",
    [
        pytest.param({"type": "Complete", "status": "True"}, id="it left with 0"),
        pytest.param({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}, id="it failed"),
    ],
)
async def test_a_run_without_a_runner_that_ends_after_its_pod_was_deleted_is_started_again(
    end: dict[str, str],
) -> None:
    api, clock = FakeApi(), FakeClock()
    job = api.put(JOBS, a_job(failed=False))
    pod = a_stuck_pod(job)
    api.put(PODS, pod)
    api.put(NODES, {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    async with a_controller(api, clock) as controller:
        api.remove(
            PODS, pod["metadata"]["name"], "lab"
        )  # it ended well, and was counted, before the operator looked
        await asyncio.sleep(0)
        await controller.reconcile(KEY)
    noted = await api.get(JOBS, "train", "lab")
    assert noted["metadata"]["annotations"]["moorage.dev/stopped-at"] == "2026-11-21T12:00:00Z"
    failed = int(end["type"] == "Failed")
    status = {"conditions": [end], "failed": failed, "startTime": "2026-11-21T11:00:00Z"}
    api.put(JOBS, noted | {"status": status})
    await settle(api, clock)
    assert writes(api)[1:] == ["patch jobs train", "create jobs train-r2", "patch jobs train"]


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"startTime": "2026-11-21T12:00:01Z"}, id="it was suspended and resumed since"),
        pytest.param(
            {"startTime": "2026-11-21T11:00:00Z", "failed": 1}, id="that pod failed, another one succeeded"
        ),
    ],
)
async def test_a_run_that_succeeded_with_a_later_pod_than_the_one_told_to_stop_is_over(
    status: dict[str, Any],
) -> None:
    api = FakeApi()
    job = a_job(failed=False, stopped_at="2026-11-21T12:00:00Z")
    api.put(JOBS, job | {"status": {"conditions": [{"type": "Complete", "status": "True"}]} | status})
    await settle(api)
    assert writes(api) == []


async def test_a_node_that_falls_silent_has_its_runs_looked_at() -> None:
    api, clock = FakeApi(), FakeClock()
    job = api.put(JOBS, a_job(failed=False))
    api.put(PODS, a_stuck_pod(job))
    async with a_controller(api, clock) as controller:
        while len(controller.loop.queue):
            controller.loop.queue.done(await controller.loop.queue.get())
        api.put(NODES, {"metadata": {"name": "n1"}, "status": {}})
        key = await asyncio.wait_for(controller.loop.queue.get(), 120)
    assert key == KEY


def queued(job: Obj) -> Obj:
    labels = job["metadata"]["labels"] | {QUEUE_LABEL: "team-a"}
    return job | {"metadata": job["metadata"] | {"uid": "j1", "labels": labels}}


@pytest.mark.parametrize("version", WORKLOADS, ids=lambda resource: resource.version)
@pytest.mark.parametrize(("ended", "want"), [("Cancelled by ada", False), ("", True)])
async def test_kueue_does_not_resume_a_cancelled_run(version: Resource, ended: str, want: bool) -> None:
    api = MortalApi()
    api.put(JOBS, queued(a_job(failed=False, **({"ended": ended} if ended else {}))))
    labels = {"kueue.x-k8s.io/job-uid": "j1"}
    api.put(version, {"metadata": {"name": "w", "namespace": "lab", "labels": labels}, "spec": {"active": True}})
    async with a_controller(api) as controller:
        await controller.reconcile(KEY)
        await controller.reconcile(KEY)
    assert (await api.get(version, "w", "lab"))["spec"]["active"] is want
    assert sum(call.verb == "patch" and call.resource == "workloads" for call in api.calls) == (not want)


async def test_a_cancelled_run_in_a_queue_is_left_where_there_is_no_kueue() -> None:
    api = MortalApi()
    api.put(JOBS, queued(a_job(failed=False, ended="Cancelled by ada")))
    async with a_controller(api) as controller:
        assert await controller.reconcile(KEY) is None
    assert api.writes == 0
