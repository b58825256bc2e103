"""A wide workflow on a cluster without room: its pods are created a part at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workflowoperators import an_operator, operate

from moorage.model.argo import WORKFLOWS
from moorage_kube.errors import Forbidden
from moorage_kube.resources import NODES, PODS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import background
from moorage_workflows.controllers.workflow.pendingpods import LEAST
from moorage_workflows.decide.workflows.waiting import MANY_PENDING
from moorage_workflows.model.workflow import STRICT_ANNOTATION, NodeRecord, NodeType
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio
STEPS = LEAST + 30


class FullApi(FakeApi):
    """Refuses pods for a quota while `is_full`."""

    is_full = False

    async def create(self, resource: Resource, obj: Obj, *args: Any, **more: Any) -> Obj:
        if resource is PODS and self.is_full:
            raise Forbidden("exceeded quota: team, requested: pods=1, used: pods=0, limited: pods=0")
        return await super().create(resource, obj, *args, **more)


class Site:
    def __init__(self, api: FakeApi, records: LocalRecords, uid: str) -> None:
        self.api, self.records, self._uid = api, records, uid

    async def pods(self) -> list[Obj]:
        return list((await self.api.list(PODS)).items)

    async def nodes(self) -> list[NodeRecord]:
        """Of the steps that have a pod, or are to have one."""
        page = await self.records.do(lambda store: store.nodes(self._uid))
        return [node for node in page.nodes if node.type is NodeType.POD]

    async def until_nodes(self, what: str, is_so: Callable[[list[NodeRecord]], bool]) -> None:
        async def probe() -> bool:
            return is_so(await self.nodes())

        await until(what, probe)

    async def until_pods(self, number: int) -> None:
        async def probe() -> bool:
            return len(await self.pods()) == number

        await until(f"{number} pods", probe)

    async def status(self, pod: Obj, **status: Any) -> None:
        meta = pod["metadata"]
        await self.api.patch(PODS, meta["name"], {"status": status}, meta["namespace"], subresource="status")

    async def until_ended(self) -> str:
        async def phase() -> str:
            status = (await self.api.get(WORKFLOWS, "wide", "default")).get("status") or {}
            return str(status.get("phase")) if status.get("phase") in ("Succeeded", "Failed", "Error") else ""

        ended: str = await until("the end of the workflow", phase)
        return ended


@contextlib.asynccontextmanager
async def a_site(folder: Path, api: FakeApi, annotations: dict[str, str] | None = None) -> AsyncIterator[Site]:
    records = LocalRecords(folder / "workflows.db")
    api.put(NODES, {"metadata": {"name": "n"}, "status": {}})
    step = {"name": "step", "template": "train", "withSequence": {"count": str(STEPS)}}
    spec = {
        "entrypoint": "main",
        "templates": [
            {"name": "main", "steps": [[step]]},
            {"name": "train", "container": {"image": "busybox", "command": ["train"]}},
        ],
    }
    meta = {"name": "wide", "namespace": "default", "annotations": annotations or {}}
    made = await api.create(WORKFLOWS, {"metadata": meta, "spec": spec})
    with contextlib.closing(records):
        async with background(operate(an_operator(api, records))):
            yield Site(api, records, made["metadata"]["uid"])


async def test_only_a_part_of_the_pods_wait_for_a_node(tmp_path: Path) -> None:
    async with a_site(tmp_path, FakeApi()) as site:
        await site.until_nodes(
            "the steps in line", lambda nodes: sum(node.message == MANY_PENDING for node in nodes) == STEPS - LEAST
        )
        await site.until_pods(LEAST)
        for pod in (await site.pods())[:7]:
            await site.status(pod, phase="Running")
        await site.until_pods(LEAST + 7)


async def test_all_of_them_run_in_the_end(tmp_path: Path) -> None:
    async with a_site(tmp_path, FakeApi()) as site:
        await site.until_pods(LEAST)
        ended: set[str] = set()
        while len(ended) < STEPS:
            for pod in await site.pods():
                if (name := pod["metadata"]["name"]) not in ended:
                    ended.add(name)
                    state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
                    await site.status(pod, phase="Succeeded", containerStatuses=[{"name": "main", "state": state}])
            await asyncio.sleep(0)
        assert await site.until_ended() == "Succeeded"


async def test_a_strict_workflow_creates_all_of_its_pods_as_argo_does(tmp_path: Path) -> None:
    async with a_site(tmp_path, FakeApi(), {STRICT_ANNOTATION: "true"}) as site:
        await site.until_pods(STEPS)


@pytest.mark.parametrize("is_full", [False, True])
async def test_steps_whose_pods_were_never_created_end_with_the_workflow(tmp_path: Path, is_full: bool) -> None:
    api = FullApi()
    api.is_full = is_full
    async with a_site(tmp_path, api) as site:
        await site.until_nodes("every step to wait", lambda nodes: sum(bool(node.message) for node in nodes) >= 30)
        await api.patch(WORKFLOWS, "wide", {"spec": {"shutdown": "Terminate"}}, "default")
        assert await site.until_ended() == "Failed"
        assert {node.phase for node in await site.nodes()} == {"Failed"}
        assert await site.pods() == []


async def test_a_quota_is_asked_for_a_part_of_the_pods_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    api = FullApi()
    api.is_full = True
    async with a_site(tmp_path, api) as site:
        await site.until_nodes(
            "what the quota refuses",
            lambda nodes: sum("exceeded quota" in node.message for node in nodes) == LEAST,
        )
        assert sum(node.message == MANY_PENDING for node in await site.nodes()) == STEPS - LEAST
        api.is_full = False
        await site.until_pods(LEAST)
