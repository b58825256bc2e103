"""A semaphore whose limit is missing: the workflow says so, and goes on when it is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage.apimachinery.meta import Key
from moorage.apimachinery.resources import CONFIGMAPS, NODES, PODS
from moorage.controllers.workflow.checks import faults_of
from moorage.controllers.workflow.controller import MISSING_EVERY, WorkflowController
from moorage.decide.workflows.pods import StepRuntime
from moorage.kube.events import EventRecorder
from moorage.model.names import HOST_IMAGE
from moorage.model.workflow import STRICT_ANNOTATION, WORKFLOWS
from moorage.testing.clock import FakeClock
from moorage.testing.fakeapi import FakeApi
from moorage.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

KEY = Key("lab", "wf")
LOCKS = {"semaphores": [{"configMapKeyRef": {"name": "limits", "key": "train"}}]}
WORDS = "Waiting for lab/ConfigMap/limits/train lock: the ConfigMap limits does not exist"


async def a_runtime() -> StepRuntime:
    return StepRuntime(image=HOST_IMAGE, on_processes=True, server_url="http://127.0.0.1:1")


class Scene:
    def __init__(self, folder: Path, *, is_whole: bool, is_strict: bool = False) -> None:
        self.api, self.clock = FakeApi(), FakeClock()
        self.records = LocalRecords(folder / "workflows.db")
        self.api.put(NODES, {"metadata": {"name": "n"}, "status": {}})
        template: dict[str, Any] = {"name": "say", "container": {"image": "busybox", "command": ["echo"]}}
        spec: dict[str, Any] = {"entrypoint": "say", "templates": [template]}
        (spec if is_whole else template)["synchronization"] = LOCKS
        meta: dict[str, Any] = {"name": "wf", "namespace": "lab"}
        if is_strict:
            meta["annotations"] = {STRICT_ANNOTATION: "true"}
        self.api.put(WORKFLOWS, {"metadata": meta, "spec": spec})
        self.controller = WorkflowController(
            self.api,
            self.records,
            holder="operator",
            runtime=a_runtime,
            check=faults_of,
            clock=self.clock,
            events=EventRecorder(self.api, component="test", clock=self.clock),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(informer.run()) for informer in self.controller.informers]
        for informer in self.controller.informers:
            await informer.synced.wait()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        for _ in range(6):
            for _ in range(50):
                await asyncio.sleep(0)
            again = await self.controller.reconcile(KEY)
            self.clock.advance(2.0)  # the status is written at most so often
        for _ in range(50):
            await asyncio.sleep(0)
        self.again = again

    async def messages(self) -> tuple[str, str]:
        """(of the workflow, of its node)."""
        obj = await self.api.get(WORKFLOWS, "wf", "lab")
        loaded = await self.records.load(obj["metadata"]["uid"], "operator")
        of_nodes = "".join(node.message for node in loaded.nodes)
        return str((obj.get("status") or {}).get("message") or ""), of_nodes


@pytest.mark.parametrize("is_whole", [True, False], ids=["of the workflow", "of a step"])
async def test_a_limit_that_is_missing_is_said_and_waited_for(tmp_path: Path, is_whole: bool) -> None:
    scene = Scene(tmp_path, is_whole=is_whole)
    async with scene.running():
        await scene.look()
        assert await scene.messages() == ((WORDS, "") if is_whole else ("", WORDS))
        assert scene.again is not None
        assert scene.again <= MISSING_EVERY
        assert (await scene.api.list(PODS, "lab")).items == []
        scene.api.put(CONFIGMAPS, {"metadata": {"name": "limits", "namespace": "lab"}, "data": {"train": "1"}})
        await scene.look()
        assert len((await scene.api.list(PODS, "lab")).items) == 1
        assert await scene.messages() == ("", "")


@pytest.mark.parametrize(
    ("is_whole", "phase"), [(True, "Failed"), (False, "Error")], ids=["of the workflow", "of a step"]
)
async def test_a_strict_workflow_does_not_wait_for_it(tmp_path: Path, is_whole: bool, phase: str) -> None:
    scene = Scene(tmp_path, is_whole=is_whole, is_strict=True)
    async with scene.running():
        await scene.look()
    obj = await scene.api.get(WORKFLOWS, "wf", "lab")
    assert obj["status"]["phase"] == phase
    assert "cannot be had: the ConfigMap limits does not exist" in obj["status"]["message"]
    assert "synchronization" not in obj["status"]
