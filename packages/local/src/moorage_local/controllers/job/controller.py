"""Executes the steps that `plan` decides for each Job."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import assert_never

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import NotFound
from moorage_kube.informer import index_by_controller
from moorage_kube.meta import Key, controller_ref, key_of
from moorage_kube.resources import JOBS, PODS, Obj
from moorage_local.controllers.base import NOT_YET, TOGETHER_MAX, Writer, take_together
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.job.plan import (
    FINALIZER,
    Action,
    Backoff,
    CreatePod,
    DeleteJob,
    DeletePod,
    Observed,
    ReleasePod,
    Tell,
    WriteStatus,
    is_job_finished,
    is_tracked,
    plan,
)
from moorage_local.informers import InformerSet

BATCH_SECONDS = 1.0  # as the real controller's syncJobBatchPeriod
BATCHED_PODS = 1000  # of a Job that is batched for so long; smaller ones for less
AT_ONCE_PODS = 32  # of a Job whose every change is looked at at once


def index_by_job(pod: Obj) -> Iterable[str]:
    """Index pods by the namespace and name of their controlling Job, even if it no longer exists."""
    ref = controller_ref(pod)
    if ref is None or ref.get("kind") != "Job":
        return ()
    return (f"{pod['metadata'].get('namespace')}/{ref['name']}",)


def pause(pods: int) -> float:
    """Return the seconds to wait for more changes of a Job's pods, because each pass reads all pods."""
    return 0.0 if pods <= AT_ONCE_PODS else min(1.0, pods / BATCHED_PODS) * BATCH_SECONDS


class JobController:
    """The control loop of Jobs.

    A key without a Job means that the pods of a deleted Job may need to be released.
    """

    def __init__(self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock) -> None:
        self._jobs = informers.of(JOBS)
        self._pods = informers.of(PODS, controller=index_by_controller, job=index_by_job)
        self._writer = Writer(api, events, clock)
        self._api = api
        self._events = events
        self._clock = clock
        self._backoffs: dict[str, Backoff] = {}  # by Job uid
        self.loop: ControlLoop[Key] = ControlLoop("job", self.reconcile, workers=4, of=self._jobs)
        self._jobs.on_change(self._job_changed)
        self._pods.on_change(self._pod_changed)

    def _job_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is not None:
            self.loop.queue.add(key_of(obj))
        if before is not None and (after is None or after["metadata"]["uid"] != before["metadata"]["uid"]):
            self._backoffs.pop(before["metadata"]["uid"], None)

    def _pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        for pod in (before, after):
            ref = controller_ref(pod) if pod is not None else None
            if pod is not None and ref is not None and ref.get("kind") == "Job":
                key = Key(pod["metadata"].get("namespace") or "", ref["name"])
                self.loop.queue.add_after(key, pause(self._pods.count("controller", ref["uid"])))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one Job a step closer to its spec."""
        if not await self._writer.is_ready(key):
            return NOT_YET
        job = self._jobs.get(key.name, key.namespace)
        uid = job["metadata"]["uid"] if job is not None else None
        await self._release_orphans(key, uid)
        if job is None or uid is None:
            self._writer.forget(key)
            return None
        if is_job_finished(job):
            self._backoffs.pop(uid, None)
        decided = plan(
            Observed(
                job=job,
                pods=self._pods.by_index("controller", uid),
                now=self._clock.now(),
                backoff=self._backoffs.get(uid),
            )
        )
        for kind, actions in groupby(decided.actions, key=type):
            if kind in (CreatePod, DeletePod, ReleasePod):
                steps = [partial(self._act, key, job, action) for action in actions]
                await take_together(steps, first=1 if kind is CreatePod else TOGETHER_MAX)
                continue
            for action in actions:
                job = await self._act(key, job, action)
                if kind is WriteStatus:
                    self._backoffs[uid] = decided.backoff
        if not is_job_finished(job):
            self._backoffs[uid] = decided.backoff
        if self._jobs.get(key.name, key.namespace) is None:
            self._backoffs.pop(uid, None)  # deleted while its steps were taken
        return decided.look_again_in

    async def _act(self, key: Key, job: Obj, action: Action) -> Obj:
        """Carry out one step; return the Job after it."""
        match action:
            case CreatePod(pod):
                await self._writer.create_child(key, self._pods, job, pod)
            case DeletePod(pod, uncount):
                if uncount and is_tracked(pod):
                    await self._writer.remove_finalizer(key, self._pods, pod, FINALIZER)
                await self._writer.delete_child(key, self._pods, job, pod)
            case WriteStatus(status):
                return await self._writer.write_status(key, self._jobs, job, status)
            case ReleasePod(pod):
                await self._writer.remove_finalizer(key, self._pods, pod, FINALIZER)
            case Tell(type, reason, message):
                self._events.event(job, type, reason, message)
            case DeleteJob():
                meta = job["metadata"]
                try:
                    await self._api.delete(
                        JOBS, meta["name"], meta["namespace"], uid=meta["uid"], propagation="Foreground"
                    )
                except NotFound:
                    pass  # another writer was faster
                else:
                    self._writer.fresh.deleted(key, self._jobs, job)
            case _:
                assert_never(action)
        return job

    async def _release_orphans(self, key: Key, uid: str | None) -> None:
        """Remove the finalizer from pods of a deleted Job: they are not counted any more."""
        orphans = [
            pod
            for pod in self._pods.by_index("job", f"{key.namespace}/{key.name}")
            if is_tracked(pod) and (controller_ref(pod) or {}).get("uid") != uid
        ]
        if not orphans:
            return
        try:
            now = await self._api.get(JOBS, key.name, key.namespace)
            uid = now["metadata"]["uid"]  # the cache may be behind
        except NotFound:
            uid = None
        release = partial(self._writer.remove_finalizer, key, self._pods)
        left = [pod for pod in orphans if (controller_ref(pod) or {}).get("uid") != uid]
        await take_together([partial(release, pod, FINALIZER) for pod in left])
