"""Workers of maps on whichever cluster the environment chose: made, scaled, lost, stopped, gone.

Nodes are hollow: their pods say that they run and do nothing, so a test speaks for the workers. Scheduler, Job
controller, garbage collector and API are the cluster's own; operator, webhook and server ours.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from moorage.model.mapjob import MAPJOBS
from moorage_kube.errors import ApiError, Invalid, NotFound
from moorage_kube.meta import annotations_of, condition, is_deleting, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, JOBS, NAMESPACES, PODS, SECRETS, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.hollow import HollowNodes, hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api", "scheduler", "controllers")]


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    await api.create(NAMESPACES, {"metadata": {"name": unique, "labels": {"moorage.dev/guard": "enabled"}}})
    yield unique
    await api.delete(NAMESPACES, unique)


@pytest.fixture
async def nodes(api: KubeClient, unique: str) -> AsyncIterator[HollowNodes]:
    async with hollow_nodes(
        api, f"{unique}-a", f"{unique}-b", gpus=2, gpu_type=unique, labels={"test": unique}
    ) as made:
        yield made


class Maps:
    """What a map's owner and its workers say to the server."""

    def __init__(self, api: KubeClient, namespace: str, http: aiohttp.ClientSession) -> None:
        self.api, self.namespace, self._http = api, namespace, http

    async def make(self, name: str, items: int, **spec: Any) -> Obj:
        container = {
            "name": "worker",
            "image": "example.test/none:1",
            "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
        }
        pod = {"containers": [container], "nodeSelector": {"test": self.namespace}}
        mapjob = {
            "apiVersion": MAPJOBS.api_version,
            "kind": MAPJOBS.kind,
            "metadata": {"name": name},
            "spec": {"parallelism": 4, "command": ["true"], "template": {"spec": pod}} | spec,
        }
        await self.api.create(MAPJOBS, mapjob, self.namespace)
        await until(f"{name} to be accepted", lambda: self.has(name, "Accepted", "True"))
        lines = "".join(f'{{"value": {number}}}\n' for number in range(items))
        await self.ask("POST", f"{name}/items?first=0&close=true", lines)
        return await self.api.get(MAPJOBS, name, self.namespace)

    async def ask(self, method: str, path: str, body: str = "") -> Any:
        info = await self.api.get(CONFIGMAPS, "moorage", "moorage-system")
        url = f"{info['data']['serverUrl']}/api/v1/maps/{self.namespace}/{path}"
        headers = {"Authorization": f"Bearer {self.api.connection.token}", "Content-Type": "application/json"}
        async with self._http.request(method, url, data=body.encode(), headers=headers) as answer:
            said = await answer.text()
            assert answer.status < 300, said
            return json.loads(said)

    async def work(self, name: str, worker: str, **said: Any) -> Any:
        queue = (await self.api.get(MAPJOBS, name, self.namespace))["status"]["queue"]
        secret = await self.api.get(SECRETS, queue["secret"], self.namespace)
        token = base64.b64decode(secret["data"]["token"]).decode()
        url, headers = f"{queue['url']}/api/v1/work", {"Authorization": f"Bearer {token}"}
        async with self._http.post(url, json={"session": worker} | said, headers=headers) as answer:
            return await answer.json()

    async def finish(self, name: str, worker: str, number: int, many: int) -> int:
        """A worker takes items, at most so many, and they are done; requests are `number` and the next."""
        got = await self.work(name, worker, request=number, want=many, slots=many)
        reports = [
            {"item": item, "lease": lease, "outcome": "done", "seconds": 1.0}
            for item, lease, _ in got.get("items", [])
        ]
        await self.work(name, worker, request=number + 1, reports=reports)
        return len(reports)

    async def status(self, name: str) -> Obj:
        found: Obj = (await self.api.get(MAPJOBS, name, self.namespace)).get("status") or {}
        return found

    async def has(self, name: str, kind: str, status: str, reason: str | None = None) -> Any:
        found = condition(await self.api.get(MAPJOBS, name, self.namespace), kind)
        return found and found["status"] == status and (reason in (None, found["reason"])) and found

    async def running(self, name: str) -> list[Obj]:
        pods = (await self.api.list(PODS, self.namespace, label_selector=f"moorage.dev/map={name}")).items
        return [pod for pod in pods if pod["status"].get("phase") == "Running" and not is_deleting(pod)]

    async def until_running(self, name: str, count: int) -> list[Obj]:
        found: list[Obj] = []

        async def read() -> bool:
            nonlocal found
            found = await self.running(name)
            return len(found) == count

        await until(f"{count} workers of {name}", read)
        return found


