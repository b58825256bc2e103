"""The controller of MapJobs: the reads and writes around `plan`.

Writes do not grow with the number of pods: a Job and a ConfigMap at the start, a patch for each change of scale,
a round for each burst of losses, the status at most once in two seconds. The Job controller makes the pods.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec

from moorage.cluster.kueue import read_queue_wait
from moorage.controllers.base import Controller, Shared
from moorage.controllers.mapjob.objects import (
    grace_of,
    hold_of,
    is_alive,
    is_noteworthy,
    job_seen,
    keep_pod,
    make_config,
    make_job,
    pod_seen,
    quota_of,
    scaled,
    template_hash,
    uncounted_of,
)
from moorage.controllers.mapjob.plan import JobSeen, Plan, Seen, Step, Verb, Word, plan
from moorage.decide.runs.kueue import QueueWait, is_held, is_taken_back
from moorage.model.mapjob import (
    COMPLETE,
    FAILED,
    MAPJOBS,
    WORKING,
    BadMapJob,
    MapView,
    Writer,
    parse_mapjob,
    status_patch,
)
from moorage.model.names import MAP_LABEL, attempt_name
from moorage_kube.errors import AlreadyExists, BadRequest, Conflict, Invalid, NotFound
from moorage_kube.informer import index_by_label
from moorage_kube.meta import Key, controller_ref, key_of, labels_of, with_condition
from moorage_kube.moments import rfc3339
from moorage_kube.resources import CONFIGMAPS, JOBS, NODES, PODS, Obj, Resource
from moorage_kube.scheduling import NodeInfo, parse_node

log = logging.getLogger(__name__)

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
STATUS_EVERY = timedelta(seconds=2)
QUEUE_EVERY = timedelta(seconds=10)  # Kueue's words change with each turn of its queue


class MapJobController(Controller):
    """One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "mapjob")
        self._maps = self._follow(MAPJOBS)
        self._jobs = self._follow(JOBS, label_selector=MAP_LABEL, indexes={"map": index_by_label(MAP_LABEL)})
        self._pods = self._follow(
            PODS,
            label_selector=MAP_LABEL,
            indexes={"noteworthy": _by_map_if_noteworthy, "alive": _by_job_if_alive},
            keep=keep_pod,
        )
        self._nodes = self._follow(NODES)
        self.loop.hear(self._maps, lambda obj: [key_of(obj)])
        self.loop.hear(self._jobs, _map_of)
        self.loop.hear(self._pods, lambda pod: _map_of(pod) if is_noteworthy(pod) else ())
        self._reported_at: dict[str, float] = {}  # by uid: when the status was written last
        # by uid: workers that Kueue has evicted, and those of them not counted in a status yet
        self._taken: dict[str, tuple[set[str], set[str]]] = {}
        self._waits: dict[str, tuple[float, QueueWait | None]] = {}  # by uid: when Kueue was asked, and its answer
        self._refused: dict[tuple[str, str], str] = {}  # by uid and template: why its Job is refused
        self._maps.on_change(self._forget)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Scale a map's workers to the length of its queue; return when to look again."""
        obj = self._maps.get(key.name, key.namespace)
        if obj is None:
            return None
        try:
            view = parse_mapjob(obj)
        except BadMapJob:
            return None  # the server says so in the condition Accepted
        pods = self._pods_of(view)
        queue = await self._queue_wait(view, pods)
        decided = plan(seen := self._observe(view, pods, queue))
        if any(step.verb is Verb.MAKE or _grows(step) for step in decided.steps):
            quotas = (await self._api.list(QUOTAS, key.namespace)).items
            if (allowed := quota_of(view, quotas)) is not None:
                decided = plan(msgspec.structs.replace(seen, quota=allowed))
        for step in decided.steps:
            if not await self._act(view, obj, step):
                decided = plan(self._observe(view, pods, queue))  # the API will not have it: say so instead
                break
        if view.deleting:
            return decided.look_again_in
        wait = await self._report(view, obj, decided)
        return min((delay for delay in (wait, decided.look_again_in) if delay is not None), default=None)

    # --- reads

    def _pods_of(self, view: MapView) -> list[Obj]:
        """The noteworthy ones."""
        pods = self._pods.by_index("noteworthy", view.name)
        return [pod for pod in pods if pod["metadata"].get("namespace") == view.namespace]

    async def _queue_wait(self, view: MapView, pods: list[Obj]) -> QueueWait | None:
        """Kueue's reason for holding a worker, read again after QUEUE_EVERY; None if it holds none."""
        if not any(is_held(pod) for pod in pods):
            self._waits.pop(view.uid, None)
            return None
        asked_at, wait = self._waits.get(view.uid, (0.0, None))
        now = self._clock.monotonic()
        if wait is None or now - asked_at >= QUEUE_EVERY.total_seconds():
            wait = await read_queue_wait(self._api, *pods)
            self._waits[view.uid] = now, wait
        return wait

    def _observe(self, view: MapView, pods: list[Obj], queue: QueueWait | None) -> Seen:
        jobs = [
            self._see_job(job, pods)
            for job in self._jobs.by_index("map", view.name)
            if job["metadata"].get("namespace") == view.namespace and _is_owned_by(job, view)
        ]
        template = template_hash(view)
        return Seen(
            map=view,
            template=template,
            now=self._clock.now(),
            jobs=tuple(sorted(jobs, key=lambda job: job.round)),
            pods=tuple(pod_seen(pod) for pod in pods),
            queue=queue,
            taken_back=self._taken_back(view, pods),
            hold=hold_of(view, self._readable_nodes()) if view.spec.template.get("spec") else None,
            grace=grace_of(view),
            refused=self._refused.get((view.uid, template), ""),
        )

    def _see_job(self, job: Obj, pods: list[Obj]) -> JobSeen:
        uncounted = uncounted_of(job, pods)
        if not uncounted:
            return job_seen(job)
        alive = len(self._pods.by_index("alive", job["metadata"]["uid"]))
        return job_seen(job, uncounted_pods=uncounted, alive=alive)

    def _taken_back(self, view: MapView, pods: list[Obj]) -> int:
        """How many workers Kueue has evicted that are not counted in the status yet.

        They exist for a moment only.
        """
        ended = {pod["metadata"]["uid"] for pod in pods if is_taken_back(pod) and not is_alive(pod)}
        known, uncounted = self._taken.setdefault(view.uid, (set(), set()))
        uncounted |= ended - known
        known &= {pod["metadata"]["uid"] for pod in pods}
        known |= ended
        return len(uncounted)

    def _readable_nodes(self) -> Iterable[NodeInfo]:
        for obj in self._nodes.all():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                yield parse_node(obj)

    # --- writes

    async def _act(self, view: MapView, obj: Obj, step: Step) -> bool:
        """Do one step; False if the API server refuses it."""
        now = self._clock.now()
        if step.verb is Verb.MAKE:
            return await self._make(view, obj, step)
        assert step.job is not None
        with contextlib.suppress(NotFound):
            if step.verb is Verb.DELETE:
                await self._api.delete(
                    JOBS, step.job.name, view.namespace, uid=step.job.uid, propagation="Background"
                )
            else:
                patch = scaled(step.job, step.parallelism, now)
                await self._api.patch(JOBS, step.job.name, patch, view.namespace)
                fields = {
                    "map": f"{view.namespace}/{view.name}",
                    "job": step.job.name,
                    "workers": step.parallelism,
                }
                log.info("changed the number of workers", extra=fields)
        return True

    async def _make(self, view: MapView, obj: Obj, step: Step) -> bool:
        with contextlib.suppress(AlreadyExists):  # its name contains the hash of its content
            await self._api.create(CONFIGMAPS, make_config(view, obj), view.namespace)
        name = attempt_name(view.name, step.round)
        try:
            job = make_job(view, obj, number=step.round, parallelism=step.parallelism)
            await self._api.create(JOBS, job, view.namespace)
        except AlreadyExists as error:
            existing_job = await self._api.get(JOBS, name, view.namespace)
            if _is_owned_by(existing_job, view):
                return True  # an earlier pass made it
            if existing_job["metadata"].get("deletionTimestamp"):
                raise Conflict(f"Job {name} of an earlier map is on its way out") from error
            return self._refuse(view, f"a Job named {name} exists that is not of this map: remove or rename it")
        except (Invalid, BadRequest) as error:
            return self._refuse(view, error.message)
        fields = {"map": f"{view.namespace}/{view.name}", "job": name, "workers": step.parallelism}
        log.info("made workers", extra=fields)
        return True

    def _refuse(self, view: MapView, message: str) -> bool:
        self._refused[view.uid, template_hash(view)] = message
        return False

    async def _report(self, view: MapView, obj: Obj, decided: Plan) -> timedelta | None:
        """Write the changes: conditions at once, counts every two seconds. Returns when to write the rest."""
        before = (obj.get("status") or {}).get("conditions") or []
        conditions = self._conditions(view, before, decided)
        status: Obj = {"workers": _workers(decided)}
        same_workers = _workers_of(obj) == status["workers"]
        meta, now = obj["metadata"], self._clock.monotonic()
        if conditions == before:
            if same_workers:
                return None
            wait = self._reported_at.get(view.uid, 0.0) + STATUS_EVERY.total_seconds() - now
            if view.uid in self._reported_at and wait > 0:
                return timedelta(seconds=wait)
            patch: Obj = {"metadata": {"uid": view.uid}, "status": status_patch(Writer.OPERATOR, status)}
        else:
            # one list, two writers: it also has a condition of the server
            version = {"resourceVersion": meta["resourceVersion"]}
            patch = {
                "metadata": version,
                "status": status_patch(Writer.OPERATOR, status, before, conditions),
            }
        with contextlib.suppress(NotFound):
            await self._api.patch(MAPJOBS, meta["name"], patch, meta["namespace"], subresource="status")
            self._reported_at[view.uid] = now
            if view.uid in self._taken:
                self._taken[view.uid][1].clear()
            await self._record_failure(view, obj, decided)
        return None

    def _conditions(self, view: MapView, before: list[Obj], decided: Plan) -> list[Obj]:
        words: list[tuple[str, Word]] = [(WORKING, decided.working), (COMPLETE, decided.complete)]
        if decided.failed is not None:
            words.append((FAILED, decided.failed))
        conditions = before
        for kind, word in words:
            status = "True" if word.status else "False"
            known = next((condition for condition in conditions if condition.get("type") == kind), {})
            generation = view.generation
            if kind == FAILED and known.get("status") == status:
                generation = int(known.get("observedGeneration") or 0)  # that for which it failed
            conditions = with_condition(
                conditions,
                kind,
                status,
                now=rfc3339(self._clock.now()),
                reason=word.reason,
                message=word.message,
                observedGeneration=generation,
            )
        return conditions

    async def _record_failure(self, view: MapView, obj: Obj, decided: Plan) -> None:
        if decided.failed is not None and decided.failed.status and not view.is_true(FAILED):
            log.warning(
                "a map's workers failed",
                extra={"map": f"{view.namespace}/{view.name}", "reason": decided.failed.reason},
            )
            about = {"apiVersion": MAPJOBS.api_version, "kind": MAPJOBS.kind} | obj
            await self._events.record(about, "Warning", decided.failed.reason, decided.failed.message[:1000])

    def _forget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            uid = before["metadata"]["uid"]
            self._reported_at.pop(uid, None)
            self._taken.pop(uid, None)
            self._waits.pop(uid, None)
            for key in [key for key in self._refused if key[0] == uid]:
                del self._refused[key]


