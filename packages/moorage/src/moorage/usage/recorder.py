"""Keeps the history of use current: pods and nodes as they are in, intervals and lives out.

`plan` compares the store with the pods, `plan_nodes` with the nodes; `Recorder` executes their steps, on every
change. At every heartbeat it marks the existing ones, and from time to time it compares all. It has no state
outside the store: a recorder that is killed between two steps and restarted does the rest, and nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field

from moorage.decide.usage.gpus import gpu_type
from moorage.decide.usage.intervals import Interval, Step, end_of_deleted, next_step, stepped, use_of
from moorage.decide.usage.nodelives import plan_nodes
from moorage.model.retention import USAGE_DAYS
from moorage.sql.leases import leave_to_another
from moorage.usage.store import UsageStore
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import StorageError
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import Key, key_of, labels_of
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

FORGET_SECONDS = 3600.0  # between two deletions of expired rows
HEARTBEAT_SECONDS = 30.0  # so a vanished pod is charged at most this much too little
LOOK_SECONDS = 600.0  # between two passes over every pod; changes come from the watch


class Seen(Struct, frozen=True, kw_only=True):
    """All data for the decisions of one pass."""

    known: Mapping[str, Interval]  # stored intervals: the open ones, and those of the pods below
    pods: Iterable[Obj]
    deleted: Mapping[str, tuple[Obj, datetime]] = field(default_factory=dict)  # uid → as last seen, and when
    gpu_types: Mapping[str, str]  # node → GPU type
    now: datetime


def plan(seen: Seen) -> tuple[Step, ...]:
    """The steps from the stored state to the current one. Planning again after them gives none."""
    steps: list[Step] = []
    known = dict(seen.known)

    def add(step: Step | None) -> None:
        if step is not None:
            steps.append(step)
            stored = known.get(step.pod_uid)
            known.update(stepped({step.pod_uid: stored} if stored else {}, step))

    present = set()
    for pod in seen.pods:
        uid = pod["metadata"].get("uid") or ""
        present.add(uid)
        add(next_step(known.get(uid), use_of(pod, seen.gpu_types, now=seen.now)))
    for uid, (last, at) in seen.deleted.items():
        if uid in present:
            continue
        if uid not in known:
            add(next_step(None, use_of(last, seen.gpu_types, now=at)))
        if uid in known:
            add(end_of_deleted(known[uid], last, now=at))
    for uid, interval in list(known.items()):
        if uid not in present and uid not in seen.deleted:
            add(end_of_deleted(interval, None, now=seen.now))
    return tuple(steps)


class Recorder:
    """Feeds a store from two informers that the caller runs.

    It drops intervals that ended longer ago than `keep`.
    """

    def __init__(
        self,
        store: UsageStore,
        *,
        pods: Informer,
        nodes: Informer,
        clock: Clock = SYSTEM,
        keep: timedelta = timedelta(days=USAGE_DAYS),
    ) -> None:
        self._store = store
        self._pods = pods
        self._nodes = nodes
        self._clock = clock
        self._dirty: set[Key] = set()
        self._deleted: dict[str, tuple[Obj, datetime]] = {}
        self._changed = asyncio.Event()
        self._next_beat = self._next_look = 0.0
        self._keep = keep
        self._next_forget = 0.0
        self._running = False
        self._deleted_nodes: dict[str, tuple[Obj, datetime]] = {}
        self._nodes_changed = False
        pods.on_change(self._hear)
        nodes.on_change(self._hear_node)

    async def run(self) -> None:
        """Record until cancelled. When the store fails, all is compared again at the next change or heartbeat.

        Of several servers on a database one runs it; the others remember deletions for when they take over.
        """
        await wait_synced(self._pods, self._nodes)
        failing, self._running, self._next_look = False, True, -math.inf
        try:
            while True:
                try:
                    await self.record(everything=failing or self._clock.monotonic() >= self._next_look)
                    failing = False
                except StorageError as error:
                    if not failing:
                        log.error("use of GPUs is not recorded", extra={"error": str(error)})
                    failing = True
                await self._change_or_heartbeat()
        finally:
            self._running = False

    async def record(self, *, everything: bool = True) -> None:
        """Run one pass over the changed pods, or over all pods, and write a heartbeat if it is due.

        Raises StorageError; in this case nothing was written.
        """
        self._changed.clear()
        dirty, deleted, now, monotonic = (
            self._dirty,
            dict(self._deleted),
            self._clock.now(),
            self._clock.monotonic(),
        )
        self._dirty = set()
        if everything:
            pods, self._next_look = self._pods.all(), monotonic + LOOK_SECONDS
        else:
            pods = [pod for key in dirty if (pod := self._pods.get(key.name, key.namespace)) is not None]
        there = None
        if everything or monotonic >= self._next_beat:
            there, self._next_beat = {_uid(pod) for pod in self._pods.all()}, monotonic + HEARTBEAT_SECONDS
        if there is not None or self._nodes_changed:
            await self._record_nodes(now)
        kinds = {node["metadata"]["name"]: gpu_type(labels_of(node)) for node in self._nodes.all()}
        missed = await asyncio.to_thread(self._record, pods, deleted, kinds, now, there, everything=everything)
        if missed:
            self._next_look = -math.inf
        for uid, seen in deleted.items():
            if self._deleted.get(uid) is seen:
                del self._deleted[uid]
        if monotonic >= self._next_forget:
            self._next_forget = monotonic + FORGET_SECONDS
            await asyncio.to_thread(self._store.forget, now - self._keep)

    async def _record_nodes(self, now: datetime) -> None:
        """One pass over all nodes, which are few compared with pods, and their heartbeat."""
        self._nodes_changed, nodes, deleted = False, self._nodes.all(), dict(self._deleted_nodes)
        try:
            await asyncio.to_thread(self._apply_nodes, nodes, {uid: at for uid, (_, at) in deleted.items()}, now)
        except BaseException:
            self._nodes_changed = True
            raise
        for uid, seen in deleted.items():
            if self._deleted_nodes.get(uid) is seen:
                del self._deleted_nodes[uid]

    def _apply_nodes(self, nodes: list[Obj], deleted: dict[str, datetime], now: datetime) -> None:
        open_lives = self._store.open_lives()
        uids = {_uid(node) for node in nodes}
        known = [*open_lives, *self._store.lives_of(uids - {life.node_uid for life in open_lives})]
        steps = plan_nodes(known, nodes, deleted=deleted, now=now)
        self._store.apply_nodes(steps, seen=uids, now=now)

    def _record(
        self,
        pods: list[Obj],
        deleted: dict[str, tuple[Obj, datetime]],
        kinds: dict[str, str],
        now: datetime,
        there: set[str] | None,
        *,
        everything: bool,
    ) -> bool:
        """Whether a pod was deleted without an event.

        `there`: uids of all pods, to be marked; None: no heartbeat.
        """
        known = {interval.pod_uid: interval for interval in self._store.open_intervals()} if everything else {}
        uids = {_uid(pod) for pod in pods}
        known |= {
            interval.pod_uid: interval for interval in self._store.known((uids | deleted.keys()) - known.keys())
        }
        steps = plan(Seen(known=known, pods=pods, deleted=deleted, gpu_types=kinds, now=now))
        open_before = self._store.open_uids() if there is not None else set()
        seen = open_before & (there or set())
        if steps or seen:
            self._store.apply(steps, seen=seen, now=now)
        return not everything and bool(open_before - seen - deleted.keys())

    def _hear(self, before: Obj | None, after: Obj | None) -> None:
        now = self._clock.now()
        if before is not None and (after is None or _uid(after) != _uid(before)):
            self._deleted[_uid(before)] = (before, now)
        if after is not None:
            self._dirty.add(key_of(after))
        self._changed.set()
        if not self._running:
            leave_to_another(self._deleted, self._dirty, now=now)

    def _hear_node(self, before: Obj | None, after: Obj | None) -> None:
        if before is not None and after is not None and _uid(before) == _uid(after) and _same(before, after):
            return  # a kubelet's heartbeat
        now = self._clock.now()
        if before is not None and (after is None or _uid(after) != _uid(before)):
            self._deleted_nodes[_uid(before)] = (before, now)
        self._nodes_changed = True
        self._changed.set()
        if not self._running:
            leave_to_another(self._deleted_nodes, set(), now=now)

    async def _change_or_heartbeat(self) -> None:
        """Wait for a change or for the next heartbeat.

        A cluster with constant changes also gets its heartbeats.
        """
        left = min(self._next_beat, self._next_look) - self._clock.monotonic()
        if left <= 0:
            return
        tick = asyncio.ensure_future(self._clock.sleep(left))
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({tick, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tick.cancel()
            change.cancel()


def _uid(obj: Obj) -> str:
    return str(obj["metadata"].get("uid") or "")


def _same(before: Obj, after: Obj) -> bool:
    """Whether the recorded facts of a node are unchanged."""
    was, is_now = before.get("status") or {}, after.get("status") or {}
    return labels_of(before) == labels_of(after) and all(
        was.get(amounts) == is_now.get(amounts) for amounts in ("capacity", "allocatable")
    )
