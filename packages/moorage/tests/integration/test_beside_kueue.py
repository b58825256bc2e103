"""Runs, workspaces and workers of maps in queues of Kueue's own manager, on a real control plane.

Nodes are hollow: their pods say that they run. Needs MOORAGE_TEST_KUEUE (`moorage_testing.kueue`), and etcd,
kube-apiserver, kube-controller-manager and kube-scheduler in KUBEBUILDER_ASSETS.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage.model.kueue import KUEUE, QUEUE_LABEL
from moorage.model.mapjob import MAPJOBS
from moorage.model.workspace import WORKSPACES
from moorage_kube.errors import NotFound
from moorage_kube.meta import condition, is_deleting, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import DEPLOYMENTS, JOBS, NAMESPACES, PODS, PRIORITYCLASSES, PVS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster, ControlPlane, control_plane, services
from moorage_testing.hollow import hollow_nodes
from moorage_testing.kueue import Kueue, missing_kueue

ASSETS = os.environ.get("KUBEBUILDER_ASSETS")
V1BETA1 = "v1beta1"
FLAVORS = Resource(KUEUE, V1BETA1, "resourceflavors", "ResourceFlavor", namespaced=False)
CLUSTER_QUEUES = Resource(KUEUE, V1BETA1, "clusterqueues", "ClusterQueue", namespaced=False)
LOCAL_QUEUES = Resource(KUEUE, V1BETA1, "localqueues", "LocalQueue")
WORKLOADS = Resource(KUEUE, V1BETA1, "workloads", "Workload")
QUOTA_CPUS = 4
IMAGE = "example.test/none:1"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_kueue()), reason=missing_kueue() or "Kueue is there"),
    pytest.mark.skipif(
        not ASSETS or not (Path(ASSETS) / "kube-controller-manager").exists(),
        reason="KUBEBUILDER_ASSETS names no folder with a whole control plane",
    ),
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(Path(str(ASSETS)), tmp_path_factory.mktemp("plane")) as plane:
        plane.start_controllers()
        plane.start_scheduler()
        yield plane


class Bench:
    """A namespace whose queues share one quota of CPUs."""

    def __init__(self, api: KubeClient, cluster: Cluster, namespace: str, queue: str) -> None:
        self.api, self.cluster, self.namespace, self.queue = api, cluster, namespace, queue

    async def moor(self, *words: str, check: bool = True) -> Any:
        return await asyncio.to_thread(self.cluster.moor, *words, "-n", self.namespace, check=check)

    async def moor_run(self, name: str, *options: str) -> None:
        """A run. The options of `moor run` end where the command begins."""
        words = ("run", "-n", self.namespace, "--name", name, "--image", IMAGE, *options, "--", "python3", "t.py")
        nothing = self.cluster.home / "nothing-to-send"
        nothing.mkdir(exist_ok=True)
        await asyncio.to_thread(self.cluster.moor, *words, cwd=nothing)

    async def state(self, run: str) -> str:
        listed = json.loads((await self.moor("jobs", "-o", "json")).stdout)
        return str(next((job["state"] for job in listed if job["name"] == run), ""))

    async def pods(self, label: str) -> list[Obj]:
        listed = (await self.api.list(PODS, self.namespace, label_selector=label)).items
        return [pod for pod in listed if not is_deleting(pod)]

    async def running(self, label: str) -> int:
        return sum((pod.get("status") or {}).get("phase") == "Running" for pod in await self.pods(label))

    async def until_running(self, label: str, count: int) -> None:
        async def read() -> bool:
            return await self.running(label) == count

        await until(f"{count} running pods of {label}", read)

    async def make_map(self, name: str, workers: int, labels: dict[str, str]) -> None:
        container = {"name": "w", "image": IMAGE, "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}
        spec = {"parallelism": workers, "command": ["true"], "template": {"spec": {"containers": [container]}}}
        meta = {"name": name, "labels": labels}
        head = {"apiVersion": MAPJOBS.api_version, "kind": MAPJOBS.kind}
        await self.api.create(MAPJOBS, head | {"metadata": meta, "spec": spec}, self.namespace)
        await until(f"{name} to be accepted", lambda: self.stated(MAPJOBS, name, "Accepted", "True"))
        token = self.api.connection.token
        assert token
        lines = "".join(f'{{"value": {number}}}\n' for number in range(100))
        await self._ask(f"{name}/items?first=0&close=true", lines)

    async def _ask(self, path: str, body: str) -> None:
        import aiohttp

        info = await self.api.get(Resource("", "v1", "configmaps", "ConfigMap"), "moorage", "moorage-system")
        url = f"{info['data']['serverUrl']}/api/v1/maps/{self.namespace}/{path}"
        headers = {"Authorization": f"Bearer {self.api.connection.token}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()

    async def stated(self, resource: Resource, name: str, kind: str, status: str, reason: str = "") -> Any:
        found = condition(await self.api.get(resource, name, self.namespace), kind)
        return found and found["status"] == status and reason in ("", found["reason"]) and found


@pytest.fixture(scope="module")
async def api(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeClient]:
    """Kueue with one ClusterQueue, our services, and a node larger than the quota."""
    kueue = Kueue(tmp_path_factory.mktemp("kueue"))
    async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:
        await kueue.install(api)
        with kueue.run(plane), services(plane.kubeconfig, plane.kubeconfig.parent, plane.ports):
            await until("a ResourceFlavor", lambda: create(api, FLAVORS, "all", {}))
            for name, value in (("low", 1), ("high", 100)):
                await api.create(PRIORITYCLASSES, {"metadata": {"name": name}, "value": value})
            for number in range(3):  # homes of workspaces: nothing here makes volumes
                where = {"hostPath": {"path": "/nowhere"}, "accessModes": ["ReadWriteOnce"]}
                await create(api, PVS, f"home-{number}", where | {"capacity": {"storage": "10Gi"}})
            async with hollow_nodes(api, "large", cpu="64", gpus=0):
                yield api


async def create(api: KubeClient, resource: Resource, name: str, spec: Obj, namespace: str | None = None) -> Obj:
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
    return await api.create(resource, head, namespace)


@contextlib.asynccontextmanager
async def a_bench(api: KubeClient, plane: ControlPlane, namespace: str, queue: str) -> AsyncIterator[Bench]:
    labels = {"moorage.dev/guard": "enabled"}
    await api.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels}})
    quota = {"name": "cpu", "nominalQuota": QUOTA_CPUS}, {"name": "memory", "nominalQuota": "64Gi"}
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "all", "resources": list(quota)}]}
    preemption = {"withinClusterQueue": "LowerPriority"}
    cluster_queue = {"namespaceSelector": {}, "resourceGroups": [group], "preemption": preemption}
    await create(api, CLUSTER_QUEUES, f"cq-{namespace}", cluster_queue)
    await create(api, LOCAL_QUEUES, queue, {"clusterQueue": f"cq-{namespace}"}, namespace)
    home = plane.kubeconfig.parent
    cluster = Cluster(kind="envtest", offers=frozenset(), kubeconfig=plane.kubeconfig, home=home)
    yield Bench(api, cluster, namespace, queue)
    await api.delete(NAMESPACES, namespace)


async def test_a_queue_that_does_not_exist_is_refused_with_those_there_are(api: KubeClient, plane: Any) -> None:
    async with a_bench(api, plane, "refused", "team-a") as bench:
        words = ("run", "-n", "refused", "--queue", "team-b", "--image", IMAGE, "--", "true")
        for said in (
            await asyncio.to_thread(bench.cluster.moor, *words, check=False),
            await bench.moor("workspace", "create", "lab", "--queue", "team-b", check=False),
        ):
            assert said.returncode != 0
            assert "queue 'team-b' not found in namespace refused" in said.stderr
            assert "available: team-a" in said.stderr


async def test_runs_wait_for_quota(api: KubeClient, plane: Any) -> None:
    async with a_bench(api, plane, "runs", "team-a") as bench:
        await bench.moor_run("first", "--cpu", "3", "--queue", "team-a")
        await bench.until_running("moorage.dev/run=first", 1)
        await bench.moor_run("second", "--cpu", "3", "--queue", "team-a")

        async def explained() -> bool:
            return "insufficient unused quota for cpu" in (await bench.moor("explain", "second")).stdout

        await until("the reason of Kueue", explained)
        assert await bench.state("second") == "Waiting"
        assert await bench.pods("moorage.dev/run=second") == []
        await bench.moor("cancel", "first", "--delete")
        await bench.until_running("moorage.dev/run=second", 1)


async def test_a_workspace_waits_for_quota_and_gives_it_back(api: KubeClient, plane: Any) -> None:
    async with a_bench(api, plane, "spaces", "team-a") as bench:
        await bench.moor("workspace", "create", "one", "--cpu", "3", "--queue", "team-a", "--image", IMAGE)
        await bench.until_running("moorage.dev/workspace=one", 1)
        await bench.moor("workspace", "create", "two", "--cpu", "3", "--queue", "team-a", "--image", IMAGE)

        async def says_why() -> bool:
            status = (await api.get(WORKSPACES, "two", "spaces")).get("status") or {}
            waiting = status.get("waitingFor") or {}
            return waiting.get("reason") == "Queue" and "insufficient unused quota" in waiting.get("message", "")

        await until("the workspace to say why", says_why)
        assert "Waiting (Queue)" in (await bench.moor("workspace", "list")).stdout
        assert "Kueue's queue team-a: " in (await bench.moor("workspace", "show", "two")).stdout
        (pod,) = await bench.pods("moorage.dev/workspace=two")
        assert "insufficient unused quota" in (await bench.moor("explain", pod["metadata"]["name"])).stdout
        await bench.moor("workspace", "stop", "one")
        await bench.until_running("moorage.dev/workspace=two", 1)


async def test_a_workspace_moves_to_another_queue(api: KubeClient, plane: Any) -> None:
    async with a_bench(api, plane, "moves", "team-a") as bench:
        await create(api, LOCAL_QUEUES, "team-b", {"clusterQueue": "cq-moves"}, "moves")
        await bench.moor("workspace", "create", "lab", "--queue", "team-a", "--image", IMAGE)
        await bench.until_running("moorage.dev/workspace=lab", 1)
        await api.patch(WORKSPACES, "lab", {"metadata": {"labels": {QUEUE_LABEL: "team-b"}}}, "moves")

        async def moved() -> bool:
            try:
                deployment = await api.get(DEPLOYMENTS, "ws-lab", "moves")
            except NotFound:
                return False
            return labels_of(deployment).get(QUEUE_LABEL) == "team-b"

        await until("a Deployment in the other queue", moved)
        await bench.until_running("moorage.dev/workspace=lab", 1)


@pytest.mark.parametrize("queue", ["team-a", "default"])
async def test_a_quota_rules_the_workers_of_a_map_and_a_run_takes_it_from_them(
    api: KubeClient, plane: Any, queue: str
) -> None:
    """In a queue that the map names, and in the one that Kueue chooses."""
    namespace, mine = f"maps-{queue}", "moorage.dev/map=many"
    async with a_bench(api, plane, namespace, queue) as bench:
        await bench.make_map("many", 8, {} if queue == "default" else {QUEUE_LABEL: queue})
        await bench.until_running(mine, QUOTA_CPUS)
        said = await until("its condition", lambda: bench.stated(MAPJOBS, "many", "Working", "True", "Queue"))
        assert f"wait in Kueue's queue {queue}: " in said["message"]
        assert "4 of 8 workers" in said["message"]
        job = await api.get(JOBS, "many", namespace)
        assert not job["spec"].get("suspend"), "Kueue would suspend it at each change of scale"
        assert QUEUE_LABEL not in labels_of(job)
        assert len(await bench.pods(mine)) == 8

        await bench.moor_run("urgent", "--cpu", "2", "--queue", queue, "--priority-class", "high")
        await bench.until_running("moorage.dev/run=urgent", 1)
        await bench.until_running(mine, QUOTA_CPUS - 2)

        async def excused() -> bool:
            workers = ((await api.get(MAPJOBS, "many", namespace)).get("status") or {}).get("workers") or {}
            return workers.get("excused") == 2 and not workers.get("lost")

        await until("two workers excused, none lost", excused)
        await bench.moor("cancel", "urgent", "--delete")
        await bench.until_running(mine, QUOTA_CPUS)
