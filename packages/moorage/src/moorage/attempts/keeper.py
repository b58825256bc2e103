"""Stores the facts and logs of pods of runs and steps: objects and streams of the cluster in, rows and files out.

`decide.runs.storedruns.plan` decides the writes, `attempts.reading.plan_reads` the reads; this executes
both. It has no state outside the store and the folder: a keeper that was killed at any moment
reads each log from a little before its newest stored line and drops lines that are stored already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar, cast

from msgspec import Struct, field

from moorage import settings
from moorage.api.storedrecords import StoredLog, StoredPod, StoredRun
from moorage.attempts.logs import LogEnd, Logs, log_key, pod_of
from moorage.attempts.reading import NewLines, Read, Splitter, Stop, Wanted, plan_reads
from moorage.attempts.store import AttemptStore
from moorage.decide.runs.storedruns import (
    Seen,
    is_of_run,
    is_of_step,
    is_recorded,
    other_logs,
    plan,
    shown_container,
    uid_of,
)
from moorage.decide.usage.gpus import gpu_type
from moorage.model.retention import LOG_BYTES, LOG_DAYS, LOG_STREAMS, LOG_TOTAL_BYTES
from moorage.sql.leases import leave_to_another
from moorage.sql.thread import StoreThread
from moorage_kube.api import LogApi
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import MoorageError, NotFound, StorageError
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import Key, is_deleting, key_of, labels_of
from moorage_kube.resources import Obj

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_SECONDS = 300.0  # between two passes over everything; changes come from the watch
TURN_SECONDS = 2.0  # between two checks of the logs to read and flush
RETRY = DoublingDelay(5.0, 300.0)  # seconds before a log that could not be read is asked for again
LEAVE_SECONDS = 30.0  # that the log of a deleted pod may still take
SWEEP_SECONDS = 600.0  # between two deletions of expired rows and logs
BUFFER_BYTES = 64 * 1024  # of a log in memory; a longer one is written at once
YOUNG_SECONDS = 1.0  # before the log of a step is followed: one that ends sooner is read once, at its end


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of the stored data, and of concurrent reads. `total_bytes` 0: no limit."""

    log_bytes: int = LOG_BYTES
    days: int = LOG_DAYS
    total_bytes: int = LOG_TOTAL_BYTES
    streams: int = LOG_STREAMS


def limit_settings(env: Mapping[str, str]) -> Limits:
    """Read the limits from the environment. Raises UsageError."""
    return Limits(
        log_bytes=settings.KEPT_LOG_BYTES.read(env),
        days=settings.KEPT_LOG_DAYS.read(env),
        total_bytes=settings.KEPT_LOGS_TOTAL.read(env),
        streams=settings.LOG_FOLLOWED.read(env),
    )


class _Log(Struct, eq=False):
    """A log that is not completely read yet."""

    key: str
    pod: StoredPod
    container: str | None
    ended: bool = False
    gone_at: float | None = None  # when its pod was seen to be deleted, by the monotonic clock
    task: asyncio.Task[None] | None = None
    following: bool = False
    read_at: float | None = None
    not_before: float = 0.0
    failures: int = 0  # in a row
    has_lines: bool = False  # known to hold some
    buffer: bytearray = field(default_factory=bytearray)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def wanted(self) -> Wanted:
        is_reading = self.task is not None and not self.task.done()
        return Wanted(
            key=self.key,
            ended=self.ended,
            reading=is_reading,
            following=is_reading and self.following,
            read_at=self.read_at,
            not_before=self.not_before,
        )


