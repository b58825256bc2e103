"""Coroutines without an event loop: they run only when `run` is called, and never read a clock.

A run's graph is written as coroutines that wait for each other. All state is in values that a test can
make.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    """A value that is set later. Only the first `set` has an effect."""

    __slots__ = ("_scheduler", "_value", "_waiting", "is_done")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Callable[[T], None]] = []
        self._value: T | None = None
        self.is_done = False

    def set(self, value: T) -> None:
        if self.is_done:
            return
        self.is_done, self._value = True, value
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(value)

    def value(self) -> T:
        """The value. Read it only when the future is done."""
        assert self.is_done
        return self._value  # type: ignore[return-value]

    def when_done(self, call: Callable[[T], None]) -> None:
        """Call `call` with the value; at once if the value is set already."""
        if self.is_done:
            call(self.value())
        else:
            self._waiting.append(call)

    def __await__(self) -> Generator[Future[Any], None, T]:
        if not self.is_done:
            yield self
        return self.value()


class Scheduler:
    """Runs coroutines, in the order in which they became ready."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Coroutine[Any, Any, Any], Future[Any]]] = deque()

    def future(self) -> Future[Any]:
        return Future(self)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run this coroutine with the others; return the future of its result. `run` raises its errors."""
        done: Future[T] = Future(self)
        self._ready.append((work, done))
        return done

    def close(self) -> None:
        """Drop the coroutines that are ready to run."""
        while self._ready:
            self._ready.popleft()[0].close()

    def run(self) -> None:
        """Run until every coroutine waits for an event from outside."""
        while self._ready:
            work, done = self._ready.popleft()
            try:
                waited = work.send(None)
            except StopIteration as end:
                done.set(end.value)
            else:
                waited.when_done(lambda _, work=work, done=done: self._ready.append((work, done)))


class Channel(Generic[T]):
    """A queue of values in the order of `put`; a single coroutine takes them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._values: deque[T] = deque()
        self._taker: Future[Any] | None = None

    def put(self, value: T) -> None:
        self._values.append(value)
        if self._taker is not None:
            taker, self._taker = self._taker, None
            taker.set(None)

    async def take(self) -> T:
        while not self._values:
            self._taker = Future(self._scheduler)
            await self._taker
        return self._values.popleft()


class Slots:
    """At most `limit` holders at a time, first come, first served. None: no limit.

    `held`: the number of holders at the beginning. They call `give` without `take`.
    """

    def __init__(self, scheduler: Scheduler, limit: int | None, *, held: int = 0) -> None:
        self._scheduler, self.limit = scheduler, limit
        self._held = held
        self._waiting: deque[Future[Any]] = deque()

    async def take(self) -> None:
        if self.limit is None:
            return
        if self._held < self.limit and not self._waiting:
            self._held += 1
            return
        turn: Future[Any] = Future(self._scheduler)
        self._waiting.append(turn)
        await turn

    def give(self) -> None:
        if self.limit is None:
            return
        if self._waiting and self._held <= self.limit:
            self._waiting.popleft().set(None)
        else:
            self._held -= 1