def _workers(decided: Plan) -> dict[str, Any]:
    workers = decided.workers
    return {
        "desired": workers.desired,
        "active": workers.active,
        "ready": workers.ready,
        "lost": workers.lost,
        "restarts": workers.restarts,
        "excused": workers.excused,
        "released": workers.released,
    }


def _workers_of(obj: Obj) -> Obj:
    workers: Obj = (obj.get("status") or {}).get("workers") or {}
    return workers


def _grows(step: Step) -> bool:
    return step.verb is Verb.SCALE and step.job is not None and step.parallelism > step.job.parallelism


def _map_of(obj: Obj) -> Iterable[Key]:
    name = labels_of(obj).get(MAP_LABEL)
    return (Key(obj["metadata"].get("namespace") or "", name),) if name else ()


def _by_map_if_noteworthy(pod: Obj) -> Iterable[str]:
    name = labels_of(pod).get(MAP_LABEL)
    return (name,) if name and is_noteworthy(pod) else ()


def _by_job_if_alive(pod: Obj) -> Iterable[str]:
    owner = controller_ref(pod)
    return (str(owner["uid"]),) if owner is not None and is_alive(pod) else ()


def _is_owned_by(job: Obj, view: MapView) -> bool:
    owner = controller_ref(job)
    return owner is not None and owner.get("uid") == view.uid