class Keeper:
    """Feeds the store and the logs from informers that the caller runs, and from the logs of pods.

    `api` None: logs cannot be read, and only facts are stored. Of several servers on a database one runs it; the
    others answer readers, and remember deletions for when they take over.
    """

    def __init__(
        self,
        store: StoreThread[AttemptStore],
        logs: Logs,
        *,
        api: LogApi | None,
        jobs: Informer,
        pods: Informer,
        nodes: Informer,
        limits: Limits | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._store = store
        self._folder = logs
        self._api = api
        self._jobs, self._pods, self._nodes = jobs, pods, nodes
        self._limits = limits or Limits()
        self._clock = clock
        self._dirty: set[tuple[str, Key]] = set()  # "job" or "pod"
        self._deleted: dict[str, tuple[Obj, datetime]] = {}
        self._recording = asyncio.Lock()
        self._changed = asyncio.Event()
        self._logs: dict[str, _Log] = {}  # by the keys of `attempts.logs`
        self._next_look = self._next_sweep = 0.0
        self._running = False
        self._silent: set[str] = set()  # keys of logs that ended without a line, until their pods are deleted
        self._sampled: dict[str, int] = {}  # uid of a pod → most memory seen in use, until it is deleted
        self.stored_bytes = 0  # of logs on the disk, at the last sweep
        jobs.on_change(self._hear_job)
        pods.on_change(self._hear_pod)

    @property
    def streams(self) -> int:
        """The number of logs that are being read."""
        return sum(log.wanted().reading for log in self._logs.values())

    async def run(self) -> None:
        """Run until cancelled. A failed step is tried again, and logged at its first failure."""
        await wait_synced(self._jobs, self._pods, self._nodes)
        failing, self._running, self._next_look = False, True, -math.inf
        try:
            while True:
                try:
                    await self.step(everything=failing or self._clock.monotonic() >= self._next_look)
                    failing = False
                except StorageError as error:
                    if not failing:
                        log.error("cannot store attempts", extra={"error": str(error)})
                    failing = True
                await self._change_or_turn()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading, and write the data in memory.

        Data that cannot be written is read again by the next keeper.
        """
        self._running = False
        tasks = [log.task for log in self._logs.values() if log.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StorageError):
            await self._flush_all()
        self._logs.clear()
        self._sampled.clear()

    async def step(self, *, everything: bool) -> None:
        """Run one pass: write changed records (or check all), then start log reads. Raises StorageError."""
        self._changed.clear()
        await self._record(everything=everything)
        if everything:
            self._next_look = self._clock.monotonic() + LOOK_SECONDS
        await self._flush_all()
        self._see_to_logs()
        if self._clock.monotonic() >= self._next_sweep:
            self._next_sweep = self._clock.monotonic() + SWEEP_SECONDS
            await self.sweep()

    async def sweep(self) -> None:
        """Delete expired records, and the oldest logs beyond the total bound."""
        older = self._clock.now() - timedelta(days=self._limits.days)
        await self._store.do(lambda store: store.forget(older))
        sizes = await asyncio.to_thread(self._folder.sizes)
        rows = await self._store.do(lambda store: store.known((), {pod_of(size.key) for size in sizes}))
        known = {pod.uid for pod in rows.pods}
        total = sum(size.bytes for size in sizes)
        for size in sizes:
            is_over = bool(self._limits.total_bytes) and total > self._limits.total_bytes
            if pod_of(size.key) not in known or (is_over and size.key not in self._logs):
                await asyncio.to_thread(self._folder.erase, size.key)
                total -= size.bytes
        self.stored_bytes = total

    def note_memory(self, used: Mapping[str, int]) -> None:
        """Current memory use of recorded pods, in bytes by their uid; the highest is stored."""
        for pod in self._pods.all():
            uid = uid_of(pod)
            if is_recorded(pod) and used.get(uid, 0) > self._sampled.get(uid, 0):
                self._sampled[uid] = used[uid]
                self._dirty.add(("pod", key_of(pod)))
        self._changed.set()

    # -- readers: ends of deleted objects are in their answers, also before the next step

    async def _ask(self, read: Callable[[AttemptStore], T]) -> T:
        if self._running and self._deleted:
            await self._record(everything=False)
        return await self._store.do(read)

    async def read_run(self, namespace: str, name: str) -> StoredRun:
        """The record of the newest run of this name. Raises StorageError."""
        return await self._ask(lambda store: store.run(namespace, name))

    async def read_pods(self, jobs: Iterable[str]) -> tuple[StoredPod, ...]:
        """The records of the pods of Jobs, by their uids. Raises StorageError."""
        uids = list(jobs)
        return await self._ask(lambda store: store.pods_of(uids))

    async def read_steps(self, namespace: str, workflow: str, uid: str, *, pod: str = "") -> tuple[StoredPod, ...]:
        """The records of the pods of the steps of the Workflow with this uid. Raises StorageError."""
        return await self._ask(lambda store: store.steps(namespace, workflow, uid, pod=pod))

    async def read_pod(self, uid: str) -> StoredPod | None:
        """The record of the pod with this uid. Raises StorageError."""
        kept = await self._ask(lambda store: store.known((), (uid,)))
        return kept.pods[0] if kept.pods else None

    async def read_known(self, uids: Iterable[str]) -> dict[str, StoredPod]:
        """The records of the pods with these uids, by uid. Raises StorageError."""
        wanted = list(uids)
        kept = await self._ask(lambda store: store.known((), wanted))
        return {pod.uid: pod for pod in kept.pods}

    async def read_log(self, uid: str, container: str = "") -> StoredLog:
        """The stored end of a pod's log, including lines in memory. Raises StorageError.

        `container`: another container than the one with the pod's log.
        """
        key = log_key(uid, container)
        if (kept := self._logs.get(key)) is not None:
            await self._flush(kept)
        end = await asyncio.to_thread(self._folder.read, key)
        return StoredLog(lines=end.data, cut=end.cut, most_bytes=self._folder.keep_bytes)

    async def erase(self, namespace: str, name: str, since: datetime | None = None) -> int:
        """Erase all records of the runs of this name, for good; return the number of their pods.

        Runs that were created before `since` stay.
        """
        now = self._clock.now()
        uids = await self._store.do(lambda store: store.erase(namespace, name, now=now, since=since))
        return await self._erase_logs(uids)

    async def erase_steps(self, namespace: str, workflow: str, since: datetime | None = None) -> int:
        """Like `erase`, for the steps of all Workflows of this name."""
        now = self._clock.now()
        uids = await self._store.do(lambda store: store.erase_steps(namespace, workflow, now=now, since=since))
        return await self._erase_logs(uids)

    async def _erase_logs(self, uids: Sequence[str]) -> int:
        erased = set(uids)
        for key in [key for key in self._logs if pod_of(key) in erased]:
            await self._drop(key)
        sizes = await asyncio.to_thread(self._folder.sizes) if erased else []
        for key in erased | {size.key for size in sizes if pod_of(size.key) in erased}:
            await asyncio.to_thread(self._folder.erase, key)
        return len(uids)

    # -- facts

    async def _record(self, *, everything: bool) -> None:
        async with self._recording:
            if everything or self._dirty or self._deleted:
                await self._record_now(everything=everything)

    async def _record_now(self, *, everything: bool) -> None:
        # take the changes; those that arrive from now on belong to the next round
        dirty, deleted, now = self._dirty, dict(self._deleted), self._clock.now()
        sampled = dict(self._sampled)
        self._dirty = set()
        # at times all objects are compared with the store, not only changed ones
        if everything:
            jobs = [job for job in self._jobs.all() if is_of_run(job)]
            pods = [pod for pod in self._pods.all() if is_recorded(pod)]
        else:
            jobs = _objects(self._jobs, (key for kind, key in dirty if kind == "job"))
            pods = _objects(self._pods, (key for kind, key in dirty if kind == "pod"))
        kinds = {node["metadata"]["name"]: gpu_type(labels_of(node)) for node in self._nodes.all()}

        # one transaction: read the known rows, decide, write
        def work(store: AttemptStore) -> dict[str, StoredPod]:
            open_now = store.open() if everything else StoredRun()
            read = {job.job_uid for job in open_now.attempts} | {pod.uid for pod in open_now.pods}
            job_uids, pod_uids = ({*map(uid_of, objects), *deleted} - read for objects in (jobs, pods))
            known = _joined(open_now, store.known(job_uids, pod_uids))
            changes = plan(
                Seen(
                    known=known,
                    jobs=jobs,
                    pods=pods,
                    deleted=deleted,
                    gpu_types=kinds,
                    sampled=sampled,
                    now=now,
                )
            )
            store.write(changes.attempts, changes.pods)
            rows = {pod.uid: pod for pod in (*known.pods, *changes.pods)}
            erased = store.forgotten(pod.job_uid for pod in rows.values())
            return {uid: pod for uid, pod in rows.items() if pod.job_uid not in erased}

        # after an error the same objects are tried again
        try:
            rows = await self._store.do(work)
        except StorageError:
            self._dirty |= dirty
            raise
        # deletions are recorded: forget them, unless an object changed again meanwhile
        for uid, obj in deleted.items():
            self._sampled.pop(uid, None)
            if self._deleted.get(uid) is obj:
                del self._deleted[uid]
        if deleted:
            self._silent = {key for key in self._silent if pod_of(key) not in deleted}
        # logs follow the pods that have a row
        await self._follow_later([(pod, rows[uid]) for pod in pods if (uid := uid_of(pod)) in rows])
        gone = {uid for uid, row in rows.items() if row.gone is not None}
        for kept in self._logs.values() if gone else ():
            if kept.pod.uid in gone and kept.gone_at is None:
                kept.ended, kept.gone_at = True, self._clock.monotonic()

    async def _follow_later(self, pods: list[tuple[Obj, StoredPod]]) -> None:
        """Register the logs to read: those of started containers that are not completely read."""
        if self._api is None or not pods:
            return
        wanted = [(pod, row, log) for pod, row in pods for log in _logs_of(pod, row)]
        followed = self._logs.keys() | self._silent
        started = [log.key for _, _, log in wanted if log.key not in followed]
        finished = await asyncio.to_thread(lambda: {key for key in started if self._folder.is_finished(key)})
        for pod, row, (key, container, ended) in wanted:
            kept = self._logs.get(key)
            if kept is None:
                if key in finished or key in self._silent or key in followed:  # read to its end meanwhile
                    continue
                young = YOUNG_SECONDS if row.workflow else 0.0
                kept = _Log(key, row, container, not_before=self._clock.monotonic() + young)
                self._logs[key] = kept
            kept.pod, kept.ended = row, ended
            if (kept.ended or is_deleting(pod)) and not kept.failures:
                kept.not_before = 0.0

    # -- logs

    def _see_to_logs(self) -> None:
        now = self._clock.monotonic()
        for key, kept in list(self._logs.items()):
            is_reading = kept.task is not None and not kept.task.done()
            if kept.gone_at is None:
                continue
            if not is_reading:
                del self._logs[key]
            elif now - kept.gone_at > LEAVE_SECONDS and kept.task is not None:
                kept.task.cancel()  # a node that is lost ends no stream
        for step in plan_reads(
            (kept.wanted() for kept in self._logs.values()), streams=self._limits.streams, now=now
        ):
            kept = self._logs[step.key]
            match step:
                case Stop():
                    if kept.task is not None:
                        kept.task.cancel()
                case Read(_, follow):
                    kept.following, kept.read_at = follow, now
                    kept.task = asyncio.create_task(self._read(kept, follow=follow))
                    kept.task.add_done_callback(partial(self._hear_read, kept))

    async def _read(self, kept: _Log, *, follow: bool) -> None:
        """Read a log from its last stored line to its current end."""
        key, had_ended = kept.key, kept.ended
        try:
            await self._copy(kept, follow=follow, to_the_end=had_ended)
            if had_ended:
                await self._flush(kept)
                if kept.has_lines:
                    await asyncio.to_thread(self._folder.finish, key)
                else:  # nothing on the disk for a step of a loop that prints nothing
                    self._silent.add(key)
                self._logs.pop(key, None)
            elif follow:
                kept.not_before = self._clock.monotonic() + 1.0  # its end becomes known in a moment
            kept.failures = 0
        except MoorageError as error:
            if had_ended and isinstance(error, NotFound):
                self._logs.pop(key, None)  # the node has deleted it
            kept.failures += 1
            kept.not_before = self._clock.monotonic() + RETRY.after(kept.failures)
            if kept.failures == 1:
                log.warning("cannot store a log for now", extra={"pod": kept.pod.name, "error": str(error)})

    async def _copy(self, kept: _Log, *, follow: bool, to_the_end: bool) -> None:
        await self._flush(kept)
        end: LogEnd = await asyncio.to_thread(self._folder.read, kept.key)
        kept.has_lines |= bool(end.data)
        lines = await asyncio.to_thread(lambda: NewLines(end.data, cut=end.cut))
        splitter = Splitter()
        assert self._api is not None
        source = self._api.logs(
            kept.pod.name,
            kept.pod.namespace,
            container=kept.container,
            follow=follow,
            since_seconds=lines.since_seconds(self._clock.now()),
            timestamps=True,
        )
        async with contextlib.aclosing(cast(AsyncGenerator[bytes, None], source)) as pieces:
            async for piece in pieces:
                await self._add(kept, (line for line in splitter.feed(piece) if lines.is_new(line)))
        if to_the_end:  # else the beginning of a line may come again, whole
            await self._add(kept, (line for line in splitter.end() if lines.is_new(line)))

    async def _add(self, kept: _Log, lines: Iterable[bytes]) -> None:
        kept.buffer += b"".join(lines)
        kept.has_lines |= bool(kept.buffer)
        if len(kept.buffer) >= BUFFER_BYTES:
            await self._flush(kept)

    async def _flush(self, kept: _Log) -> None:
        """Write the lines of a log in memory. Raises StorageError, and then they stay in memory."""
        # shielded: a cancelled caller must not leave lines in memory that a thread has written
        await asyncio.shield(asyncio.ensure_future(self._write(kept)))

    async def _write(self, kept: _Log) -> None:
        async with kept.writing:
            if kept.buffer:
                data = bytes(kept.buffer)
                await asyncio.to_thread(self._folder.append, kept.key, data)
                del kept.buffer[: len(data)]

    async def _flush_all(self) -> None:
        for kept in [kept for kept in self._logs.values() if kept.buffer]:
            await self._flush(kept)

    async def _drop(self, key: str) -> None:
        kept = self._logs.pop(key, None)
        if kept is None:
            return
        if kept.task is not None:
            kept.task.cancel()
            await asyncio.gather(kept.task, return_exceptions=True)
        async with kept.writing:  # a thread of a cancelled caller may still write
            kept.buffer.clear()

    # -- changes

    def _hear_read(self, kept: _Log, _: asyncio.Task[None]) -> None:
        """A growing log waits for the next turn: where most take turns, one of them is always read."""
        if kept.ended:
            self._changed.set()

    def _hear_job(self, before: Obj | None, after: Obj | None) -> None:
        self._hear("job", before, after)

    def _hear_pod(self, before: Obj | None, after: Obj | None) -> None:
        self._hear("pod", before, after)

    def _hear(self, kind: str, before: Obj | None, after: Obj | None) -> None:
        if not any(obj is not None and is_recorded(obj) for obj in (before, after)):
            return
        now = self._clock.now()
        if before is not None and (after is None or uid_of(after) != uid_of(before)):
            self._deleted[uid_of(before)] = (before, now)
        if after is not None:
            self._dirty.add((kind, key_of(after)))
        # other changes of a step wait for the next turn, which handles many at once
        if after is None or not is_of_step(after) or _is_ending(after):
            self._changed.set()
        if not self._running:
            leave_to_another(self._deleted, self._dirty, now=now)

    async def _change_or_turn(self) -> None:
        """Wait for a change, or until the next check of the logs."""
        tick = asyncio.ensure_future(self._clock.sleep(TURN_SECONDS))
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({tick, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tick.cancel()
            change.cancel()


def _objects(informer: Informer, keys: Iterable[Key]) -> list[Obj]:
    return [obj for key in keys if (obj := informer.get(key.name, key.namespace)) is not None]


def _joined(known: StoredRun, more: StoredRun) -> StoredRun:
    attempts = {job.job_uid: job for job in (*known.attempts, *more.attempts)}
    pods = {pod.uid: pod for pod in (*known.pods, *more.pods)}
    return StoredRun(attempts=tuple(attempts.values()), pods=tuple(pods.values()))


class _Started(NamedTuple):
    """The log of a started container."""

    key: str
    container: str | None
    ended: bool


def _logs_of(pod: Obj, row: StoredPod) -> list[_Started]:
    is_over = row.phase in ("Succeeded", "Failed")
    logs = []
    if row.started is not None:
        logs.append(_Started(row.uid, shown_container(pod), is_over or row.ended is not None))
    logs += [
        _Started(log_key(row.uid, log.container), log.container, is_over or log.ended) for log in other_logs(pod)
    ]
    return logs


def _is_ending(pod: Obj) -> bool:
    return is_deleting(pod) or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
