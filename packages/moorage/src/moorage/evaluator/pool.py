"""Send requests to evaluating processes, and end a process that takes too long.

Each tenant has one turn at a time, so that other tenants continue while its text is evaluated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from moorage.decide.evaluation import Budget, TooMuchWork, current, elsewhere, shared
from moorage.evaluator.wire import ANSWER_BYTES, LENGTH, MEMORY_BYTES, Answer, Request, frame, made_again

P = ParamSpec("P")
T = TypeVar("T")

PROCESSES = 4  # at a time, each for another tenant
IDLE = 1  # idle processes that stay; others end after their request
WAITING = 4  # of one tenant; each blocks a worker of a loop that all tenants share
SECONDS = 10  # of processor time for one request
PATIENCE_SECONDS = 120.0  # for an answer, on a machine where every processor is busy
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")  # no secret of the services


class Evaluation(Protocol):
    """Runs functions whose work depends on users' text."""

    async def call(
        self, tenant: str, what: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a pure function of ours. `what` names the object in messages.

        Raises the errors of the function, and TooMuchWork past the limits of time and memory.
        """
        ...

    async def think(self, tenant: str, what: str, function: Callable[..., T], /, *args: Any) -> T:
        """Run a function on live state; its `elsewhere` calls are evaluated by another process."""
        ...

    def is_full(self, tenant: str) -> bool:
        """Whether so many calls of the tenant wait that the next call should come later."""
        ...


class InPlace:
    """Evaluates in this process: for a program of one person, and for tests."""

    async def call(
        self, _tenant: str, _what: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with shared(Budget()):
            return function(*args, **kwargs)

    async def think(self, _tenant: str, _what: str, function: Callable[..., T], /, *args: Any) -> T:
        with shared(Budget()):
            return function(*args)

    def is_full(self, _tenant: str) -> bool:
        return False


class Evaluators:
    """A pool of evaluating processes. One per service; close it at the end."""

    def __init__(self, *, seconds: int = SECONDS, most: int = PROCESSES) -> None:
        self._seconds = seconds
        self._idle: list[_Process] = []
        self._room = asyncio.Semaphore(most)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()  # by tenant, those that have the turn or wait for it
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="evaluation")
        self.ended = 0  # processes that were ended over a request

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(
        self, tenant: str, what: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with self._turn(tenant), self._room:
            value: T = await self._ask(what, Budget(), function, args, kwargs)
            return value

    async def think(self, tenant: str, what: str, function: Callable[..., T], /, *args: Any) -> T:
        loop = asyncio.get_running_loop()

        def ask(evaluate: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
            asked = self._ask(what, current(), evaluate, args, named)
            return asyncio.run_coroutine_threadsafe(asked, loop).result()

        def work() -> T:
            with shared(Budget()), elsewhere(ask):
                return function(*args)

        async with self._turn(tenant), self._room:
            working = loop.run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                await asyncio.wait([working])  # the state is in use until then
                raise

    @contextlib.asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        lock = self._turns.get(tenant)
        if lock is None:
            lock = self._turns[tenant] = asyncio.Lock()
        self._waiting[tenant] += 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def is_full(self, tenant: str) -> bool:
        return self._waiting[tenant] >= WAITING

    async def _ask(self, what: str, budget: Budget, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        request = Request(
            module=function.__module__,
            name=function.__qualname__,
            arguments=args,
            named=kwargs,
            budget=budget,
            seconds=self._seconds,
        )
        process = self._idle.pop() if self._idle else await _Process.start()
        try:
            answer = await process.ask(request, what)
        except BaseException:
            self.ended += 1
            await process.end()
            raise
        if len(self._idle) < IDLE:
            self._idle.append(process)
        else:
            await process.end()
        budget.take_over(answer.budget)
        if answer.error is not None:
            raise made_again(answer.error)
        return answer.value


class _Process:
    """One child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> _Process:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "moorage.evaluator",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd="/",
            env=environment,
        )
        return cls(process)

    async def ask(self, request: Request, what: str) -> Answer:
        """Send a request and wait for the answer. Raises TooMuchWork if the process ends before it answers."""
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                pipe.write(frame(request))
                await pipe.drain()
                (size,) = LENGTH.unpack(await answers.readexactly(LENGTH.size))
                if size > ANSWER_BYTES:
                    raise TooMuchWork(
                        f"evaluating {what} gives {size:,} bytes; at most {ANSWER_BYTES:,} are allowed"
                    )
                answer: Answer = pickle.loads(await answers.readexactly(size))
        except TimeoutError:
            raise TooMuchWork(f"evaluating {what} took more than {PATIENCE_SECONDS:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            if code == -signal.SIGXCPU:
                words = f"took more than {request.seconds} s of processor time"
            else:
                words = f"ended its process ({_name(code)}), which may have {MEMORY_BYTES:,} bytes of memory"
            raise TooMuchWork(f"evaluating {what} {words}", hint="use smaller lists and strings") from None
        if answer.is_last:
            raise TooMuchWork(
                f"evaluating {what} needs more than {MEMORY_BYTES:,} bytes of memory",
                hint="use smaller lists and strings",
            )
        return answer

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
