"""`podGC` with its delay, over restarts of the operator: objects in a fake API, records in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.workflowoperators import Scene

from moorage.model.argo import NODE_NAME_ANNOTATION, WORKFLOWS
from moorage_kube.errors import NotFound
from moorage_kube.moments import rfc3339
from moorage_kube.resources import PODS, Obj

pytestmark = pytest.mark.anyio


class PodsScene(Scene):
    """A workflow of two steps after each other, whose pods the test ends."""

    def __init__(self, folder: Path, **pod_gc: Any) -> None:
        step = {"name": "say", "container": {"image": "busybox", "command": ["echo"]}}
        main = {"name": "main", "steps": [[{"name": "a", "template": "say"}], [{"name": "b", "template": "say"}]]}
        spec = {"entrypoint": "main", "templates": [main, step], "podGC": pod_gc}
        super().__init__(folder, {"metadata": {"name": "wf", "namespace": "lab"}, "spec": spec})

    async def end(self, step: str, *, code: int = 0) -> None:
        ended = {"exitCode": code, "startedAt": rfc3339(self.clock.now()), "finishedAt": rfc3339(self.clock.now())}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
        }
        pod = (await self.pods_by_step())[step]
        await self.api.patch(PODS, pod["metadata"]["name"], {"status": status}, "lab", subresource="status")
        await self.look()

    async def pods_by_step(self) -> dict[str, Obj]:
        pods = await self.pods()
        return {pod["metadata"]["annotations"][NODE_NAME_ANNOTATION].rpartition(".")[2]: pod for pod in pods}

    async def there(self) -> Sequence[str]:
        return sorted(await self.pods_by_step())


async def test_a_pod_stays_for_its_delay_and_no_longer(tmp_path: Path) -> None:
    scene = PodsScene(tmp_path, strategy="OnPodCompletion", deleteDelayDuration="1m")
    async with scene.operator():
        await scene.look()
        await scene.end("a")
        scene.clock.advance(59)
        assert await scene.look() == timedelta(seconds=1)
        assert await scene.there() == ["a", "b"]
        scene.clock.advance(1)
        await scene.look()
        assert await scene.there() == ["b"]


@pytest.mark.parametrize(
    ("gc", "delay"),
    [
        pytest.param({"deleteDelayDuration": "2m"}, 120, id="as the manifest says"),
        pytest.param({}, 5, id="as Argo's controller does without it"),
        pytest.param({"deleteDelayDuration": "0s"}, 0, id="at once"),
    ],
)
@pytest.mark.parametrize(
    "strategy", ["OnPodCompletion", "OnPodSuccess", "OnWorkflowCompletion", "OnWorkflowSuccess"]
)
async def test_the_delay_holds_over_restarts_of_the_operator(tmp_path, strategy, gc, delay) -> None:
    scene = PodsScene(tmp_path, strategy=strategy, **gc)
    for step in ("a", "b"):
        async with scene.operator():
            await scene.look()
            await scene.end(step)
    assert await scene.phase() == "Succeeded"
    if delay:
        scene.clock.advance(delay - 1)
        async with scene.operator():
            await scene.look()
        assert await scene.there() == ["a", "b"]
        scene.clock.advance(1)
    async with scene.operator():
        assert await scene.look() is None
    assert await scene.there() == []


async def test_a_pod_that_failed_stays_where_only_successes_are_deleted(tmp_path: Path) -> None:
    for strategy in ("OnPodSuccess", "OnWorkflowSuccess"):
        (tmp_path / strategy).mkdir()
        scene = PodsScene(tmp_path / strategy, strategy=strategy)
        async with scene.operator():
            await scene.look()
            await scene.end("a", code=1)
            scene.clock.advance(3600)
            await scene.look()
        async with scene.operator():
            await scene.look()
        assert (await scene.phase(), await scene.there()) == ("Failed", ["a"])


async def test_a_workflow_lives_long_enough_for_the_logs_of_its_pods_to_be_kept(tmp_path: Path) -> None:
    scene = PodsScene(tmp_path)
    live = await scene.workflow()
    live["spec"]["ttlStrategy"] = {"secondsAfterCompletion": 0}
    await scene.api.update(WORKFLOWS, live)
    async with scene.operator():
        for step in ("a", "b"):
            await scene.look()
            await scene.end(step)
        scene.clock.advance(4)
        assert await scene.look() == timedelta(seconds=1)
        assert await scene.phase() == "Succeeded"
        scene.clock.advance(1)
        await scene.look()
        with pytest.raises(NotFound):
            await scene.phase()
