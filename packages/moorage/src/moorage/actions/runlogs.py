"""The log of a run: the output of its pods, attempt after attempt, in one view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol, cast

from msgspec import Struct

from moorage.actions.runs import jobs_of_run, missing_attempt, pods_of_run
from moorage.actions.storedrecords import RunRecords, lines_of, record_of
from moorage.api.storedrecords import StoredLog, StoredRun
from moorage.decide.runs.state import PodView, RunView, State, view_run
from moorage.decide.runs.storedruns import shown_container, stored_pods_of, view_deleted
from moorage_kube.api import PodApi
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, BadRequest, NotFound, ServerError
from moorage_kube.quantity import format_bytes
from moorage_kube.remote.logs import STARTED, pod_lines
from moorage_kube.resources import Obj

APPEAR_SECONDS = 10.0  # so long after its start a run may be unknown to a watch
AHEAD = 256  # events that are read before the caller takes them


class Line(Struct, frozen=True):
    """A line of a log, without its line end."""

    pod: str
    text: bytes


class Began(Struct, frozen=True):
    """The following lines are from this pod."""

    run: RunView
    pod: PodView


class Cut(Struct, frozen=True):
    """The log of a deleted pod is stored only up to this size; its end follows."""

    pod: str
    most_bytes: int

    @property
    def text(self) -> str:
        return f"earlier lines of {self.pod} were dropped: the last {format_bytes(self.most_bytes)} are stored"


class Gone(Struct, frozen=True):
    """The log of a deleted pod is not stored."""

    pod: str


class Unreadable(Struct, frozen=True):
    """The log of a pod cannot be read."""

    pod: str
    message: str


class Broke(Struct, frozen=True):
    """A connection broke; the log continues at the same position."""

    pod: str


class Waits(Struct, frozen=True):
    """The run waits for a pod to start, so there is no output."""

    run: RunView


class Ended(Struct, frozen=True):
    """The log is complete. It has the final state of the run; None if the run was deleted."""

    run: RunView | None


Event = Line | Began | Cut | Gone | Unreadable | Broke | Waits | Ended


class RunWatch(Protocol):
    """A current cache of the Jobs and pods of runs. `version` counts the changes."""

    version: int
    closed: bool

    def jobs_of_run(self, namespace: str, run: str) -> list[Obj]: ...

    def pods_of_run(self, namespace: str, run: str) -> list[Obj]: ...

    async def beyond(self, version: int) -> int:
        """Wait for a change after `version`, or until the watch is closed."""
        ...


class RunLog:
    """The log of one run, read as the caller. `open` first, then `read` or `follow` once.

    `tail`: the last lines of each pod; `attempt` None: all; `records`: reads the stored logs of deleted pods.
    """

    def __init__(
        self,
        api: PodApi,
        namespace: str,
        name: str,
        *,
        clock: Clock,
        records: RunRecords,
        tail: int | None = None,
        since_seconds: int | None = None,
        attempt: int | None = None,
    ) -> None:
        self._api = api
        self._records = records
        self._record = StoredRun()
        self._stored_logs: dict[str, StoredLog] = {}  # read already, by the pod's uid
        self._pods: dict[str, PodView] = {}
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._tail = tail
        self._since_seconds = since_seconds
        self._attempt = attempt
        self._run: RunView | None = None
        self._containers: dict[str, str | None] = {}  # pod → the container that is read
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue(AHEAD)
        self._stream_ended = asyncio.Event()

    async def open(self, *, follow: bool) -> RunView:
        """Read the run and check that the caller may read its log.

        Raises NotFound for a run or attempt that does not exist, and ApiError.
        """
        run = await self._read_run()
        if self._attempt is not None and self._attempt not in [attempt.number for attempt in run.attempts]:
            raise missing_attempt(run, self._attempt)
        await self._check_readable(run, follow=follow)
        self._run = run
        return run

    async def _read_run(self) -> RunView:
        """The run with its stored record; a deleted one from the record only. Raises NotFound, ApiError."""
        try:
            jobs = await jobs_of_run(self._api, self._namespace, self._name)
        except NotFound:
            self._record = await self._records.run(self._namespace, self._name)
            run = view_deleted(self._record)
            if run is None:
                raise
            self._pods = {pod.name: pod for pod in run.pods}
            return run
        pods = await pods_of_run(self._api, self._namespace, self._name)
        self._record = await record_of(self._records, view_run(jobs, pods))
        return self._view(jobs, pods)

    async def read(self) -> AsyncGenerator[Event]:
        """The output until now, pod after pod."""
        run = self._opened()
        for pod in run.pods:
            if self._is_due(pod):
                yield Began(run, pod)
                lines = self._lines(pod.name, follow=False, ended=lambda: True)
                async with aclosing(lines) as events:
                    async for event in events:
                        yield event
        yield Ended(run)

    async def follow(self, watch: RunWatch) -> AsyncGenerator[Event]:
        """Yield lines as they arrive, attempt after attempt, until the run (or the attempt) has ended."""
        if self._opened().state is State.DELETED:
            async with aclosing(self.read()) as events:
                async for stored in events:
                    yield stored
            return
        conducting = asyncio.create_task(self._conduct(watch))
        try:
            while (event := await self._next(conducting)) is not None:
                yield event
        finally:
            tasks = [conducting, *self._streams.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- following

    async def _next(self, conducting: asyncio.Task[None]) -> Event | None:
        """The next event; None after the last. Raises the error that ended the conducting task."""
        if self._events.empty() and not conducting.done():
            taking = asyncio.create_task(self._events.get())
            await asyncio.wait((taking, conducting), return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                return taking.result()
            taking.cancel()
        if self._events.empty():
            conducting.result()
            return None
        return self._events.get_nowait()

    async def _conduct(self, watch: RunWatch) -> None:
        """Start the log stream of each pod when it is due; the last event is Ended."""
        late, run = self._clock.monotonic() + APPEAR_SECONDS, None
        while not watch.closed:
            version = watch.version
            self._stream_ended.clear()
            for stream in self._streams.values():
                if stream.done():
                    stream.result()
            jobs = watch.jobs_of_run(self._namespace, self._name)
            if jobs:
                run = self._view(jobs, watch.pods_of_run(self._namespace, self._name))
                await self._start_streams(run, watch)
                if not self._open_streams() and self._is_over(run) and not self.due(run):
                    await self._events.put(Ended(await self._print_unseen(run)))
                    return
                if is_waiting(run):
                    await self._events.put(Waits(run))
            elif not self._open_streams() and (run is not None or self._clock.monotonic() > late):
                await self._events.put(Ended(None))
                return
            await self._change(watch, version, patience=None if run is not None else APPEAR_SECONDS)

    async def _change(self, watch: RunWatch, version: int, *, patience: float | None) -> None:
        """Wait until the cluster has changed, or a stream has ended."""
        waits = [asyncio.create_task(watch.beyond(version)), asyncio.create_task(self._stream_ended.wait())]
        try:
            await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _start_streams(self, run: RunView, watch: RunWatch) -> None:
        """Start with pods that print, in order.

        The log of an ended pod is printed to its end before the next pod.
        """
        for pod in run.pods:
            if self._is_due(pod):
                await self._events.put(Began(run, pod))
                stream = asyncio.create_task(self._stream(pod.name, self._end_of(pod.name, watch)))
                stream.add_done_callback(lambda _: self._stream_ended.set())
                self._streams[pod.name] = stream
            is_printing = pod.name in self._streams and not self._streams[pod.name].done()
            if is_printing and pod.phase in ("Succeeded", "Failed"):
                return

    def _end_of(self, pod: str, watch: RunWatch) -> Callable[[], bool]:
        """Whether the pod has ended, or is deleted."""

        def has_ended() -> bool:
            pods = watch.pods_of_run(self._namespace, self._name)
            obj = next((obj for obj in pods if obj["metadata"]["name"] == pod), None)
            return obj is None or (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")

        return has_ended

    async def _stream(self, pod: str, ended: Callable[[], bool]) -> None:
        async with aclosing(self._lines(pod, follow=True, ended=ended)) as events:
            async for event in events:
                await self._events.put(event)

    async def _print_unseen(self, run: RunView) -> RunView:
        """Print pods that came and ended between two events of the watch; return the run with them."""
        try:
            pods = await pods_of_run(self._api, self._namespace, self._name)
            jobs = await jobs_of_run(self._api, self._namespace, self._name)
        except ApiError:
            return run
        run = self._view(jobs, pods)
        for pod in self.due(run):
            await self._events.put(Began(run, pod))
            self._streams[pod.name] = asyncio.create_task(self._stream(pod.name, lambda: True))
            await self._streams[pod.name]
        return run

    def _is_over(self, run: RunView) -> bool:
        chosen = next((attempt for attempt in run.attempts if attempt.number == self._attempt), None)
        return run.state.ended or (chosen is not None and chosen.state in ("Succeeded", "Failed"))

    def _open_streams(self) -> bool:
        return any(not stream.done() for stream in self._streams.values())

    # -- reading

    def _opened(self) -> RunView:
        if self._run is None:
            raise RuntimeError("the log is not open")
        return self._run

    def _view(self, jobs: Sequence[Obj], pods: Sequence[Obj]) -> RunView:
        self._containers |= {pod["metadata"]["name"]: shown_container(pod) for pod in pods}
        run = view_run(jobs, pods, kept=stored_pods_of(self._record, jobs))
        self._pods |= {pod.name: pod for pod in run.pods}
        return run

    def due(self, run: RunView) -> list[PodView]:
        """The pods whose logs are still to be read."""
        return [pod for pod in run.pods if self._is_due(pod)]

    def _is_due(self, pod: PodView) -> bool:
        """Whether the log of the pod is wanted and was not started yet."""
        wanted = self._attempt is None or pod.attempt == self._attempt
        has_log = pod.started is not None if pod.gone else pod.phase in STARTED
        return wanted and pod.name not in self._streams and has_log

    async def _check_readable(self, run: RunView, *, follow: bool) -> None:
        """Check the right to read the log, before the first line. Raises ApiError."""
        pod = next((pod for pod in reversed(run.pods) if self._is_due(pod) and not pod.gone), None)
        if pod is None:
            if gone := [pod for pod in run.pods if self._is_due(pod)]:
                self._stored_logs[gone[-1].uid] = await self._records.log(
                    self._namespace, self._name, gone[-1].uid
                )
            return
        source = self._api.logs(pod.name, self._namespace, container=self._containers.get(pod.name), tail_lines=0)
        try:
            async with aclosing(cast(AsyncGenerator[bytes, None], source)) as chunks:
                async for _ in chunks:
                    pass
        except (BadRequest, NotFound):
            return  # it begins in a moment, or its log is not stored any more
        except ServerError:
            if not follow:
                raise

    async def _lines(self, pod: str, *, follow: bool, ended: Callable[[], bool]) -> AsyncGenerator[Event]:
        if self._pods[pod].gone:
            for event in await self._stored_events(pod, Gone(pod)):
                yield event
            return
        has_begun = False
        lines = pod_lines(
            self._api,
            pod,
            self._namespace,
            clock=self._clock,
            ended=ended,
            container=self._containers.get(pod),
            follow=follow,
            tail=self._tail,
            since_seconds=self._since_seconds,
            broke=lambda: self._events.put_nowait(Broke(pod)) if not self._events.full() else None,
        )
        try:
            async with aclosing(lines):
                async for line in lines:
                    has_begun = True
                    yield Line(pod, line)
        except NotFound:
            for event in await self._stored_events(pod, Gone(pod)):
                yield event
        except ApiError as error:
            unreadable = Unreadable(pod, error.message)
            if has_begun or not isinstance(error, ServerError):
                yield unreadable
                return
            for event in await self._stored_events(pod, unreadable):  # its node is away
                yield event

    async def _stored_events(self, pod: str, otherwise: Gone | Unreadable) -> list[Event]:
        """The stored log of a pod; `otherwise` if there is none."""
        uid = self._pods[pod].uid
        kept = self._stored_logs.pop(uid, None)
        if kept is None:
            try:
                kept = await self._records.log(self._namespace, self._name, uid)
            except NotFound:
                return [otherwise]
            except ApiError as error:
                return [Unreadable(pod, error.message)]
        if not kept.lines:
            return [otherwise]
        lines, is_cut = lines_of(kept, now=self._clock.now(), tail=self._tail, since_seconds=self._since_seconds)
        return [*([Cut(pod, kept.most_bytes)] if is_cut else []), *(Line(pod, line) for line in lines)]


def is_waiting(run: RunView) -> bool:
    """Whether a run waits for a pod to start."""
    newest = run.pods[-1] if run.pods else None
    return run.state in (State.WAITING, State.RESTARTING, State.SUSPENDED) and (
        newest is None or newest.phase == "Pending"
    )
