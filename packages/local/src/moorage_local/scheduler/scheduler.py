"""The loop: take the next pod, decide, write.

Decisions are made one after another; binding continues in the background while the pod already counts on its node.
The status of a pod without a node is written in the background, too. While nothing changes that could help,
a pod is refused with the message for another one of its shape.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.errors import ApiError, Conflict, NotFound
from moorage_kube.hangs import HANG_RECORD
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, key_of, labels_of
from moorage_kube.resources import NAMESPACES, NODES, PDBS, PODS, PVCS, PVS, STORAGECLASSES, Obj, Resource
from moorage_local.scheduler.binding import Binder
from moorage_local.scheduler.decision import Decider, Placed, Unplaced
from moorage_local.scheduler.extenders import Extender, ExtenderConfig, ExtenderError
from moorage_local.scheduler.preemption import Candidate
from moorage_local.scheduler.queue import FLUSH_SECONDS, Queued, SchedulingQueue
from moorage_local.scheduler.reporting import Reporter
from moorage_local.scheduler.shapes import shape_of
from moorage_local.scheduler.snapshot import (
    Cache,
    PodView,
    parse_budget,
    parse_claim,
    parse_pod_view,
    parse_storage_class,
    parse_volume,
    placement_relevant,
)

log = logging.getLogger(__name__)

DEFAULT_NAME = "default-scheduler"
EVENT_SECONDS = 30.0  # an unchanged FailedScheduling is not repeated sooner
REFUSED_AT_ONCE = 100  # pods refused by earlier results, before other tasks of this event loop run

GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"


class Recorder(Protocol):
    """Records events about objects. It must not wait and must not raise."""

    def event(self, obj: Mapping[str, Any], type: str, reason: str, message: str) -> None: ...


class Informers(Protocol):
    """Caches that other parts of the process share."""

    def of(self, resource: Resource) -> Informer: ...


@dataclass(frozen=True, slots=True)
class _Refused:
    """The result of a refused shape: the message, the time, and the number of helpful changes until then."""

    message: str
    at: float
    changes: tuple[int, int]


class Scheduler:
    """Binds the pods whose `spec.schedulerName` is `name`. `run` works until cancelled.

    Another component may share its `informers` and run them. Without them, the scheduler has its own.
    `random.Random(seed)` decides between equal nodes.
    """

    def __init__(
        self,
        api: Api,
        *,
        extenders: Sequence[ExtenderConfig] = (),
        clock: Clock = SYSTEM,
        seed: int = 0,
        name: str = DEFAULT_NAME,
        informers: Informers | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        # resources that only an extender counts are left out of the fit
        self._api = api
        self._clock = clock
        self._name = name
        self._recorder = recorder
        self._extenders = [Extender(config) for config in extenders]
        self._ignored = frozenset(
            resource.name
            for config in extenders
            for resource in config.managed_resources
            if resource.ignored_by_scheduler
        )
        # the parts of one decision: cache, decider, binder, queue, reports
        self._cache = Cache()
        self._decider = Decider(self._cache, self._extenders, random.Random(seed))
        self._binder = Binder(api, self._cache, self._extenders, clock)
        self._queue = SchedulingQueue()
        self._reporter = Reporter(api, self._cache, clock)
        # results of earlier tries, valid until a change
        self._changes = 0
        self._refused: dict[Hashable, _Refused] = {}
        self._wakeup = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: dict[Key, tuple[str, float]] = {}  # last FailedScheduling: message, time
        self._own: list[Informer] = []

        # informers may be shared with other parts of the process; else the scheduler runs its own
        def of(resource: Resource) -> Informer:
            if informers is not None:
                return informers.of(resource)
            self._own.append(Informer(api, resource))
            return self._own[-1]

        self._informers = {
            resource: of(resource) for resource in (NODES, PODS, PVCS, PVS, STORAGECLASSES, NAMESPACES, PDBS)
        }
        self._handlers: dict[Resource, Callable[[Obj | None, Obj | None], None]] = {
            NODES: self._on_node,
            PODS: self._on_pod,
            PVCS: self._on_claim,
            PVS: self._on_volume,
            STORAGECLASSES: self._on_class,
            NAMESPACES: self._on_namespace,
            PDBS: self._on_budget,
        }

    async def run(self) -> None:
        """Schedule until cancelled."""
        for resource, informer in self._informers.items():
            informer.on_change(_guarded(resource, self._handlers[resource]))
        running = [
            asyncio.create_task(informer.run(), name=f"scheduler {informer.resource}") for informer in self._own
        ]
        running += [
            asyncio.create_task(self._schedule_all(), name=f"scheduler {self._name}"),
            asyncio.create_task(self._reporter.run(), name=f"reports of scheduler {self._name}"),
        ]
        try:
            await asyncio.gather(*running)
        finally:
            for task in (*running, *self._tasks):
                task.cancel()
            await asyncio.gather(*running, *self._tasks, return_exceptions=True)
            for extender in self._extenders:
                await extender.close()

    async def _schedule_all(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()
        refused = 0
        while True:
            item = self._queue.pop(self._clock.monotonic())
            if item is None:
                await self._rest()
                continue
            refused = refused + 1 if await self._turn(item) else REFUSED_AT_ONCE
            if refused >= REFUSED_AT_ONCE:
                refused = 0
                await asyncio.sleep(0)  # let informers, bindings and other tasks of the loop run

    async def _rest(self) -> None:
        """Wait until the queue may have a pod."""
        self._wakeup.clear()
        due = self._queue.next_due()
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._wakeup.wait())]
        if due is not None:
            waits.append(asyncio.ensure_future(self._clock.sleep(max(0.0, due - self._clock.monotonic()))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _turn(self, item: Queued) -> bool:
        """Schedule a pod, unless the scheduler hung on it before; record the pod while it is tried."""
        hang_record, pod = HANG_RECORD.get(), self._cache.pending.get(item.key)
        if hang_record is None or pod is None:
            return await self._schedule(item)
        work = f"{self._name} {item.key}"
        if await hang_record.skips(work, PODS, pod.obj):
            self._queue.remove(item.key)
            return False
        return await hang_record.noting(work, self._schedule(item))

    async def _schedule(self, item: Queued) -> bool:
        """Try one pod.

        Return whether it was refused by an earlier result for its shape, without a check of the nodes.
        """
        # the pod may be deleted or bound since it was queued
        pod = self._cache.pending.get(item.key)
        if pod is None or self._cache.is_assumed(item.key):
            self._queue.remove(item.key)
            return False
        # a pod of a refused shape gets the same answer until something changes
        shape = self._shape_of(pod)
        now, changes = self._clock.monotonic(), (self._changes, self._cache.released)
        known = self._refused.get(shape) if shape is not None else None
        if known is not None and known.changes == changes and now - known.at < FLUSH_SECONDS:
            self._failed(pod, item, known.message, reason="Unschedulable", nominated="", shape=shape)
            return True
        # a failing extender is an error, not a reason to remove pods
        try:
            outcome = await self._decider.decide(pod, self._cache.snapshot(self._ignored))
        except ExtenderError as error:
            self._failed(pod, item, error.message, reason="SchedulerError", retry=True)
            return False
        match outcome:
            case Placed(node):
                # extenders take time: the pod may have changed meanwhile
                current = self._cache.pending.get(item.key)
                if current is None or current.info.uid != pod.info.uid:
                    return False  # deleted while extenders were asked, and removed from the queue
                if current.info.deleting or current.info.gates:
                    self._queue.remove(item.key)
                    return False
                self._cache.assume(pod, node)
                self._queue.remove(item.key)
                self._reported.pop(item.key, None)
                self._spawn(self._bind(pod, node, item.attempts))
            case Unplaced(message, None, keep) if shape is not None:
                # remember the refusal for all pods of the shape
                if len(self._refused) > len(self._queue):  # of deleted pods
                    self._refused.clear()
                self._refused[shape] = _Refused(message, now, changes)
                self._failed(
                    pod, item, message, reason="Unschedulable", nominated=None if keep else "", shape=shape
                )
            case Unplaced(message, candidate, keep):
                # removing other pods may help: then try again when they have ended
                nominated = None if keep else ""
                retry = False
                if candidate is not None:
                    retry = not await self._preempt(pod, candidate)
                    nominated = None if retry else candidate.node
                self._failed(pod, item, message, reason="Unschedulable", nominated=nominated, retry=retry)
        return False

    def _shape_of(self, pod: PodView) -> Hashable | None:
        """The key of pods that fit the same nodes; None if the result for this pod says nothing about others."""
        if self._cache.nomination(pod.key) or any(
            (extender.config.filter_verb or extender.config.preempt_verb) and extender.is_interested(pod.obj)
            for extender in self._extenders
        ):
            return None
        return shape_of(pod, by_labels=self._cache.has_terms)

    # writing

    async def _preempt(self, pod: PodView, candidate: Candidate) -> bool:
        """Remove the victims. Return whether all removals were requested."""
        self._cache.nominate(pod.key, candidate.node)
        for victim in candidate.victims:
            if victim.info.deleting:
                continue
            try:
                await self._evict(pod, victim, candidate.node)
            except ApiError as error:
                log.warning(
                    "cannot preempt a pod",
                    extra={"pod": str(pod.key), "victim": str(victim.key), "error": error.message},
                )
                self._cache.nominate(pod.key, pod.info.nominated_node)
                return False
        for other in list(self._cache.pending.values()):
            if (
                other.key != pod.key
                and other.info.priority < pod.info.priority
                and self._cache.nomination(other.key) == candidate.node
            ):
                self._cache.nominate(other.key, "")
                await self._reporter.settle(other.key)
                await self._patch_status(other, {"nominatedNodeName": None})
                self._wake(lambda key, wanted=other.key: key == wanted)  # type: ignore[misc]
        return True

    async def _evict(self, pod: PodView, victim: PodView, node: str) -> None:
        disrupted = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{self._name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        try:
            await self._api.patch(
                PODS,
                victim.info.name,
                {"metadata": {"uid": victim.info.uid}, "status": {"conditions": [disrupted]}},
                victim.info.namespace,
                kind="strategic",
                subresource="status",
            )
            await self._api.delete(PODS, victim.info.name, victim.info.namespace, uid=victim.info.uid)
        except (NotFound, Conflict):
            return  # deleted already, or another pod of that name
        self._cache.mark_preempted(victim.key)
        self._event(victim.obj, "Normal", "Preempted", f"Preempted by pod {pod.info.uid} on node {node}")

    def _failed(
        self,
        pod: PodView,
        item: Queued,
        message: str,
        *,
        reason: str,
        nominated: str | None = None,
        retry: bool = False,
        shape: Hashable | None = None,
    ) -> None:
        """Report why the pod waits, and queue it again.

        It is tried after a delay (`retry`), or after a change that could help pods of its `shape`.
        `nominated` None does not change the nomination.
        """
        if nominated is not None:
            self._cache.nominate(pod.key, nominated)
        now = self._clock.monotonic()
        known, when = self._reported.get(pod.key, ("", 0.0))
        if known != message or now - when >= EVENT_SECONDS:
            self._reported[pod.key] = (message, now)
            self._event(pod.obj, "Warning", "FailedScheduling", message)
        if pod.key in self._cache.pending:
            self._reporter.report(pod, reason, message, nominated=nominated)
        self._queue.fail(item, now, error=retry, shape=shape)

    async def _patch_status(self, pod: PodView, changes: Obj) -> None:
        """Best effort: a failed write is repeated at the next try."""
        try:
            await self._api.patch(
                PODS,
                pod.info.name,
                {"metadata": {"uid": pod.info.uid}, "status": changes},
                pod.info.namespace,
                kind="strategic",
                subresource="status",
            )
        except (NotFound, Conflict):
            pass  # deleted, or another pod of that name
        except ApiError as error:
            log.warning("cannot write a pod's status", extra={"pod": str(pod.key), "error": error.message})

    async def _bind(self, pod: PodView, node: str, attempts: int) -> None:
        """Bind the pod to its node; after a failure the pod is removed from the node in the cache and retried."""
        info = pod.info
        await self._reporter.settle(pod.key)  # or it would say that it waits, after it is bound
        try:
            await self._binder.bind_volumes(pod, node)
            await self._binder.bind_pod(pod, node)
        except (ApiError, ExtenderError, TimeoutError, OSError) as error:
            log.warning("cannot bind a pod", extra={"pod": str(pod.key), "node": node, "error": str(error)})
            if not self._cache.forget(pod.key):
                return  # it was seen bound, or deleted, meanwhile
            waiting = self._cache.pending.get(pod.key)
            if waiting is not None and not waiting.info.deleting and not waiting.info.gates:
                self._queue.add(pod.key, priority=info.priority, created=_created(info.created))
                item = self._queue.take(pod.key, attempts)
                message = f"binding rejected: {error}"
                self._failed(pod, item, message, reason="SchedulerError", nominated="", retry=True)
            self._wake()  # its resources on the node are free again
            return
        self._event(
            pod.obj, "Normal", "Scheduled", f"Successfully assigned {info.namespace}/{info.name} to {node}"
        )

    def _event(self, obj: Obj, kind: str, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.event({"apiVersion": "v1", "kind": "Pod", **obj}, kind, reason, message)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of the scheduler failed", exc_info=error)

    def _wake(self, which: Callable[[Key], bool] | None = None) -> None:
        """Try resting pods again: all, or the chosen ones after a change of their volumes or neighbours."""
        if which is None:
            self._changes += 1
        self._queue.wake(self._clock.monotonic(), which)
        self._wakeup.set()

    # changes

    def _on_node(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._cache.remove_node(before["metadata"]["name"])
        elif self._cache.put_node(after):
            self._wake()

    def _on_pod(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._gone(key_of(before))
            return
        key = key_of(after)
        pod = parse_pod_view(after)
        if before is not None and before["metadata"].get("uid") != after["metadata"].get("uid"):
            self._gone(key)  # deleted and made again between two looks
            before = None
        if pod.info.finished:
            self._gone(key)
        elif pod.info.node:
            self._bound(before, pod)
        elif pod.info.scheduler == self._name:
            self._waiting(before, pod)

    def _gone(self, key: Key) -> None:
        self._queue.remove(key)
        self._reported.pop(key, None)
        if self._cache.remove_pod(key):
            self._wake()

    def _bound(self, before: Obj | None, pod: PodView) -> None:
        known = self._cache.holds(pod.key)
        self._queue.remove(pod.key)
        self._reported.pop(pod.key, None)
        self._cache.put_bound(pod)
        fresh = before is None or not (before.get("spec") or {}).get("nodeName")
        relabelled = before is not None and labels_of(before) != labels_of(pod.obj)
        if relabelled:
            self._changes += 1
        if fresh or relabelled:
            self._wake(lambda key: key in self._cache.pending and self._cache.pending[key].cares_for_others)
        elif known is not None and known.info.requests != pod.info.requests:
            self._wake()  # resized in place

    def _waiting(self, before: Obj | None, pod: PodView) -> None:
        had = ((before or {}).get("status") or {}).get("nominatedNodeName") or ""
        self._cache.put_pending(pod, nominated_before=had)
        if pod.info.deleting or pod.info.gates:
            self._queue.remove(pod.key)
            if pod.info.gates and not pod.info.deleting:
                self._reporter.report(pod, "SchedulingGated", GATED_MESSAGE)
            if self._cache.nomination(pod.key):
                self._cache.nominate(pod.key, "")
                self._wake()
            return
        if self._cache.is_assumed(pod.key):
            return  # its binding is under way
        if before is None or placement_relevant(before, pod.obj):
            self._queue.add(pod.key, priority=pod.info.priority, created=_created(pod.info.created))
            self._wakeup.set()

    def _on_claim(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._cache.claims.pop(key_of(before), None)
        else:
            self._cache.claims[key_of(after)] = parse_claim(after)
        self._binder.claims_changed.set()
        self._wake(self._has_claims)

    def _on_volume(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._cache.volumes.pop(before["metadata"]["name"], None)
        else:
            self._cache.volumes[after["metadata"]["name"]] = parse_volume(after)
        self._wake(self._has_claims)

    def _on_class(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._cache.classes.pop(before["metadata"]["name"], None)
        else:
            self._cache.classes[after["metadata"]["name"]] = parse_storage_class(after)
        self._wake(self._has_claims)

    def _on_namespace(self, before: Obj | None, after: Obj | None) -> None:
        self._changes += 1  # its labels decide which anti-affinity terms match its pods
        if after is None:
            if before is not None:
                self._cache.namespaces.pop(before["metadata"]["name"], None)
        else:
            self._cache.namespaces[after["metadata"]["name"]] = dict(labels_of(after))

    def _on_budget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._cache.budgets.pop(key_of(before), None)
        else:
            self._cache.budgets[key_of(after)] = parse_budget(after)

    def _has_claims(self, key: Key) -> bool:
        pod = self._cache.pending.get(key)
        return pod is not None and bool(pod.claims)


def _guarded(
    resource: Resource, handler: Callable[[Obj | None, Obj | None], None]
) -> Callable[[Obj | None, Obj | None], None]:
    """Return a handler that logs and skips an object that cannot be read, so that the informer continues."""

    def guarded(before: Obj | None, after: Obj | None) -> None:
        try:
            handler(before, after)
        except (ValueError, KeyError, TypeError) as error:
            obj: Obj = after or before or {}
            name = str(key_of(obj)) if "metadata" in obj else ""
            log.warning(
                "an object cannot be read by the scheduler",
                extra={"resource": str(resource), "object": name, "error": repr(error)},
            )

    return guarded


def _created(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else 0.0
