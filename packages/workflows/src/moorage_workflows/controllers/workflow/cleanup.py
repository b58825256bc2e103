"""Clean up after runs that have ended: their pods, volumes and budget, and at last their objects."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from moorage.controllers.base import Shared
from moorage.model.argo import NODE_ID_ANNOTATION, WORKFLOWS
from moorage_kube.errors import NotFound
from moorage_kube.meta import Key, annotations_of, is_deleting
from moorage_kube.resources import Obj
from moorage_workflows.controllers.workflow.collecting import Collector
from moorage_workflows.controllers.workflow.objects import RunObjects
from moorage_workflows.controllers.workflow.observe import is_held, is_of
from moorage_workflows.controllers.workflow.records import RecordStore
from moorage_workflows.controllers.workflow.runpods import RunPods, at_once
from moorage_workflows.controllers.workflow.summary import collect_at, pod_delete_at
from moorage_workflows.model.workflow import NodeRecord, WorkflowRecord


class Cleanup:
    """Cleans up after runs. Every method is safe to repeat, also by an operator that did not see the run."""

    def __init__(
        self,
        shared: Shared,
        records: RecordStore,
        *,
        holder: str,
        pods: RunPods,
        objects: RunObjects,
        collector: Collector,
    ) -> None:
        self._api, self._clock, self._records, self._holder = shared.api, shared.clock, records, holder
        self._pods, self._objects, self._collector = pods, objects, collector
        self._deletions: dict[Key, tuple[str, dict[str, datetime]]] = {}  # of ended ones: uid, and as in `Live`

    def forget(self, key: Key) -> None:
        """Drop the planned deletions for an object of this name."""
        self._deletions.pop(key, None)

    async def end(self, key: Key, record: WorkflowRecord, nodes: Mapping[str, NodeRecord]) -> None:
        """Release a run's pods, and delete its volumes and budget. `nodes`: by pod name."""
        pods = [pod for pod in self._pods.of(key) if is_of(pod, record.uid)]
        deletions: dict[str, datetime] = {}
        await at_once(
            [
                partial(self._end_pod, key, pod, record, nodes.get(pod["metadata"]["name"]), deletions)
                for pod in pods
            ]
        )
        self._deletions[key] = (record.uid, deletions)
        await self._objects.end(key, record)

    async def _end_pod(
        self, key: Key, pod: Obj, record: WorkflowRecord, node: NodeRecord | None, deletions: dict[str, datetime]
    ) -> None:
        """Release a pod of an ended run. Delete it if it still runs, else record when `podGC` deletes it."""
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        goes_on = status.get("phase") not in ("Succeeded", "Failed") and not is_deleting(pod)
        if is_held(pod):
            await self._pods.release(name, key.namespace)
        if goes_on:
            await self._pods.delete(name, key.namespace)
        elif (at := pod_delete_at(record, node, pod)) is not None:
            deletions[name] = at

    async def collect(self, key: Key, obj: Obj) -> timedelta | None:
        """Delete an ended workflow when its TTL is over, and its pods when `podGC` says so."""
        uid = str(obj["metadata"]["uid"])
        pods = [pod for pod in self._pods.of(key) if is_of(pod, uid) and NODE_ID_ANNOTATION in annotations_of(pod)]
        for pod in self._pods.of(key):
            if is_held(pod):
                await self._pods.release(pod["metadata"]["name"], key.namespace)
        again = _sooner(
            await self._collector.collect(key, obj, is_deleting=False), await self._delete_pods(key, obj, pods)
        )
        at = collect_at(obj)
        if at is None:
            return again
        now = self._clock.now()
        if at > now:
            return _sooner(at - now, again)
        with contextlib.suppress(NotFound):
            await self._api.delete(
                WORKFLOWS, key.name, key.namespace, uid=obj["metadata"]["uid"], propagation="Background"
            )
        return None

    async def _delete_pods(self, key: Key, obj: Obj, pods: Sequence[Obj]) -> timedelta | None:
        """Delete pods of an ended workflow as `podGC` says. Returns when to look again."""
        uid = str(obj["metadata"]["uid"])
        if not pods:
            self._deletions.pop(key, None)
            return None
        if (known := self._deletions.get(key)) is None or known[0] != uid:  # an earlier operator saw its end
            known = self._deletions[key] = (uid, {})
            with contextlib.suppress(NotFound):
                loaded = await self._records.load(uid, self._holder)
                nodes = {node.pod_name: node for node in loaded.nodes if node.pod_name}
                for pod in pods:
                    name = pod["metadata"]["name"]
                    if (at := pod_delete_at(loaded.workflow, nodes.get(name), pod)) is not None:
                        known[1][name] = at
        return await self._pods.delete_due(key, known[1])


def _sooner(delay: timedelta | None, other: timedelta | None) -> timedelta | None:
    return min((each for each in (delay, other) if each is not None), default=None)
