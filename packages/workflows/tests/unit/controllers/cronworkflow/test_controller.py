"""The CronWorkflow controller before an API: whatever is killed, deleted or late, a slot never starts twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from datetime import timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.controllers.base import Shared
from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage.model.names import CRON_FINALIZER
from moorage_kube.errors import Conflict, Invalid, NotFound
from moorage_kube.meta import Key
from moorage_kube.moments import rfc3339, rfc3339_micro
from moorage_kube.resources import EVENTS, LEASES, Obj, Resource
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import Killed, running
from moorage_workflows.controllers.cronworkflow.controller import CronWorkflowController

pytestmark = pytest.mark.anyio

KEY = Key("lab", "nightly")
INSTANCE = "workflows.argoproj.io/controller-instanceid"
MINUTE = timedelta(minutes=1)


class MortalApi(FakeApi):
    """Dies before or after some write; remembers which Workflows were really created."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.left: int | None = None  # writes until it dies
        self.dies_after = False
        self.created: Counter[str] = Counter()
        self.refusal: Exception | None = None

    @contextlib.contextmanager
    def _mortal(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0 and not self.dies_after:
                raise Killed
        yield
        if self.left is not None and self.left < 0:
            raise Killed

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        if resource == WORKFLOWS and self.refusal is not None:
            raise self.refusal
        with self._mortal():
            made = await super().create(resource, obj, namespace, dry_run=dry_run)
            if resource == WORKFLOWS:
                self.created[made["metadata"]["name"]] += 1
        return made

    async def patch(self, *args: Any, **options: Any) -> Obj:
        with self._mortal():
            return await super().patch(*args, **options)

    async def delete(self, *args: Any, **options: Any) -> None:
        with self._mortal():
            await super().delete(*args, **options)


def a_cron(**spec: Any) -> Obj:
    spec = {"schedules": ["* * * * *"], "workflowSpec": {"entrypoint": "main"}} | spec
    labels = {INSTANCE: "moorage"}
    return an_object(CRON_WORKFLOWS, "nightly", created=NOON - 2 * MINUTE, labels=labels, spec=spec)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def api(clock: FakeClock) -> MortalApi:
    return MortalApi(clock)


def a_controller(api: FakeApi, clock: FakeClock) -> contextlib.AbstractAsyncContextManager[CronWorkflowController]:
    return running(CronWorkflowController(Shared(api=api, clock=clock)))


async def catch_up() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def settle(api: FakeApi, clock: FakeClock) -> None:
    async with a_controller(api, clock) as controller:
        for _ in range(4):
            with contextlib.suppress(Conflict):  # the loop tries again
                await controller.reconcile(KEY)
            await catch_up()


async def runs(api: FakeApi) -> list[Obj]:
    return (await api.list(WORKFLOWS)).items


def names(*minutes: int) -> list[str]:
    return [f"nightly-{int((NOON + minute * MINUTE).timestamp())}" for minute in minutes]


async def test_a_slot_becomes_a_workflow_and_is_recorded(api, clock) -> None:
    api.put(CRON_WORKFLOWS, a_cron())
    await settle(api, clock)
    (run,) = await runs(api)
    assert run["metadata"]["name"] == names(0)[0]
    assert run["metadata"]["finalizers"] == []
    cron = await api.get(CRON_WORKFLOWS, "nightly", "lab")
    assert cron["status"] == {
        "active": [
            {
                "apiVersion": "argoproj.io/v1alpha1",
                "kind": "Workflow",
                "name": names(0)[0],
                "namespace": "lab",
                "uid": run["metadata"]["uid"],
            },
        ],
        "conditions": [],
        "phase": "Active",
        "succeeded": 0,
        "failed": 0,
        "lastScheduledTime": rfc3339(NOON),
    }


async def test_a_settled_one_is_left_alone(api, clock) -> None:
    api.put(CRON_WORKFLOWS, a_cron())
    await settle(api, clock)
    api.left = 0
    await settle(api, clock)


async def test_a_workflow_that_the_api_refuses_is_said_and_not_tried_again(api, clock) -> None:
    api.refusal = Invalid("spec: nonsense")
    api.put(CRON_WORKFLOWS, a_cron())
    await settle(api, clock)
    status = (await api.get(CRON_WORKFLOWS, "nightly", "lab"))["status"]
    message = f"{names(0)[0]}: spec: nonsense"
    assert (status["failed"], status["conditions"]) == (
        1,
        [{"type": "SubmissionError", "status": "True", "message": message}],
    )
    events = (await api.list(EVENTS)).items
    assert "SubmissionFailed" in [event["reason"] for event in events]


async def test_a_name_that_is_taken_is_said(api, clock) -> None:
    api.put(CRON_WORKFLOWS, a_cron())
    api.put(WORKFLOWS, {"metadata": {"name": names(0)[0], "namespace": "lab"}, "spec": {}})
    await settle(api, clock)
    status = (await api.get(CRON_WORKFLOWS, "nightly", "lab"))["status"]
    assert status["conditions"][0]["message"].endswith("another Workflow has this name: delete it or rename it")


class HastyApi(FakeApi):
    """The first Workflow is deleted, and all have heard of it, before the answer to its creation arrives."""

    is_hasty = True

    async def create(self, resource: Resource, obj: Obj, *args: Any, **options: Any) -> Obj:
        made = await super().create(resource, obj, *args, **options)
        if resource == WORKFLOWS and self.is_hasty:
            self.is_hasty = False
            await catch_up()
            self.remove(WORKFLOWS, made["metadata"]["name"], made["metadata"]["namespace"])
            await catch_up()
        return made


async def test_a_workflow_that_is_gone_before_its_creation_is_answered_holds_up_no_later_slot() -> None:
    clock = FakeClock()
    api = HastyApi(clock=clock)
    api.put(CRON_WORKFLOWS, a_cron(concurrencyPolicy="Forbid"))
    async with a_controller(api, clock) as controller:
        for _ in range(6):
            await catch_up()
            await controller.reconcile(KEY)
    assert [run["metadata"]["name"] for run in await runs(api)] == names(0)


async def test_a_free_one_is_adopted_where_argo_does_not_run(api, clock) -> None:
    cron = a_cron()
    del cron["metadata"]["labels"]
    api.put(CRON_WORKFLOWS, cron)
    await settle(api, clock)
    adopted = await api.get(CRON_WORKFLOWS, "nightly", "lab")
    assert adopted["metadata"]["labels"] == {INSTANCE: "moorage"}
    assert [run["metadata"]["labels"][INSTANCE] for run in await runs(api)] == ["moorage"]


@pytest.mark.parametrize("case", ["argo runs", "another instance"])
async def test_what_belongs_to_argo_is_left_alone(api, clock, case: str) -> None:
    cron = a_cron()
    cron["metadata"]["labels"] = {} if case == "argo runs" else {INSTANCE: "x"}
    api.put(CRON_WORKFLOWS, cron)
    if case == "argo runs":
        lease = {"holderIdentity": "argo-1", "renewTime": rfc3339_micro(NOON), "leaseDurationSeconds": 15}
        api.put(LEASES, {"metadata": {"name": "workflow-controller", "namespace": "argo"}, "spec": lease})
    api.left = 0
    await settle(api, clock)
    assert await runs(api) == []


async def test_workflows_of_a_deleted_one_are_let_go(api, clock) -> None:
    api.put(CRON_WORKFLOWS, a_cron())
    async with a_controller(api, clock) as controller:
        api.left, api.dies_after = 3, True  # two patches and an event, then the Workflow is created
        with contextlib.suppress(Killed):
            await controller.reconcile(KEY)
    api.left = None
    assert [run["metadata"]["finalizers"] for run in await runs(api)] == [[CRON_FINALIZER]]
    api.remove(CRON_WORKFLOWS, "nightly", "lab")
    await settle(api, clock)
    assert [run["metadata"]["finalizers"] for run in await runs(api)] == [[]]


async def test_a_copy_that_is_behind_starts_nothing(api, clock) -> None:
    api.put(CRON_WORKFLOWS, a_cron())
    async with a_controller(api, clock) as behind:
        for watcher in list(api._watchers):
            api._watchers.remove(watcher)
        await settle(api, clock)
        api.remove(WORKFLOWS, names(0)[0], "lab")
        with pytest.raises(Conflict):
            await behind.reconcile(KEY)
    assert api.created == Counter(names(0))


@pytest.mark.parametrize("dies_after", [False, True])
@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
async def test_killed_at_any_write_while_a_slot_is_due_the_slot_runs_once(policy: str, dies_after: bool) -> None:
    """Killed at the first write, in the next life at the second, and so on, until one life does all of them."""
    for writes in itertools.count():
        clock = FakeClock()
        api = MortalApi(clock)
        api.put(CRON_WORKFLOWS, a_cron(concurrencyPolicy=policy))
        await settle(api, clock)
        if policy == "Forbid":
            (first,) = await runs(api)
            api.put(WORKFLOWS, first | {"status": {"phase": "Succeeded", "finishedAt": rfc3339(NOON)}})
        clock.advance(60)
        api.left, api.dies_after = writes, dies_after
        with contextlib.suppress(Killed):
            await settle(api, clock)
        was_killed, api.left = api.left < 0, None
        await settle(api, clock)
        await settle(api, clock)
        assert api.created == Counter(names(0, 1))
        status = (await api.get(CRON_WORKFLOWS, "nightly", "lab"))["status"]
        going_on = names(1) if policy == "Forbid" else names(0, 1)
        assert [run["name"] for run in status["active"]] == going_on
        assert (status["lastScheduledTime"], status["succeeded"], status["failed"]) == (
            rfc3339(NOON + MINUTE),
            int(policy == "Forbid"),
            0,
        )
        ending = [run["metadata"]["name"] for run in await runs(api) if run["spec"].get("shutdown")]
        assert ending == (names(0) if policy == "Replace" else [])
        assert not [run for run in await runs(api) if run["metadata"].get("finalizers")]
        if not was_killed:
            break
    assert writes >= 4  # intent, the Workflow, its record, and the finalizer that goes


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("kill"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("pass"), st.booleans()),
        st.tuples(st.just("advance"), st.sampled_from((1, 20, 59, 60, 61, 180))),
        st.tuples(st.just("finish"), st.sampled_from(("Succeeded", "Failed"))),
        st.tuples(st.just("delete")),
        st.tuples(st.just("forget caches")),
    ),
    max_size=25,
)