@pytest.fixture
async def maps(api: KubeClient, namespace: str, nodes: HollowNodes) -> AsyncIterator[Maps]:
    async with aiohttp.ClientSession() as http:
        yield Maps(api, namespace, http)


async def test_a_wrong_map_is_refused_with_its_fields(api, namespace):
    pod = {"containers": [{"name": "w", "image": "i", "args": ["x"]}], "restartPolicy": "Always"}
    wrong = {
        "apiVersion": MAPJOBS.api_version,
        "kind": MAPJOBS.kind,
        "metadata": {"name": "wrong"},
        "spec": {"parallelism": 2, "template": {"spec": pod}},
    }
    with pytest.raises(ApiError) as refused:
        await api.create(MAPJOBS, wrong, namespace)
    assert isinstance(refused.value, Invalid)
    for path in ("spec.command", "spec.template.spec.restartPolicy", "spec.template.spec.containers[0].args"):
        assert path in refused.value.message
    wrong["spec"]["parallelism"] = 0
    with pytest.raises(Invalid, match=r"spec\.parallelism"):
        await api.create(MAPJOBS, wrong, namespace)


async def test_a_map_is_made_scaled_down_as_items_run_out_and_over_when_they_are_done(api, maps):
    made = await maps.make("tail", 60, parallelism=12)
    assert annotations_of(made)["moorage.dev/owner"]
    await maps.until_running("tail", 10)  # the first ones try
    got = await maps.finish("tail", "w", 1, 1)
    assert got == 1
    pods = await maps.until_running("tail", 12)
    assert {labels_of(pod)["moorage.dev/owner"] for pod in pods} == {labels_of(made)["moorage.dev/owner"]}
    number, done = 3, 1
    while done < 58:
        done += await maps.finish("tail", "w", number, 100 if done < 10 else 58 - done)
        number += 2
    await maps.until_running("tail", 2)
    job = await api.get(JOBS, "tail", maps.namespace)
    assert job["spec"]["parallelism"] == 2
    assert not job["status"].get("failed"), "who is told to leave is not a failure"
    assert (await maps.status("tail"))["workers"]["lost"] == 0
    while done < 60:
        done += await maps.finish("tail", "w", number, 2)
        number += 2
    over = await until("the end", lambda: maps.has("tail", "Complete", "True"))
    assert over["message"] == "60 items done, 0 failed"
    await maps.until_running("tail", 0)


async def test_a_map_that_is_restored_has_its_mapjob_and_workers_again(api, maps, cluster, tmp_path):
    made = await maps.make("kept", 20)
    await maps.until_running("kept", 4)
    assert await maps.finish("kept", "w", 1, 1) == 1
    await until("its result", lambda: _done(maps, "kept", 1))
    target = ("--kubeconfig", str(cluster.kubeconfig), str(tmp_path / "moorage.backup"))
    await asyncio.to_thread(cluster.moor, "backup", *target)
    await api.delete(MAPJOBS, "kept", maps.namespace)  # its map in the queue goes with it
    await until("it to be deleted", lambda: _is_gone(api, maps.namespace, "kept"))
    restored = await asyncio.to_thread(cluster.moor, "restore", "--force", *target)
    assert f"map {maps.namespace}/kept" not in restored.stderr  # other tests' maps may be warned of
    await until("it to be accepted", lambda: maps.has("kept", "Accepted", "True"))
    again = await api.get(MAPJOBS, "kept", maps.namespace)
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    assert (again["spec"], annotations_of(again)["moorage.dev/owner"]) == (
        made["spec"],
        annotations_of(made)["moorage.dev/owner"],
    )
    await maps.until_running("kept", 4)


