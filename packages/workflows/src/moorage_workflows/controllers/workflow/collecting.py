"""Garbage collection of artifacts by `artifactGC`: reads and writes for `decide.workflows.collection`.

The server deletes artifacts in our own store. Pods of the workflow's namespace delete artifacts in
users' buckets, by the Secrets that the user named. Each deletion is noted in the records. A deletion
without a note is repeated without harm: a newer artifact under the same key has another version, and
stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from moorage.controllers.base import Shared
from moorage.model.argo import ARTIFACT_FINALIZER, WORKFLOWS
from moorage_kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from moorage_kube.meta import Key
from moorage_kube.moments import moment
from moorage_kube.resources import PODS, Obj
from moorage_workflows.controllers.workflow.observe import is_of
from moorage_workflows.controllers.workflow.records import RecordStore
from moorage_workflows.controllers.workflow.summary import collection_patch, typed
from moorage_workflows.decide.workflows.collection import (
    Deleter,
    Doomed,
    deleters,
    deletion_of,
    doomed,
    is_own,
    left,
    make_deleter_pod,
)
from moorage_workflows.decide.workflows.podpatch import PatchError
from moorage_workflows.decide.workflows.pods import StepRuntime
from moorage_workflows.model.workflow import WorkflowRecord

AGAIN_AFTER = timedelta(minutes=5)  # between two tries of failed deletions
LOOK_EVERY = timedelta(seconds=30)  # at pods whose end is not heard of

Runtime = Callable[[], Awaitable[StepRuntime]]


class Collector:
    """Deletes the artifacts of runs that have ended or have objects with a deletion timestamp."""

    def __init__(self, shared: Shared, records: RecordStore, *, holder: str, runtime: Runtime) -> None:
        self._api, self._clock, self._events = shared.api, shared.clock, shared.events
        self._records, self._holder, self._runtime = records, holder, runtime

    async def add_finalizer(self, key: Key, obj: Obj) -> None:
        """Add our finalizer before any step runs, so that the object exists until its artifacts are deleted."""
        meta = obj["metadata"]
        finalizers = list(meta.get("finalizers") or ())
        if ARTIFACT_FINALIZER in finalizers:
            return
        patch = {"resourceVersion": meta["resourceVersion"], "finalizers": [*finalizers, ARTIFACT_FINALIZER]}
        await self._api.patch(WORKFLOWS, key.name, {"metadata": patch}, key.namespace)

    async def collect(self, key: Key, obj: Obj, *, is_deleting: bool) -> timedelta | None:
        """Delete the artifacts that are due; return when to look again, None if all is done for now."""
        if ARTIFACT_FINALIZER not in (obj["metadata"].get("finalizers") or ()):
            return None
        uid = str(obj["metadata"]["uid"])
        try:
            loaded = await self._records.load(uid, self._holder)
        except NotFound:  # it never began
            await self._remove_finalizer(key, obj)
            return None
        now_due = doomed(loaded.nodes, is_deleting=is_deleting)
        failures: list[str] = []
        if own := [each for each in now_due if is_own(each.artifact)]:
            failures += await self._records.delete_artifacts(uid, self._holder, [each.name for each in own])
        others = [each for each in now_due if not is_own(each.artifact)]
        is_waiting = await self._delete_by_pods(key, loaded.workflow, others, failures)
        if failures:
            await self._say(key, obj, "; ".join(failures))
        if is_waiting:
            return LOOK_EVERY
        rest = left((await self._records.load(uid, self._holder)).nodes)
        spec = loaded.workflow.document.get("spec") or {}
        is_forced = bool((spec.get("artifactGC") or {}).get("forceFinalizerRemoval"))
        if not rest or (is_forced and is_deleting):
            await self._remove_finalizer(key, obj)
            return None
        if not failures:
            await self._say(key, obj, "")
            return None
        return AGAIN_AFTER

    async def _delete_by_pods(
        self, key: Key, record: WorkflowRecord, chosen: Sequence[Doomed], failures: list[str]
    ) -> bool:
        """Delete artifacts with pods. Returns whether a pod is still running."""
        if not chosen:
            return False
        runtime = await self._runtime()
        is_waiting = False
        for deleter in deleters(record.document.get("spec") or {}, key.name, chosen):
            try:
                pod = await self._api.get(PODS, deleter.name, key.namespace)
            except NotFound:
                is_waiting |= await self._start(key, record, deleter, runtime, failures)
                continue
            if not is_of(pod, record.uid):
                failures.append(f"another pod has the name {deleter.name}: delete it")
                continue
            deletion = deletion_of(pod)
            if deletion is None:
                is_waiting = True
                continue
            await self._records.mark_deleted(record.uid, self._holder, deletion.deleted)
            if deletion.failure:
                failures.append(deletion.failure)
                if self._clock.now() - _ended_at(pod, self._clock.now()) < AGAIN_AFTER:
                    continue  # its log is there to be read
            with contextlib.suppress(NotFound):
                await self._api.delete(PODS, deleter.name, key.namespace, uid=pod["metadata"]["uid"])
            is_waiting |= bool(deletion.failure)
        return is_waiting

    async def _start(
        self, key: Key, record: WorkflowRecord, deleter: Deleter, runtime: StepRuntime, failures: list[str]
    ) -> bool:
        try:
            pod = make_deleter_pod(
                deleter,
                record.document,
                image=runtime.image,
                python=runtime.python,
                on_processes=runtime.on_processes,
            )
        except PatchError as error:
            failures.append(f"spec.artifactGC.podSpecPatch: {error.message}")
            return False
        try:
            await self._api.create(PODS, pod, key.namespace)
        except AlreadyExists:
            pass
        except (Invalid, BadRequest, Forbidden) as error:
            failures.append(f"pod {deleter.name}: {error.message}")
            return False
        return True

    async def _say(self, key: Key, obj: Obj, failure: str) -> None:
        """Write the condition; write an event if the condition is new."""
        patch = collection_patch(obj, failure)
        if patch is None:
            return
        with contextlib.suppress(NotFound):
            await self._api.patch(WORKFLOWS, key.name, patch, key.namespace)
        if failure:
            await self._events.record(typed(obj), "Warning", "ArtifactGCFailed", failure)

    async def _remove_finalizer(self, key: Key, obj: Obj) -> None:
        finalizers = [each for each in obj["metadata"].get("finalizers") or () if each != ARTIFACT_FINALIZER]
        with contextlib.suppress(NotFound):
            current = await self._api.get(WORKFLOWS, key.name, key.namespace)
            if current["metadata"]["uid"] != obj["metadata"]["uid"]:
                return
            finalizers = [
                each for each in current["metadata"].get("finalizers") or () if each != ARTIFACT_FINALIZER
            ]
            patch = {"resourceVersion": current["metadata"]["resourceVersion"], "finalizers": finalizers or None}
            await self._api.patch(WORKFLOWS, key.name, {"metadata": patch}, key.namespace)


def _ended_at(pod: Obj, now: datetime) -> datetime:
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    ends = [moment(((row.get("state") or {}).get("terminated") or {}).get("finishedAt")) for row in rows]
    return max((end for end in ends if end is not None), default=now)
