"""Operators of workflows on a fake API: objects in memory, records in SQLite, real controllers.

What a test sees of them alone is here; how its pods run, and what is killed, it says itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from moorage.controllers.base import Shared
from moorage.model.argo import WORKFLOWS
from moorage.model.names import HOST_IMAGE
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.informer import wait_synced
from moorage_kube.meta import Key
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_workflows.controllers.workflow.checks import faults_of
from moorage_workflows.controllers.workflow.controller import WorkflowController
from moorage_workflows.decide.workflows.pods import StepRuntime
from moorage_workflows.workflows.records import LocalRecords


async def a_runtime() -> StepRuntime:
    return StepRuntime(image=HOST_IMAGE, on_processes=True, server_url="http://127.0.0.1:1")


def an_operator(
    api: FakeApi, records: LocalRecords, *, number: int = 0, clock: Clock = SYSTEM, **options: Any
) -> WorkflowController:
    """The controller of one operator; `number` tells it from those before it."""
    shared = Shared(api=api, clock=clock, **options)
    return WorkflowController(shared, records, holder=f"operator-{number}", runtime=a_runtime, check=faults_of)


async def operate(controller: WorkflowController) -> None:
    """Run it as the operator does, until this is cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for informer in controller.informers:
            tasks.create_task(informer.run())
        tasks.create_task(controller.loop.run())


class Scene:
    """One workflow, and operators after each other, which look at it when the test says so; time moves by hand."""

    def __init__(
        self, folder: Path, workflow: Obj, *, node: Obj | None = None, api: FakeApi | None = None, **options: Any
    ) -> None:
        self.api, self.clock = api or FakeApi(), FakeClock()
        self.records = LocalRecords(folder / "workflows.db")
        self.key = Key(workflow["metadata"]["namespace"], workflow["metadata"]["name"])
        self.controller: WorkflowController
        self._options = options  # of every operator
        self._operators = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.api.put(NODES, node or {"metadata": {"name": "n"}, "status": {}})
        self.api.put(WORKFLOWS, workflow)

    async def start(self) -> None:
        """The first operator, or the next one, which has listed everything."""
        await self.stop()
        self._operators += 1
        self.controller = an_operator(
            self.api, self.records, number=self._operators, clock=self.clock, **self._options
        )
        self._tasks = [asyncio.create_task(informer.run()) for informer in self.controller.informers]
        await wait_synced(*self.controller.informers)

    async def stop(self) -> None:
        """The operator is killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """One operator, until it is killed."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    def deafen(self, informer: int) -> None:
        """The operator's copy of these objects stays as it is."""
        self._tasks[informer].cancel()

    async def look(self, *, seconds: float = 0.0) -> timedelta | None:
        """The operator looks until nothing changes; after what time it wants to look again.

        `seconds`: that pass after each look.
        """
        again: timedelta | None = None
        for _ in range(6):
            await turns()
            again = await self.controller.reconcile(self.key)
            self.clock.advance(seconds)
        await turns()
        return again

    async def workflow(self) -> Obj:
        return await self.api.get(WORKFLOWS, self.key.name, self.key.namespace)

    async def phase(self) -> str:
        return str((await self.workflow())["status"]["phase"])

    async def pods(self) -> list[Obj]:
        return list((await self.api.list(PODS, self.key.namespace)).items)


async def turns(number: int = 50) -> None:
    """Let the other tasks run."""
    for _ in range(number):
        await asyncio.sleep(0)
