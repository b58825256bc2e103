"""The queue as one part of a process: many requests at once, one transaction at a time.

Requests that come while a transaction runs wait and share the next (group commit): the disk syncs
once for all, and answers are sent only after that. A request for items that finds none is
held (`wait`) and tried again when there may be some; idle workers cost nothing in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import methodcaller
from typing import TypeVar

import msgspec

from moorage.api.maps import NewItem
from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import Call, Exchange, MapState, Reply
from moorage.queue.store import Answered, Store, Stored
from moorage.sql.thread import StoreThread
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import MoorageError, NotFound, NotReady, StorageFull, Unauthorized
from moorage_kube.reserve import Reserve

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
PULSE_SECONDS = 0.1  # interval at which maps with a rate lease due items
GROUP_CALLS = 400  # in one transaction; at ten items each this is some 50 ms of work
RATE_SAMPLES = 60  # seconds over which the rate of a map is taken
TOKENS_KEPT = 10_000

T = TypeVar("T")


class _Parked:
    """A worker request that waits for items."""

    __slots__ = ("session", "woken")

    def __init__(self, session: str) -> None:
        self.session = session
        self.woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def wake(self, again: bool) -> None:
        if not self.woken.done():
            self.woken.set_result(again)


class Queue:
    """The queue of all maps in one database.

    `open_store` connects twice: one connection writes and one reads, each in its own thread. Use the queue
    while `run` runs. Methods raise StorageError if the database fails; nothing was changed in this case.
    """

    def __init__(
        self, open_store: Callable[[], Store], *, clock: Clock = SYSTEM, reserve: Reserve | None = None
    ) -> None:
        """`reserve`: disk space for changes and deletes of maps; None: the database is not on this disk."""
        opening = threading.Lock()

        def opened() -> Store:
            with opening:  # SQLite refuses, without waiting, to be opened twice while it turns to its log
                return open_store()

        self._clock = clock
        self._reserve = reserve
        self._writer = StoreThread("queue-writer", opened)
        self._reader = StoreThread("queue-reader", opened)
        self._pending: deque[tuple[Call, asyncio.Future[Reply]]] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._parked: dict[int, OrderedDict[str, _Parked]] = {}
        self._rated: set[int] = set()  # maps with a rate, and
        self._limited: set[int] = set()  # maps with limits, that may have parked requests
        self._tokens: BoundedCache[str, int] = BoundedCache(TOKENS_KEPT)
        self._secret: bytes | None = None
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._closed = self._ending = False

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """The first tick: leases are extended by the time in which the queue was down."""
        self._secret = await self._writer.do(Store.secret)
        await self._tick()

    async def run(self) -> None:
        """Handle time-outs until cancelled. After an outage of the database, it tries again."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ticks())
                tasks.create_task(self._pulses())
        finally:
            await self.close()

    async def close(self) -> None:
        """Answer all waiting requests, finish the current transaction, and close the connections."""
        if self._closed:
            return
        self._closed = True
        self.end_waits()
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
        self._writer.close()
        self._reader.close()

    def end_waits(self) -> None:
        """Answer all requests that wait for items; later requests do not wait."""
        self._ending = True
        for waiting in self._parked.values():
            for request in waiting.values():
                request.wake(False)

    async def _ticks(self) -> None:
        failing = False
        while True:
            try:
                if self._secret is None:
                    await self.start()
                else:
                    await self._tick()
                failing = False
            except MoorageError as error:
                if not failing:
                    log.warning("queue cannot use its database", extra={"error": error.message})
                failing = True
            await self._clock.sleep(TICK_SECONDS)

    async def _tick(self) -> None:
        answered = await self._writer.do(lambda store: store.tick(self._now()))
        self._wake(answered)
        if self._reserve is not None:
            self._reserve.fill()
        if self._parked:
            parked = list(self._parked)
            for of, most in (await self._reader.do(lambda store: store.waiting_for(parked))).items():
                self._wake_some(of, most)
        self._sample_forget()

    async def _pulses(self) -> None:
        while True:
            await self._clock.sleep(PULSE_SECONDS)
            for of in list(self._rated):
                self._wake_some(of, 1 + len(self._parked.get(of, ())) // 4)

    # -- workers -----------------------------------------------------------------------------------------------

    def token_of(self, uid: str) -> str:
        """The token for the workers of this map. Raises NotReady before `start`."""
        return f"{uid}.{self._sign(uid)}"

    async def map_of_token(self, token: str) -> int:
        """The map of a worker's token. Raises Unauthorized; NotFound when the map was deleted."""
        known = self._tokens.get(token)
        if known is not None:
            return known
        uid, _, signature = token.partition(".")
        if not (uid and signature) or not hmac.compare_digest(self._sign(uid).encode(), signature.encode()):
            raise Unauthorized("the token is not a worker's token", hint="use the token in the map's Secret")
        stored = await self._reader.do(lambda store: store.find_uid(uid))
        if stored is None:
            raise NotFound("the map of this token was deleted", hint="stop the worker")
        self._tokens.put(token, stored.map.id)
        return stored.map.id

    async def exchange(self, of: int, asked: Exchange) -> Reply:
        """Accept a worker's answers and return its next items. Raises NotFound when the map was deleted."""
        return await self._submit(Call(of, asked))

    async def wait_for_items(self, of: int, asked: Exchange, reply: Reply) -> Reply:
        """Hold a request that `exchange` answered so until there are items, `asked.wait` seconds at most.

        May be cancelled at any moment: the same request number finds the items granted by then.
        """
        deadline = self._clock.monotonic() + asked.wait
        again = msgspec.structs.replace(asked, reports=[])
        first = reply
        while not self._ending and is_waiting(asked, reply):
            left = deadline - self._clock.monotonic()
            if left <= 0 or not await self._park(of, asked.session, left):
                break
            reply = await self._submit(Call(of, again))
        reply.refused = first.refused
        return reply

    async def _park(self, of: int, session: str, seconds: float) -> bool:
        """Wait until there may be items. False after `seconds` without a change."""
        waiting = self._parked.setdefault(of, OrderedDict())
        if (before := waiting.pop(session, None)) is not None:
            before.wake(False)  # its connection was given up for this one
        parked = waiting[session] = _Parked(session)
        try:
            async with asyncio.timeout(seconds):
                return await parked.woken
        except TimeoutError:
            return False
        finally:
            if waiting.get(session) is parked:
                del waiting[session]
            if not waiting and self._parked.get(of) is waiting:
                del self._parked[of]

    def _wake(self, answered: Answered) -> None:
        self._rated |= answered.rated
        self._limited |= answered.limited
        for of, fresh in answered.fresh.items():
            self._wake_some(of, fresh)
        for of in answered.finished:
            self._wake_some(of, None)
        if answered.freed:
            for of in list(self._limited):
                self._wake_some(of, answered.freed)

    def _wake_some(self, of: int, most: int | None) -> None:
        """Wake up to `most` requests, the longest waiting first; None wakes all."""
        waiting = self._parked.get(of)
        while waiting and (most is None or most > 0):
            _, request = waiting.popitem(last=False)
            request.wake(True)
            if most is not None:
                most -= 1
        if not waiting:
            self._parked.pop(of, None)
            self._rated.discard(of)
            self._limited.discard(of)

    def _submit(self, call: Call) -> asyncio.Future[Reply]:
        if self._closed:
            raise MoorageError("the queue is stopping", hint="try again in a moment")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending.append((call, future))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return future

    async def _flush(self) -> None:
        try:
            while self._pending:
                group = self._take_group()
                calls = [call for call, _ in group]
                try:
                    answered = await self._writer.do(methodcaller("exchange", calls, self._now()))
                except Exception as error:  # reported to all callers with a request in it
                    for _, future in group:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), reply in zip(group, answered.replies, strict=True):
                    if future.done():
                        continue
                    if isinstance(reply, NotFound):
                        future.set_exception(reply)
                    else:
                        future.set_result(reply)
                self._wake(answered)
        finally:
            self._flushing = None

    def _take_group(self) -> list[tuple[Call, asyncio.Future[Reply]]]:
        """The oldest requests, at most one per session."""
        group: list[tuple[Call, asyncio.Future[Reply]]] = []
        later: list[tuple[Call, asyncio.Future[Reply]]] = []
        sessions: set[tuple[int, str]] = set()
        while self._pending and len(group) < GROUP_CALLS:
            call, future = self._pending.popleft()
            key = (call.map, call.exchange.session)
            if key in sessions:
                later.append((call, future))
                continue
            sessions.add(key)
            group.append((call, future))
        self._pending.extendleft(reversed(later))
        return group

    # -- users -------------------------------------------------------------------------------------------------

    async def create_map(
        self,
        *,
        namespace: str,
        name: str,
        owner: str,
        policy: leasing.Policy,
        request: str,
        limits: dict[str, int] | None = None,
        priority: int = 0,
        since: datetime | None = None,
    ) -> Stored:
        """Create a map. `since`: the creation time of the namespace; see `Store.create_map`."""
        return await self._writer.do(
            lambda store: store.create_map(
                namespace=namespace,
                name=name,
                owner=owner,
                policy=policy,
                request=request,
                limits=limits or {},
                priority=priority,
                now=self._now(),
                since=0 if since is None else milliseconds(since),
            )
        )

    async def add_items(
        self, of: int, items: Sequence[NewItem], *, first: int | None = None, request: str | None = None
    ) -> tuple[int, int]:
        added = await self._writer.do(lambda store: store.add_items(of, items, first=first, request=request))
        self._wake_some(of, added[1])
        return added

    async def change_map(
        self,
        of: int,
        *,
        state: MapState | None = None,
        closed: bool | None = None,
        priority: int | None = None,
        rate: float | None = None,
    ) -> Stored:
        stored = await self._do_also_when_full(
            lambda store: store.change_map(of, state=state, closed=closed, priority=priority, rate=rate)
        )
        self._wake_some(of, None)
        return stored

    async def retry(self, of: int) -> int:
        changed = await self._writer.do(lambda store: store.retry(of))
        self._wake_some(of, changed)
        return changed

    async def delete_map(self, of: int) -> None:
        await self._do_also_when_full(lambda store: store.delete_map(of))
        self._tokens.drop_where(lambda known: known == of)
        self._wake_some(of, None)

    async def set_limit(self, name: str, capacity: int) -> None:
        await self._writer.do(lambda store: store.set_limit(name, capacity))
        for of in list(self._parked):
            self._wake_some(of, None)

    async def _do_also_when_full(self, work: Callable[[Store], T]) -> T:
        """Write with the reserved space if the disk is full, so that users can end and delete maps."""
        while True:
            try:
                return await self._writer.do(work)
            except StorageFull:
                if self._reserve is None or not self._reserve.take():
                    raise

    async def read(self, what: Callable[[Store], T]) -> T:
        """Run a function on the reading store: `await queue.read(lambda store: store.list_maps())`."""
        return await self._reader.do(what)

    async def rate_of(self, stored: Stored) -> float | None:
        """Items per second that ended over the last minute with a request; None at first."""
        samples = self._samples.setdefault(stored.map.id, deque())
        now, ended = self._clock.monotonic(), stored.map.counts.done + stored.map.counts.dead
        if not samples or now - samples[-1][0] >= TICK_SECONDS:
            samples.append((now, ended))
        while len(samples) > 2 and now - samples[0][0] > RATE_SAMPLES:
            samples.popleft()
        then, before = samples[0]
        if now - then < TICK_SECONDS:
            return None
        return max(0, ended - before) / (now - then)

    def _sample_forget(self) -> None:
        now = self._clock.monotonic()
        for of in [of for of, some in self._samples.items() if some and now - some[-1][0] > 10 * RATE_SAMPLES]:
            del self._samples[of]

    def _sign(self, uid: str) -> str:
        if self._secret is None:
            raise NotReady("the queue has not started", hint="try again in a moment")
        return hmac.new(self._secret, f"worker of {uid}".encode(), hashlib.sha256).hexdigest()

    def _now(self) -> int:
        return milliseconds(self._clock.now())


def milliseconds(at: datetime) -> int:
    """Milliseconds since 1970, the time format of the queue."""
    return round(at.timestamp() * 1000)


def is_waiting(asked: Exchange, reply: Reply) -> bool:
    """Whether a request with this reply must wait."""
    return (
        asked.want > 0
        and asked.wait > 0
        and not asked.bye
        and not reply.items
        and not reply.lost
        and reply.state in (MapState.RUNNING.value, MapState.PAUSED.value)
    )
