"""Nodes without machines: they accept pods, report them as running, and end them, as a kubelet would.

They let a real control plane without kubelets run whole scenarios: scheduling,
preemption, drains, node loss. A pod annotated `hollow.moorage.dev/exit-code` ends with that
code as soon as it runs; with `hollow.moorage.dev/reason` (such as OOMKilled) as that reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from moorage.model.kueue import EVICTION_CONDITION
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, rfc3339, rfc3339_micro
from moorage_kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import Key, annotations_of, is_condition_true, is_deleting, key_of
from moorage_kube.resources import LEASES, NODES, PODS, Obj
from moorage_kube.workqueue import WorkQueue

EXIT_CODE = "hollow.moorage.dev/exit-code"
REASON = "hollow.moorage.dev/reason"
TERMINATED = 143  # by SIGTERM
LEASE_NAMESPACE = "kube-node-lease"


class HollowNodes:
    """Hollow nodes of a cluster; `async with` creates and deletes them."""

    def __init__(
        self,
        api: Api,
        names: list[str],
        *,
        gpus: int = 2,
        gpu_type: str = "a100",
        cpu: str = "16",
        memory: str = "64Gi",
        labels: dict[str, str] | None = None,
        beat_seconds: float = 5.0,
    ) -> None:
        self._api = api
        self.names = names
        self._gpus = gpus
        self._gpu_type = gpu_type
        self._cpu, self._memory = cpu, memory
        self._labels = labels or {}
        self._beat_seconds = beat_seconds
        self._own = frozenset(names)
        self._lost: set[str] = set()
        self._pods, self._nodes = Informer(api, PODS), Informer(api, NODES)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> HollowNodes:
        for name in self.names:
            await self._make(name)
        self._pods.on_change(self._changed)
        self._tasks = [
            asyncio.create_task(self._pods.run()),
            asyncio.create_task(self._nodes.run()),
            asyncio.create_task(self._beat()),
            *(asyncio.create_task(self._work()) for _ in range(4)),
        ]
        await wait_synced(self._pods)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in self.names:
            for pod in self._pods.all():
                if pod["spec"].get("nodeName") == name:
                    with contextlib.suppress(ApiError):
                        await self._api.delete(
                            PODS, pod["metadata"]["name"], pod["metadata"]["namespace"], grace_period_seconds=0
                        )
            with contextlib.suppress(NotFound):
                await self._api.delete(NODES, name)

    def lose(self, name: str) -> None:
        """Let a node stop answering: it sends no heartbeats, and the status of its pods does not change."""
        self._lost.add(name)

    async def beat(self) -> None:
        """Send one heartbeat for each node that is not lost. This also happens every `beat_seconds`."""
        await asyncio.gather(*(self._be_well(name) for name in self.names if name not in self._lost))

    async def finish(self, namespace: str, pod: str, exit_code: int, reason: str | None = None) -> None:
        """End a running pod with an exit code."""
        running_pod = await self._api.get(PODS, pod, namespace)
        await self._report(running_pod, _ended(running_pod, exit_code, reason))

    async def evict(self, namespace: str, pod: str, *, used: str) -> None:
        """End a running pod like a kubelet that is short of memory, if all containers exceed their requests."""
        running_pod = await self._api.get(PODS, pod, namespace)
        message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. "
        for container in running_pod["spec"]["containers"]:
            request = ((container.get("resources") or {}).get("requests") or {}).get("memory", "0")
            message += f"Container {container['name']} was using {used}, request is {request}, "
            message += "has larger consumption of memory. "
        status = _ended(running_pod, 137, "Error") | {"reason": "Evicted", "message": message}
        disrupted = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "message": message,
            "lastTransitionTime": rfc3339(SYSTEM.now()),
        }
        status["conditions"] = [*status["conditions"], disrupted]
        await self._report(running_pod, status)

    async def _make(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"} | self._labels
        resources = {"cpu": self._cpu, "memory": self._memory, "pods": "110", "ephemeral-storage": "100Gi"}
        if self._gpus:
            labels |= {"nvidia.com/gpu.product": self._gpu_type, "nvidia.com/gpu.present": "true"}
            resources["nvidia.com/gpu"] = str(self._gpus)
        node: Obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        with contextlib.suppress(AlreadyExists):
            await self._api.create(NODES, node)
        await self._heartbeat(name)
        status = {"capacity": resources, "allocatable": resources, "conditions": [_is_well()]}
        await self._api.patch(NODES, name, {"status": status}, subresource="status")
        # the admission plugin of a real API server taints new nodes until the node controller has seen them Ready
        for _ in range(200):
            taints = (await self._api.get(NODES, name))["spec"].get("taints") or []
            if not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints):
                return
            await asyncio.sleep(0.1)
        await self._api.patch(NODES, name, {"spec": {"taints": None}})

    async def _heartbeat(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": rfc3339_micro(SYSTEM.now())}
        try:
            await self._api.patch(LEASES, name, {"spec": spec}, LEASE_NAMESPACE)
        except NotFound:
            lease: Obj = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
                "spec": spec,
            }
            with contextlib.suppress(AlreadyExists):
                await self._api.create(LEASES, lease)

    async def _beat(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(self._beat_seconds)

    async def _be_well(self, name: str) -> None:
        """Send the heartbeat of a node.

        Like a kubelet, set the node to Ready again if the controller changed that.

        On a busy machine heartbeats can be late.
        """
        with contextlib.suppress(ApiError):
            await self._heartbeat(name)
            node = self._nodes.get(name)
            if node is not None and not is_condition_true(node, "Ready"):
                await self._api.patch(NODES, name, {"status": {"conditions": [_is_well()]}}, subresource="status")

    def _changed(self, _before: Obj | None, after: Obj | None) -> None:
        if after is not None and after["spec"].get("nodeName") in self._own:
            self._queue.add(key_of(after))

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._step(key)
                self._queue.forget(key)
            except (NotFound, Conflict):
                pass
            except ApiError:
                self._queue.retry(key)
            finally:
                self._queue.done(key)

    async def _step(self, key: Key) -> None:
        pod = self._pods.get(key.name, key.namespace)
        node = pod["spec"].get("nodeName") if pod is not None else None
        if pod is None or node not in self._own or node in self._lost:
            return  # deleted, or another pod of its name that is not ours yet
        phase = (pod.get("status") or {}).get("phase")
        finished = phase in ("Succeeded", "Failed")
        if is_deleting(pod):
            if phase == "Running":  # a kubelet says how it ended first: some Jobs wait for that
                await self._report(pod, _ended(pod, TERMINATED, None))
            await self._api.delete(
                PODS, key.name, key.namespace, grace_period_seconds=0, uid=pod["metadata"]["uid"]
            )
        elif not finished:
            code = annotations_of(pod).get(EXIT_CODE)
            if phase != "Running":
                await self._report(pod, _running(pod), only_as_read=True)
            if code is not None:
                await self._report(pod, _ended(pod, int(code), annotations_of(pod).get(REASON)))

    async def _report(self, pod: Obj, status: dict[str, Any], *, only_as_read: bool = False) -> None:
        """Write the status of a pod.

        `only_as_read`: raises Conflict if the pod has changed since it was read, because an ended pod must
        not run again.
        """
        meta = pod["metadata"]
        kept = [
            condition
            for condition in (pod.get("status") or {}).get("conditions") or ()
            if condition["type"] in ("PodScheduled", "DisruptionTarget", EVICTION_CONDITION)
        ]
        status["conditions"] = kept + status["conditions"]
        guard = {"metadata": {"resourceVersion": meta["resourceVersion"]}} if only_as_read else {}
        await self._api.patch(
            PODS, meta["name"], guard | {"status": status}, meta["namespace"], subresource="status"
        )


def _is_well() -> Obj:
    now = rfc3339(SYSTEM.now())
    ready = {"type": "Ready", "status": "True", "reason": "Hollow", "message": ""}
    return ready | {"lastHeartbeatTime": now, "lastTransitionTime": now}


def _container(name: str, image: str, ready: bool, state: dict[str, Any]) -> Obj:
    return {
        "name": name,
        "image": image,
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }


def _conditions(ready: bool) -> list[Obj]:
    now = rfc3339(SYSTEM.now())
    word = "True" if ready else "False"
    return [{"type": "Initialized", "status": "True", "lastTransitionTime": now}] + [
        {"type": kind, "status": word, "lastTransitionTime": now} for kind in ("ContainersReady", "Ready")
    ]


def _running(pod: Obj) -> dict[str, Any]:
    now = rfc3339(SYSTEM.now())
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": _conditions(True),
        "containerStatuses": [
            _container(container["name"], container["image"], True, {"running": {"startedAt": now}})
            for container in pod["spec"]["containers"]
        ],
    }


def _ended(pod: Obj, exit_code: int, reason: str | None) -> dict[str, Any]:
    now = rfc3339(SYSTEM.now())
    started = (pod.get("status") or {}).get("startTime") or now
    state = {
        "terminated": {
            "exitCode": exit_code,
            "reason": reason or ("Completed" if exit_code == 0 else "Error"),
            "startedAt": started,
            "finishedAt": now,
        }
    }
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "conditions": _conditions(False),
        "containerStatuses": [
            _container(container["name"], container["image"], False, state)
            for container in pod["spec"]["containers"]
        ],
    }


@contextlib.asynccontextmanager
async def hollow_nodes(api: Api, *names: str, **options: Any) -> AsyncIterator[HollowNodes]:
    """`async with hollow_nodes(api, "n1", "n2", gpus=2) as nodes: …`"""
    async with HollowNodes(api, list(names), **options) as nodes:
        yield nodes
