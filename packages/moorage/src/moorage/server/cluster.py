"""The server's copy of the cluster: three informers and a version that increases with each change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from moorage.decide.explain.snapshot import ParsedPod, parse
from moorage.decide.explain.storage import Storage, storage_of
from moorage.decide.runs.state import PodView, RunView
from moorage.decide.usage.gpus import GpuView, NodeGpus, sum_gpus, view_gpus
from moorage.decide.usage.nodes import NodeView, view_nodes
from moorage.model.machine import MACHINES
from moorage.model.names import PROCESS_RUNTIME, RUN_LABEL
from moorage.server.nodeindex import NodeIndex
from moorage.server.runindex import RunIndex
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError
from moorage_kube.informer import index_by_controller, index_by_label
from moorage_kube.informers import Informers
from moorage_kube.meta import Key, is_condition_true, key_of, labels_of
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, PVCS, PVS, STORAGECLASSES, Obj, Resource
from moorage_kube.scheduling import is_gpu

LISTED_SECONDS = 3.0  # a list for one answer is reused for others this long
COALESCE_SECONDS = 0.5  # changes within it are reported as one
BY_RUN = "run"
BY_CONTROLLER = "controller"


class Cluster:
    """Nodes, pods and Jobs by list-and-watch. `run` updates them and increases `version`."""

    def __init__(self, api: Api, *, clock: Clock = SYSTEM, informers: Informers | None = None) -> None:
        shared = informers or Informers()
        self._api = api
        self._clock = clock
        self.nodes = shared.of(api, NODES)
        self.pods = shared.of(api, PODS)
        self.jobs = shared.of(api, JOBS)
        for informer in (self.pods, self.jobs):
            informer.add_index(BY_RUN, index_by_label(RUN_LABEL))
            informer.add_index(BY_CONTROLLER, index_by_controller)
        self._runs = RunIndex(nodes=self.nodes, jobs=self.jobs, pods=self.pods, by_run=BY_RUN)
        self._parsed: dict[Key, ParsedPod] = {}
        self._gpus = NodeIndex(self.nodes, self.pods, _gpus_of)
        self._gpu_view: tuple[tuple[NodeGpus, ...], GpuView] | None = None
        self._node_views = NodeIndex(self.nodes, self.pods, _view_of)
        self._listed: dict[tuple[Resource, str | None], tuple[float, list[Obj] | None]] = {}
        self.version = 0
        self.closed = False
        self._dirty = asyncio.Event()
        self._moved = asyncio.Event()
        self.nodes.on_change(self._hear_node)
        self.pods.on_change(self._hear_pod)
        self.jobs.on_change(self._hear_job)

    @property
    def synced(self) -> bool:
        """Whether each collection was listed at least once."""
        return all(watch.synced.is_set() for watch in (self.nodes, self.pods, self.jobs))

    async def run(self) -> None:
        """Follow the cluster until cancelled; then end every stream that waits for changes."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in (self.nodes, self.pods, self.jobs):
                    tasks.create_task(informer.run())
                tasks.create_task(self._count())
        finally:
            self.close()

    def close(self) -> None:
        """End every stream that waits for changes."""
        self.closed = True
        self._moved.set()

    async def beyond(self, version: int) -> int:
        """Wait until the cluster has changed since `version`, or is closed; return the new version."""
        while self.version <= version and not self.closed:
            await self._moved.wait()
        return self.version

    def gpus(self) -> GpuView:
        """Every GPU of every node."""
        nodes = self._gpus.all()
        if self._gpu_view is None or self._gpu_view[0] is not nodes:
            self._gpu_view = (nodes, sum_gpus(nodes))
        return self._gpu_view[1]

    def parsed(self, pod: Obj) -> ParsedPod:
        """Parse a pod. An unchanged pod of `pods` gives the same object as before. Thread-safe."""
        key = key_of(pod)
        known = self._parsed.get(key)
        if known is not None and known.obj is pod:
            return known
        parsed = parse(pod)
        if self.pods.get(key.name, key.namespace) is pod:
            self._parsed[key] = parsed
        return parsed

    def node_views(self) -> tuple[NodeView, ...]:
        """Every node, by name."""
        return self._node_views.all()

    def on_processes(self) -> bool:
        """Whether pods are processes of a machine, as on a local cluster, so that images are not pulled."""
        return any(_runtime(node).startswith(PROCESS_RUNTIME) for node in self.nodes.all())

    def runs(self) -> tuple[RunView, ...]:
        """Every run, newest first."""
        return self._runs.all()

    def view_run(self, namespace: str, run: str, jobs: Sequence[Obj], kept: Sequence[PodView]) -> RunView:
        """A run from its Jobs and the stored records of its pods."""
        return self._runs.view(namespace, run, jobs, kept)

    def pods_of_run(self, namespace: str, run: str) -> list[Obj]:
        return self._runs.pods_of(namespace, run)

    def jobs_of_run(self, namespace: str, run: str) -> list[Obj]:
        return self._runs.jobs_of(namespace, run)

    def run_names(self, namespace: str) -> set[str]:
        """The names of all runs of a namespace."""
        return {
            name
            for job in self.jobs.all()
            if job["metadata"].get("namespace") == namespace and (name := labels_of(job).get(RUN_LABEL))
        }

    def pods_of_job(self, job: Obj) -> list[Obj]:
        return self.pods.by_index(BY_CONTROLLER, job["metadata"].get("uid") or "")

    async def storage(self, namespace: str, claims: list[Obj] | None = None) -> Storage:
        """Claims of a namespace (or the given ones), volumes and classes; those that may not be read are
        unknown.
        """
        if claims is None:
            claims = await self._list(PVCS, namespace)
        volumes, classes = await asyncio.gather(self._list(PVS), self._list(STORAGECLASSES))
        return storage_of(claims, volumes, classes)

    async def machines(self) -> list[Obj]:
        """Every Machine; empty if Machines cannot be read."""
        return await self._list(MACHINES) or []

    async def _list(self, resource: Resource, namespace: str | None = None) -> list[Obj] | None:
        key, now = (resource, namespace), self._clock.monotonic()
        known = self._listed.get(key)
        if known is not None and now - known[0] < LISTED_SECONDS:
            return known[1]
        try:
            objects: list[Obj] | None = (await self._api.list(resource, namespace)).items
        except ApiError:
            objects = None
        self._listed = {listed: kept for listed, kept in self._listed.items() if now - kept[0] < LISTED_SECONDS}
        self._listed[key] = (now, objects)
        return objects

    async def events_about(self, namespace: str, name: str) -> list[Obj]:
        """Events of the objects with that name; empty if events cannot be read, or the server has no right to."""
        try:
            listed = await self._api.list(EVENTS, namespace, field_selector=f"involvedObject.name={name}")
        except ApiError:
            return []
        return listed.items

    async def _count(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            self.version += 1
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()
            await self._clock.sleep(COALESCE_SECONDS)

    def _hear_node(self, before: Obj | None, after: Obj | None) -> None:
        if _node_face(before) != _node_face(after):
            self._dirty.set()

    def _hear_pod(self, before: Obj | None, after: Obj | None) -> None:
        if before is not None and after is None:
            self._parsed.pop(key_of(before), None)
        if _is_shown(before) or _is_shown(after):
            self._if_changed(before, after)

    def _hear_job(self, before: Obj | None, after: Obj | None) -> None:
        if RUN_LABEL in labels_of(after or before or {"metadata": {}}):
            self._if_changed(before, after)

    def _if_changed(self, before: Obj | None, after: Obj | None) -> None:
        if before is None or after is None or _face(before) != _face(after):
            self._dirty.set()


def _gpus_of(node: Obj, pods: Sequence[Obj]) -> NodeGpus | None:
    return next(iter(view_gpus([node], pods).nodes), None)


def _view_of(node: Obj, pods: Sequence[Obj]) -> NodeView:
    return view_nodes([node], pods)[0]


def _runtime(node: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "")


def _node_face(node: Obj | None) -> Any:
    """The part of a node that is shown: without its heartbeats."""
    if node is None:
        return None
    status = node.get("status") or {}
    return (
        labels_of(node),
        node.get("spec"),
        status.get("capacity"),
        status.get("allocatable"),
        is_condition_true(node, "Ready"),
    )


def _face(obj: Obj) -> Any:
    meta = obj["metadata"]
    return obj.get("spec"), obj.get("status"), meta.get("labels"), meta.get("annotations")


def _is_shown(pod: Obj | None) -> bool:
    """Whether a pod requests GPUs or belongs to a run."""
    if pod is None:
        return False
    if RUN_LABEL in labels_of(pod):
        return True
    return any(
        is_gpu(name)
        for container in (pod.get("spec") or {}).get("containers") or ()
        for name in ((container.get("resources") or {}).get("limits") or ())
    )
