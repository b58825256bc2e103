"""What the services read from the environment, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moorage.cli.datafolder import DataFolder
from moorage.cli.services import LOCAL_API_WAIT_SECONDS, login_settings, set_aside, unless, wait_for_api
from moorage.cli.up import GIVE_UP_SECONDS
from moorage.model.argo import WORKFLOWS
from moorage.model.retention import AUDIT_DAYS, USAGE_DAYS
from moorage.settings import USAGE_KEPT_DAYS
from moorage_kube.errors import NotReady, ServerError, UsageError
from moorage_kube.resources import EVENTS, JOBS
from moorage_kube.testing.builders import a_job, an_object
from moorage_kube.testing.clock import FakeClock, QuickClock
from moorage_local.testing.fakeapi import FakeApi


@pytest.mark.parametrize("text", ["0", "-1", "abc", "36501", "1.5", "²"])
def test_days_that_would_delete_all_history_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"invalid MOORAGE_USAGE_DAYS .*: use a whole number from 1 to 36500"):
        USAGE_KEPT_DAYS.read({"MOORAGE_USAGE_DAYS": text})
    with pytest.raises(UsageError, match=r"invalid MOORAGE_AUDIT_DAYS .*: use a whole number from 1 to 3650\b"):
        login_settings({"MOORAGE_AUDIT_DAYS": text})


def test_days_are_read_with_their_defaults() -> None:
    assert USAGE_KEPT_DAYS.read({}) == USAGE_KEPT_DAYS.read({"MOORAGE_USAGE_DAYS": ""}) == USAGE_DAYS
    assert USAGE_KEPT_DAYS.read({"MOORAGE_USAGE_DAYS": "30"}) == 30
    assert login_settings({}).audit_days == AUDIT_DAYS
    assert login_settings({"MOORAGE_AUDIT_DAYS": "7"}).audit_days == 7


@pytest.mark.processes
def test_a_start_with_an_invalid_variable_reports_it_to_the_waiting_process(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    reading, telling = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "moorage.cli.services", "--data", folder.path, "--ready-fd", str(telling)],
            env=os.environ | {"MOORAGE_USAGE_DAYS": "0"},
            pass_fds=[telling],
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(telling)
        assert os.read(reading, 4096).startswith(b"services invalid MOORAGE_USAGE_DAYS '0'")
    finally:
        os.close(reading)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


class SlowApi:
    """Answers after so many seconds."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    async def raw(self, method: str, path: str) -> bytes:
        self._clock.advance(1)
        if self._clock.monotonic() < self._seconds:
            raise ServerError("nobody listens")
        return f"{method} {path}".encode()


@pytest.mark.anyio
async def test_a_start_that_fails_ends_what_it_waits_for() -> None:
    begun, ended = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    starting = asyncio.create_task(unless(asyncio.Event(), asyncio.gather(work())))
    await begun.wait()
    starting.cancel()  # as the task group does when a part fails
    await asyncio.wait({starting})
    assert ended == ["work"]


@pytest.mark.anyio
async def test_services_wait_for_a_local_cluster_as_long_as_moor_up_does() -> None:
    clock = QuickClock()
    await wait_for_api(SlowApi(clock, 600), asyncio.Event(), patience=LOCAL_API_WAIT_SECONDS, clock=clock)
    assert clock.monotonic() >= 600
    assert LOCAL_API_WAIT_SECONDS >= GIVE_UP_SECONDS
    with pytest.raises(NotReady):
        await wait_for_api(SlowApi(clock, 2000), asyncio.Event(), patience=60, clock=clock)


@pytest.mark.anyio
async def test_a_workflow_that_hung_the_operator_is_suspended_with_the_reason():
    api = FakeApi()
    workflow = api.put(WORKFLOWS, an_object(WORKFLOWS, "w", spec={"entrypoint": "main"}))
    await set_aside(api, WORKFLOWS, workflow, "it hung")
    stored = await api.get(WORKFLOWS, "w", "lab")
    assert stored["spec"] == {"entrypoint": "main", "suspend": True}
    (condition,) = stored["status"]["conditions"]
    condition.pop("lastTransitionTime", None)
    assert condition == {"type": "SpecError", "status": "True", "reason": "Quarantined", "message": "it hung"}
    (event,) = (await api.list(EVENTS, "lab")).items
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Quarantined", "it hung")


@pytest.mark.anyio
async def test_another_object_that_hung_a_controller_only_gets_an_event():
    api = FakeApi()
    job = api.put(JOBS, a_job(suspend=False))
    assert await set_aside(api, JOBS, job, "it hung") == job
    assert [event["reason"] for event in (await api.list(EVENTS, "lab")).items] == ["Quarantined"]