async def test_lost_workers_are_replaced_at_once_and_only_so_many(api, maps):
    await maps.make("lossy", 500, parallelism=3, restartLimit=2)
    for lost in (1, 2):
        pods = await maps.until_running("lossy", 3)
        await api.delete(PODS, pods[0]["metadata"]["name"], maps.namespace)  # as a drain does
        await until("it to be counted", lambda lost=lost: _lost(maps, "lossy", lost))
    pods = await maps.until_running("lossy", 3)
    await api.delete(PODS, pods[0]["metadata"]["name"], maps.namespace)
    await until("the third", lambda: _lost(maps, "lossy", 3))
    await until("the limit", lambda: maps.has("lossy", "Working", "True", "RestartLimit"))
    assert len(await maps.until_running("lossy", 2)) == 2
    assert (await maps.status("lossy"))["workers"]["restarts"] == 2


async def _done(maps: Maps, name: str, done: int) -> bool:
    return bool((await maps.status(name)).get("items", {}).get("done") == done)


async def _is_gone(api: KubeClient, namespace: str, name: str) -> bool:
    return name not in {obj["metadata"]["name"] for obj in (await api.list(MAPJOBS, namespace)).items}


async def _lost(maps: Maps, name: str, lost: int) -> bool:
    return bool((await maps.status(name)).get("workers", {}).get("lost") == lost)


@pytest.mark.parametrize(
    ("code", "reason", "told"),
    [(137, "OOMKilled", "OutOfMemory"), (3, None, "CannotWork"), (128, "StartError", "CannotStart")],
)
async def test_workers_that_cannot_work_are_not_restarted_for_ever(api, maps, code, reason, told):
    notes = {"hollow.moorage.dev/exit-code": str(code)} | ({"hollow.moorage.dev/reason": reason} if reason else {})
    pod = {
        "nodeSelector": {"test": maps.namespace},
        "containers": [
            {
                "name": "w",
                "image": "example.test/none:1",
                "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
            }
        ],
    }
    template = {"metadata": {"annotations": notes}, "spec": pod}
    await maps.make("broken", 10, parallelism=2, template=template)
    failed = await until("the failure", lambda: maps.has("broken", "Failed", "True"))
    assert failed["reason"] == told
    assert "To fix it: " in failed["message"]
    await maps.until_running("broken", 0)
    pods = (await api.list(PODS, maps.namespace)).items
    assert 3 <= len(pods) <= 6, "a few tried, and no more"
    jobs = (await api.list(JOBS, maps.namespace)).items
    assert all(job["spec"]["parallelism"] == 0 for job in jobs)


async def test_paused_it_gives_its_places_back_and_goes_on_when_it_is_resumed(maps):
    await maps.make("pause", 50, parallelism=2)
    await maps.until_running("pause", 2)
    await maps.ask("PATCH", "pause", '{"state": "paused"}')
    await maps.until_running("pause", 0)
    await maps.ask("PATCH", "pause", '{"state": "running"}')
    await maps.until_running("pause", 2)
    assert (await maps.status("pause"))["workers"]["lost"] == 0
    await maps.ask("PATCH", "pause", '{"state": "cancelled"}')
    await maps.until_running("pause", 0)


async def test_deleting_it_takes_its_items_and_all_that_was_made_for_it(api, maps):
    made = await maps.make("gone", 20, parallelism=2)
    await maps.until_running("gone", 2)
    await api.delete(MAPJOBS, "gone", maps.namespace)

    async def is_gone() -> bool:
        left = [
            one
            for resource in (MAPJOBS, JOBS, PODS, SECRETS, CONFIGMAPS)
            for one in (await api.list(resource, maps.namespace)).items
            if one["metadata"]["name"].startswith("gone")
        ]
        return not left

    await until("everything to go", is_gone)
    listed = await maps.ask("GET", "")
    assert listed["maps"] == []
    again = await maps.make("gone", 5, parallelism=1)
    assert again["status"]["queue"]["uid"] != made["status"]["queue"]["uid"]
    with pytest.raises(NotFound):
        await api.get(SECRETS, made["status"]["queue"]["secret"], maps.namespace)
