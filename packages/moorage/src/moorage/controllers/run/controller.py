"""The controller of runs: the reads and writes around `moorage.decide.runs.restarts`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, assert_never

from msgspec.structs import replace

from moorage.cluster.kueue import deactivate
from moorage.controllers.base import Controller, Shared
from moorage.controllers.run.plan import (
    attempts_of,
    disrupted_status,
    failed_status,
    is_lost,
    next_job,
    observe,
    still_waits,
)
from moorage.decide.runs.interrupted import is_watched, stop_time_while_running
from moorage.decide.runs.kueue import queue_of
from moorage.decide.runs.restarts import (
    Action,
    AttemptSeen,
    End,
    FailPod,
    GivePlace,
    NoteMade,
    NoteRunning,
    NoteStopped,
    NoteUsed,
    Observed,
    PodSeen,
    RemovePod,
    StartAttempt,
    Suspend,
    plan,
    turns_of,
)
from moorage.model.names import (
    ATTEMPTS_ANNOTATION,
    ENDED_ANNOTATION,
    RUN_LABEL,
    RUNNING_SINCE_ANNOTATION,
    STOPPED_ANNOTATION,
    USED_SECONDS_ANNOTATION,
)
from moorage_kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from moorage_kube.informer import Informer, index_by_label, index_by_node
from moorage_kube.meta import Key, controller_ref, labels_of
from moorage_kube.moments import rfc3339
from moorage_kube.resources import JOBS, NODES, PODS, Obj

log = logging.getLogger(__name__)


class RunController(Controller):
    """One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "run")
        self._lost_after = shared.lost_after
        by_run = {"run": index_by_label(RUN_LABEL)}
        self._jobs = self._follow(JOBS, label_selector=RUN_LABEL, indexes=by_run)
        self._pods = self._follow(PODS, label_selector=RUN_LABEL, indexes=by_run | {"node": index_by_node})
        self._nodes = self._follow(NODES)
        self._left_queue: set[str] = set()  # uids of Jobs that Kueue starts no more
        self._stopped_at: dict[str, datetime] = {}  # by uid of a Job without a runner: when its pod had to stop
        self._jobs.on_change(self._forget)
        self._pods.on_change(self._note_stop)  # before the loop gets the event: the pod may be deleted by then
        self.loop.hear(self._jobs, _run_of)
        self.loop.hear(self._pods, _run_of)
        self.loop.hear(self._nodes, self._runs_on)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one run (its namespace and name) a step closer to its end; return when to look again."""
        if (cached := self._observe_cached(key)) is None:
            return None
        await self._leave_queues(key, cached)
        expected = plan(cached)
        if not expected.actions:
            return expected.look_again_in
        # actions are rare and a cache may be old: before a write, read the API again
        jobs, pods = await self._read(key)
        seen = self._observe(key, jobs, pods, await self._lost_nodes(pods))
        if seen is None:
            return None
        decided = plan(seen)
        attempts = dict(attempts_of(seen.run, jobs))
        by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
        for action in decided.actions:
            if not await self._act(key, seen, action, attempts, by_uid):
                break
        return decided.look_again_in

    # --- reads

    def _observe_cached(self, key: Key) -> Observed | None:
        pods = self._mine(self._pods, key)
        lost: dict[str, datetime | None] = {}
        for name in _nodes_of_deleted(pods):
            node = self._nodes.get(name)
            if node is None:
                lost[name] = None
            elif (state := is_lost(node))[0]:
                lost[name] = state[1]
        return self._observe(key, self._mine(self._jobs, key), pods, lost)

    def _observe(
        self, key: Key, jobs: list[Obj], pods: list[Obj], lost: dict[str, datetime | None]
    ) -> Observed | None:
        now, after = self._clock.now(), self._lost_after
        stopped_at = {
            uid: at
            for job in jobs
            if (at := self._stopped_at.get(uid := job["metadata"]["uid"])) and not is_watched(job)
        }
        seen = observe(key.name, jobs, pods, lost, now=now, lost_after=after, stopped_at=stopped_at)
        if seen is None or not (to := seen.attempts[-1].yields_to):
            return seen
        namespace, _, run = to.partition("/")
        other = Key(namespace, run)
        return replace(
            seen, turn_over=not still_waits(self._mine(self._jobs, other), self._mine(self._pods, other))
        )

    def _mine(self, informer: Informer, key: Key) -> list[Obj]:
        objects = informer.by_index("run", key.name)
        return [obj for obj in objects if obj["metadata"].get("namespace") == key.namespace]

    async def _read(self, key: Key) -> tuple[list[Obj], list[Obj]]:
        selector = f"{RUN_LABEL}={key.name}"
        # Jobs first: a pod that ended its Job is then read in a state at least as new as the one that ended it
        jobs = await self._api.list(JOBS, key.namespace, label_selector=selector)
        pods = await self._api.list(PODS, key.namespace, label_selector=selector)
        return jobs.items, pods.items

    async def _lost_nodes(self, pods: list[Obj]) -> dict[str, datetime | None]:
        lost_nodes: dict[str, datetime | None] = {}
        for name in _nodes_of_deleted(pods):
            try:
                lost, since = is_lost(await self._api.get(NODES, name))
            except NotFound:
                lost, since = True, None
            if lost:
                lost_nodes[name] = since
        return lost_nodes

    # --- writes

    async def _leave_queues(self, key: Key, seen: Observed) -> None:
        """Remove each Job of a cancelled run from its Kueue queue, once: Kueue would resume it."""
        if not seen.by_user:
            return
        for attempt in seen.attempts:
            job = self._jobs.get(attempt.job, key.namespace)
            if job is None or attempt.state != "active" or not queue_of(job) or attempt.uid in self._left_queue:
                continue
            try:
                if await deactivate(self._api, job):
                    self._left_queue.add(attempt.uid)
            except Forbidden as error:
                log.warning("a cancelled run stays in its queue", extra={"run": str(key), "error": error.message})

    async def _act(
        self, key: Key, seen: Observed, action: Action, jobs: dict[int, Obj], pods: dict[str, Obj]
    ) -> bool:
        """Execute one step. False if the following steps no longer make sense."""
        match action:
            case NoteRunning(attempt, since):
                await self._note(key, attempt, RUNNING_SINCE_ANNOTATION, rfc3339(since))
            case NoteStopped(attempt, stopped_at):
                await self._note(key, attempt, STOPPED_ANNOTATION, rfc3339(stopped_at))
            case NoteUsed(attempt, seconds):
                await self._note(key, attempt, USED_SECONDS_ANNOTATION, str(seconds))
            case NoteMade(number):
                await self._note(key, seen.attempts[0], ATTEMPTS_ANNOTATION, str(number))
            case StartAttempt():
                return await self._start(key, seen, action, jobs)
            case End(reason, message):
                await self._end(key, seen, jobs[1], reason, message)
            case Suspend(attempt):
                await self._patch(key, attempt, {"spec": {"suspend": True}})
            case FailPod(pod):
                await self._fail_pod(key, pods[pod.uid])
            case GivePlace(pod, to):
                await self._give_place(key, pods[pod.uid], to)
            case RemovePod(pod):
                await self._remove_pod(key, pod, pods[pod.uid])
            case _:
                assert_never(action)
        return True

    async def _start(self, key: Key, seen: Observed, start: StartAttempt, jobs: dict[int, Obj]) -> bool:
        first, last = jobs[1], jobs[seen.attempts[-1].number]
        job = next_job(seen.run, first, last, start)
        name = job["metadata"]["name"]
        if first["spec"].get("ttlSecondsAfterFinished") is not None:
            # the first Job has finished: collected now, it would take every later attempt with it
            await self._patch(key, seen.attempts[0], {"spec": {"ttlSecondsAfterFinished": None}})
        try:
            await self._api.create(JOBS, job, key.namespace)
        except AlreadyExists:
            # either an earlier pass of ours made it, or the name belongs to another owner
            existing_job = await self._api.get(JOBS, name, key.namespace)
            if not _is_owned_by(existing_job, first):
                message = f"a Job named {name} exists that is not of this run"
                await self._end(key, seen, first, "CannotRestart", message)
                return False
            return True
        except (Invalid, BadRequest) as error:
            await self._end(key, seen, first, "CannotRestart", error.message)
            return False
        log.info(
            "started a run again",
            extra={"run": str(key), "attempt": start.number, "limit": seen.restart_limit, "cause": start.cause},
        )
        message = f"Started again as {name} after {start.cause}"
        if not seen.attempts[-1].gave_way:
            restarts = start.number - 1 - turns_of(seen.attempts)
            message += f" ({restarts} of at most {seen.restart_limit})"
        await self._events.record(first, "Normal", "Restarted", message)
        return True

    async def _end(self, key: Key, seen: Observed, first: Obj, reason: str, message: str) -> None:
        await self._note(key, seen.attempts[0], ENDED_ANNOTATION, f"{reason}: {message}")
        log.info("a run is not started again", extra={"run": str(key), "reason": reason})
        await self._events.record(first, "Warning", reason, f"Not started again: {message}")

    async def _fail_pod(self, key: Key, pod: Obj) -> None:
        meta = pod["metadata"]
        guard = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
        status = guard | failed_status(pod, now=self._clock.now())
        await self._api.patch(PODS, meta["name"], status, key.namespace, subresource="status")

    async def _give_place(self, key: Key, pod: Obj, to: str) -> None:
        """End the pod as at a preemption: the kubelet sends SIGTERM and waits for the grace period."""
        meta = pod["metadata"]
        status = disrupted_status(pod, to, now=self._clock.now())
        if status is not None:  # first, so that the Job ends by a disruption even if the next write fails
            guard = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
            await self._api.patch(PODS, meta["name"], guard | status, key.namespace, subresource="status")
        if not meta.get("deletionTimestamp"):
            try:
                await self._api.delete(PODS, meta["name"], key.namespace, uid=meta["uid"])
            except NotFound:
                return
        log.info("a run gives its place to another", extra={"run": str(key), "to": to})
        await self._events.record(pod, "Normal", "TurnOver", f"Stopped: it is the turn of {to}")

    async def _remove_pod(self, key: Key, seen: PodSeen, pod: Obj) -> None:
        try:
            await self._api.delete(PODS, seen.name, key.namespace, grace_period_seconds=0, uid=seen.uid)
        except NotFound:
            return
        log.warning(
            "let go of a pod on a lost node", extra={"pod": f"{key.namespace}/{seen.name}", "node": seen.node}
        )
        message = (
            f"Deleted without waiting for node {seen.node}, which does not answer; it may still be running there"
        )
        await self._events.record(pod, "Warning", "NodeLost", message)

    async def _note(self, key: Key, attempt: AttemptSeen, annotation: str, text: str) -> None:
        await self._patch(key, attempt, {"metadata": {"annotations": {annotation: text}}})

    async def _patch(self, key: Key, attempt: AttemptSeen, patch: dict[str, Any]) -> None:
        """Send a merge patch for the uid that was read. Another Job of the same name is a Conflict."""
        meta = patch.get("metadata") or {}
        guarded = patch | {"metadata": meta | {"uid": attempt.uid}}
        await self._api.patch(JOBS, attempt.job, guarded, key.namespace)

    def _forget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            self._left_queue.discard(before["metadata"]["uid"])
            self._stopped_at.pop(before["metadata"]["uid"], None)

    def _note_stop(self, before: Obj | None, after: Obj | None) -> None:
        pod = after or before
        owner = controller_ref(pod) if pod is not None else None
        if owner is None:
            return
        uid = owner["uid"]
        if after is None:
            if uid in self._stopped_at and all(job["metadata"]["uid"] != uid for job in self._jobs.all()):
                del self._stopped_at[uid]  # its Job was deleted before the pod was asked to stop
        elif (stopped_at := stop_time_while_running(after)) is not None:
            self._stopped_at[uid] = max(stopped_at, self._stopped_at.get(uid, stopped_at))

    def _runs_on(self, node: Obj) -> Iterable[Key]:
        for pod in self._pods.by_index("node", node["metadata"]["name"]):
            yield from _run_of(pod)


def _run_of(obj: Obj) -> Iterable[Key]:
    run = labels_of(obj).get(RUN_LABEL)
    return (Key(obj["metadata"].get("namespace") or "", run),) if run else ()


def _nodes_of_deleted(pods: Iterable[Obj]) -> set[str]:
    """The nodes of pods that are being deleted. Other pods need no action."""
    named = (pod["spec"].get("nodeName") for pod in pods if pod["metadata"].get("deletionTimestamp"))
    return {name for name in named if name}


def _is_owned_by(job: Obj, first: Obj) -> bool:
    owner = controller_ref(job)
    return owner is not None and owner.get("uid") == first["metadata"]["uid"]
