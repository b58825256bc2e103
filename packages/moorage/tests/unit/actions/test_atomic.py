"""Runs and maps whose creation fails or is interrupted, and those whose answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from moorage.actions.mapjobs import create_map
from moorage.actions.submit import create_run
from moorage.decide.maps.mapjob import MapJobPlan
from moorage.decide.runs.request import RunPlan
from moorage.model.mapjob import MAPJOBS
from moorage_kube.errors import ServerError, UsageError
from moorage_kube.resources import CONFIGMAPS, JOBS, PVCS, SECRETS, Obj, Resource
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

KINDS = (PVCS, SECRETS, CONFIGMAPS, JOBS, MAPJOBS)


class SlowApi(FakeApi):
    """A fake whose answer to the creation of one kind can be held back, or lost."""

    def __init__(self, kind: Resource) -> None:
        super().__init__()
        self.kind = kind
        self.is_lost = False
        self.stored, self.answer, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        created = await super().create(resource, obj, namespace, dry_run=dry_run)
        if resource == self.kind:
            self.stored.set()
            if self.is_lost:
                raise ServerError("the Kubernetes API gave no answer", status=0)
            await self.answer.wait()
        return created

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        self.asked.set()
        return await super().get(resource, name, namespace)

    async def kinds(self) -> set[str]:
        """Of which there are objects."""
        return {kind.kind for kind in KINDS if (await self.list(kind)).items}


def a_job() -> Obj:
    return an_object(JOBS, "a1")


def a_run() -> RunPlan:
    claim = an_object(PVCS, "a1-checkpoint")
    return RunPlan(name="a1", job=a_job(), secret=an_object(SECRETS, "a1-env"), claims=(claim,))


def a_map() -> MapJobPlan:
    secret, code = an_object(SECRETS, "a1-env"), an_object(CONFIGMAPS, "a1-code")
    return MapJobPlan(name="a1", mapjob=an_object(MAPJOBS, "a1"), secret=secret, config_map=code)


def creating(api: FakeApi, what: str) -> Awaitable[Obj]:
    if what == "run":
        return create_run(api, a_run(), "lab", note=lambda _: None)
    return create_map(api, a_map(), "lab", FakeClock())


@pytest.mark.parametrize(
    ("what", "kind"),
    [(what, kind) for what, kinds in
     (("run", (PVCS, SECRETS, JOBS)), ("map", (SECRETS, CONFIGMAPS, MAPJOBS))) for kind in kinds],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)  # fmt: skip
async def test_nothing_stays_of_what_is_interrupted_before_an_answer_comes(what: str, kind: Resource) -> None:
    api = SlowApi(kind)
    task = asyncio.ensure_future(creating(api, what))
    await api.stored.wait()
    task.cancel()
    api.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await api.kinds() == set()


async def test_nothing_stays_of_a_map_that_is_interrupted_before_its_server_accepts_it() -> None:
    api = SlowApi(PVCS)
    task = asyncio.ensure_future(creating(api, "map"))
    await api.asked.wait()
    assert await api.kinds() == {"Secret", "ConfigMap", "MapJob"}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await api.kinds() == set()


@pytest.mark.parametrize("kind", [PVCS, SECRETS, JOBS], ids=lambda kind: kind.kind)
async def test_a_run_is_created_although_an_answer_is_lost(kind: Resource) -> None:
    api = SlowApi(kind)
    api.is_lost = True
    job = await creating(api, "run")
    assert job["metadata"]["name"] == "a1"
    assert await api.kinds() == {"PersistentVolumeClaim", "Secret", "Job"}


async def test_the_run_of_another_stays_where_the_answer_to_ours_is_lost() -> None:
    class FailingApi(FakeApi):
        async def create(self, resource: Resource, obj: Obj, *args: Any, **options: Any) -> Obj:
            if resource == JOBS:
                raise ServerError("the Kubernetes API gave no answer", status=0)
            return await super().create(resource, obj, *args, **options)

    api = FailingApi()
    theirs = api.put(JOBS, a_job())
    with pytest.raises(ServerError, match="no answer"):
        await creating(api, "run")
    assert [(await api.list(kind)).items for kind in (PVCS, SECRETS, JOBS)] == [[], [], [theirs]]


async def test_a_run_whose_name_is_taken_leaves_nothing_behind() -> None:
    api = FakeApi()
    theirs = api.put(JOBS, a_job())
    with pytest.raises(UsageError, match="taken"):
        await creating(api, "run")
    assert [(await api.list(kind)).items for kind in (PVCS, SECRETS, JOBS)] == [[], [], [theirs]]