@given(
    STEPS,
    st.sampled_from(("Allow", "Forbid", "Replace")),
    st.sampled_from((None, 30, 600)),
    st.integers(0, 2),
    st.sampled_from(("0", "3")),
)
def test_a_slot_never_starts_twice(steps, policy, deadline, kept, catch_up_text) -> None:
    """Operators are killed between any two writes, runs end and go at any moment, and copies are behind."""

    async def story() -> None:
        clock = FakeClock()
        api = MortalApi(clock)
        cron = a_cron(concurrencyPolicy=policy, successfulJobsHistoryLimit=kept, failedJobsHistoryLimit=kept)
        cron["metadata"]["annotations"] = {"moorage.dev/catch-up": catch_up_text}
        if deadline is not None:
            cron["spec"]["startingDeadlineSeconds"] = deadline
        api.put(CRON_WORKFLOWS, cron)
        async with contextlib.AsyncExitStack() as stack:
            controller = await stack.enter_async_context(a_controller(api, clock))
            for step in steps:
                match step:
                    case ("kill", left, after):
                        api.left, api.dies_after = left, after
                        with contextlib.suppress(Killed, Conflict):
                            await controller.reconcile(KEY)
                        api.left = None
                        controller = await stack.enter_async_context(a_controller(api, clock))
                    case ("pass", fresh):
                        if fresh:
                            await catch_up()
                        with contextlib.suppress(Conflict):
                            await controller.reconcile(KEY)
                    case ("advance", seconds):
                        clock.advance(seconds)
                    case ("finish", phase):
                        for run in await runs(api):
                            run["status"] = {"phase": phase, "finishedAt": rfc3339(clock.now())}
                            api.put(WORKFLOWS, run)
                    case ("delete",):
                        for run in await runs(api):
                            with contextlib.suppress(NotFound):
                                await api.delete(WORKFLOWS, run["metadata"]["name"], "lab")
                    case ("forget caches",):
                        controller = await stack.enter_async_context(a_controller(api, clock))
            await catch_up()
        clock.advance(60)
        if policy != "Allow":  # these wait for what goes on
            for run in await runs(api):
                run["status"] = {"phase": "Succeeded", "finishedAt": rfc3339(clock.now())}
                api.put(WORKFLOWS, run)
        before = sum(api.created.values())
        await settle(api, clock)
        assert not [name for name, count in api.created.items() if count > 1]
        assert sum(api.created.values()) > before  # and the newest slot did start
        assert not [run for run in await runs(api) if CRON_FINALIZER in run["metadata"].get("finalizers", ())]

    anyio.run(story)
