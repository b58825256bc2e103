"""What changes while an operator begins with a workflow, and what it missed: each step ends all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workflowoperators import Scene, operate, turns

from moorage.controllers.loop import FULL_LOOK_SECONDS, Counters, note_write
from moorage_kube.api import ObjList
from moorage_kube.informer import Handler, Informer
from moorage_kube.informers import Informers
from moorage_kube.moments import rfc3339
from moorage_kube.resources import PODS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

STEP = {"name": "main", "container": {"image": "busybox", "command": ["echo"]}}
WORKFLOW: Obj = {
    "metadata": {"name": "wf", "namespace": "lab"},
    "spec": {"entrypoint": "main", "templates": [STEP]},
}


class SlowApi(FakeApi):
    """Whatever is to happen while an operator lists the pods of a run happens before it has the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def list(self, resource: Resource, *args: Any, **more: Any) -> ObjList:
        listed = await super().list(resource, *args, **more)
        if resource is PODS and "=" in (more.get("label_selector") or "") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return listed

    async def patch(self, *args: Any, **more: Any) -> Obj:
        note_write()  # as the operator's client does
        return await super().patch(*args, **more)


class DeafInformer(Informer):
    """A copy whose changes nothing hears of while it is deaf."""

    deaf = False

    def on_change(self, handler: Handler) -> None:
        super().on_change(lambda before, after: None if self.deaf else handler(before, after))


class DeafInformers(Informers):
    pods: DeafInformer

    def of(self, api: Any, resource: Resource, *args: Any, **more: Any) -> Informer:
        if resource is not PODS:
            return super().of(api, resource, *args, **more)
        self.pods = DeafInformer(api, resource, *args, **more)
        return self.pods


async def end_the_pod(scene: Scene) -> None:
    [pod] = await scene.pods()
    now = rfc3339(scene.clock.now())
    ended = {"exitCode": 0, "startedAt": now, "finishedAt": now}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    await scene.api.patch(PODS, pod["metadata"]["name"], {"status": status}, "lab", subresource="status")
    await turns()


async def remove_the_pod(scene: Scene) -> None:
    [pod] = await scene.pods()
    scene.api.remove(PODS, pod["metadata"]["name"], "lab")
    await turns()


async def test_the_end_of_a_pod_while_an_operator_begins_is_not_missed(tmp_path: Path) -> None:
    api = SlowApi()
    scene = Scene(tmp_path, WORKFLOW, api=api)
    async with scene.operator():
        await scene.look()
    async with scene.operator():
        api.meanwhile = lambda: end_the_pod(scene)
        await scene.look()
        assert api.meanwhile is None
        assert await scene.phase() == "Succeeded"
    scene.records.close()


@pytest.mark.parametrize(
    ("happens", "phase"),
    [
        pytest.param(end_the_pod, "Succeeded", id="the pod ends"),
        pytest.param(remove_the_pod, "Error", id="the pod is gone"),
    ],
)
async def test_a_full_look_finds_what_was_missed_and_counts_it(tmp_path, happens, phase) -> None:
    counters, informers = Counters(), DeafInformers()
    scene = Scene(tmp_path, WORKFLOW, api=SlowApi(), metrics=counters, informers=informers)
    async with scene.operator():
        working = asyncio.create_task(operate(scene.controller))

        async def is_running() -> bool:
            return bool(await scene.pods())

        await until("the pod", is_running)
        await turns()
        informers.pods.deaf = True
        await happens(scene)
        informers.pods.deaf = False
        scene.clock.advance(3.0)  # what is written later because it was written just now
        await turns()
        assert await scene.phase() == "Running"

        async def is_ended() -> bool:
            return await scene.phase() == phase

        scene.clock.advance(FULL_LOOK_SECONDS)
        await until("the full look", is_ended)
        await turns()
        assert counters.heals == {"workflow": 1}
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
    scene.records.close()
