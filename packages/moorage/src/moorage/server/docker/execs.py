"""The commands that users run in containers: their state, in the people's database.

One request creates a command, the next starts it, others ask for its exit code or set its terminal's
size, and any server on the database may get any of them. The process itself is held by the server
that started it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from moorage.api.errors import ErrorCode
from moorage.server.docker.streams import frame
from moorage.server.identity.sessions import Sessions
from moorage.server.identity.shared import Key, Kind, Value
from moorage.server.problems import Problem
from moorage_kube.clock import Clock
from moorage_kube.errors import MoorageError, ServerError, StorageError

if TYPE_CHECKING:
    from moorage_kube.remote.exec import ExecProcess

log = logging.getLogger(__name__)

EXECS = Kind("exec", 1000)  # at most 256 KiB each, see BODY_MAX; those with the nearest end go first
IDLE = timedelta(minutes=10)  # how long a command is stored before its start, and after its end
ALIVE = timedelta(minutes=15)  # and so long after its server last said that it runs; longer than IDLE
RENEW_SECONDS = 60.0  # how often it says so
SIZE_SECONDS = 1.0  # how often it reads the size of a terminal that another server wrote
NOT_STARTED, KILLED = 126, 137  # exit codes, as in a shell


class Exec(msgspec.Struct, frozen=True, kw_only=True):
    """One command that was created with Docker's exec, and perhaps started."""

    id: str
    user: str
    namespace: str
    pod: str
    container: str  # Docker's id
    command: list[str]
    stdin: bool
    tty: bool
    running: bool = False
    exit_code: int | None = None
    width: int = 0  # of the terminal, in characters; 0: not set
    height: int = 0

    @property
    def is_new(self) -> bool:
        """Whether the command may be started."""
        return not self.running and self.exit_code is None


class Running(Struct):
    """A command that this server started. `framed`: its output is sent in Docker's frames."""

    exec: Exec
    process: ExecProcess
    keeping: asyncio.Task[None]
    framed: bool = True


class Execs:
    """The commands of all users. Methods raise StorageError."""

    def __init__(self, sessions: Sessions, *, clock: Clock) -> None:
        self._sessions, self._clock = sessions, clock
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, exec_: Exec) -> None:
        now = self._clock.now()
        value = Value(msgspec.json.encode(exec_), now + IDLE)
        await self._sessions.do(lambda store: store.shared.put(_key(exec_.id), value, now))

    async def of(self, id_: str, user: str) -> Exec:
        """A command of this user. Raises Problem 404."""
        now = self._clock.now()
        exec_ = _decoded(await self._sessions.do(lambda store: store.shared.get(_key(id_), now)))
        if exec_ is None or exec_.user != user:
            raise Problem(404, ErrorCode.NOT_FOUND, f"No such exec instance: {id_}")
        return exec_

    async def claim(self, id_: str, user: str) -> Exec:
        """Mark a command as started. Raises Problem 404, and 409 if it was already started."""
        await self.of(id_, user)
        before = await self._change(
            id_, lambda exec_: msgspec.structs.replace(exec_, running=True) if exec_.is_new else exec_
        )
        if before is None or not before.is_new:
            raise Problem(409, ErrorCode.STARTED, f"the exec {id_[:12]} was started before", "create another")
        return msgspec.structs.replace(before, running=True)

    async def end(self, id_: str, exit_code: int) -> None:
        """Write the exit code of a command, even if the request that ran it is cancelled."""
        task = asyncio.create_task(self._end(id_, exit_code))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def resize(self, exec_: Exec, width: int, height: int) -> None:
        """Set the size of the terminal of a command that runs here, or write it for the server that runs it."""
        if not (exec_.running and exec_.tty):
            return
        if (running := self._running.get(exec_.id)) is not None:
            await running.process.resize(width, height)
            return
        await self._change(exec_.id, lambda exec_: msgspec.structs.replace(exec_, width=width, height=height))

    def hold(self, exec_: Exec, process: ExecProcess) -> Running:
        """Register a command that this server started. Call `output_of` or `detach` next."""
        running = Running(exec_, process, asyncio.create_task(self._keep(exec_, process)))
        self._running[exec_.id] = running
        return running

    def detach(self, running: Running) -> None:
        """Read the output of a command and drop it, until the command has ended."""
        task = asyncio.create_task(self._to_nobody(running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def output_of(self, running: Running) -> AsyncIterator[bytes]:
        """The output of a command. Its exit code is written before this ends.

        First comes an empty piece: a generator that has begun also ends the command when it is closed early.
        """
        code = KILLED
        try:
            yield b""
            async with running.process as process:
                async for channel, data in process:
                    yield frame(channel, data) if running.framed else data
                code = process.exit_code
        except ServerError:
            return
        finally:
            running.keeping.cancel()
            self._running.pop(running.exec.id, None)
            await self.end(running.exec.id, code)

    async def _to_nobody(self, running: Running) -> None:
        with suppress(MoorageError):
            async for _ in self.output_of(running):
                pass

    async def _keep(self, exec_: Exec, process: ExecProcess) -> None:
        """Renew a command's row while it runs, and apply the terminal sizes that other servers write."""
        size, renewed = (exec_.width, exec_.height), self._clock.monotonic()
        if all(size):
            await process.resize(*size)
        while True:
            await self._clock.sleep(SIZE_SECONDS if exec_.tty else RENEW_SECONDS)
            with suppress(StorageError, ServerError, Problem):
                known = await self.of(exec_.id, exec_.user)
                if all(new := (known.width, known.height)) and new != size:
                    size = new
                    await process.resize(*size)
                if self._clock.monotonic() - renewed >= RENEW_SECONDS:
                    renewed = self._clock.monotonic()
                    await self._renew(exec_.id)

    async def _end(self, id_: str, exit_code: int) -> None:
        try:
            await self._change(
                id_, lambda exec_: msgspec.structs.replace(exec_, running=False, exit_code=exit_code)
            )
        except (StorageError, RuntimeError) as error:  # RuntimeError: this server stops
            log.warning("the end of an exec is not written", extra={"exec": id_[:12], "error": str(error)})

    async def _change(self, id_: str, change: Callable[[Exec], Exec]) -> Exec | None:
        """Change a command in one step; return its state before, None if it does not exist."""
        now = self._clock.now()

        def work(bodies: list[bytes | None]) -> tuple[list[Value | None], Exec | None]:
            exec_ = _decoded(bodies[0])
            if exec_ is None:
                return [None], None
            after = change(exec_)
            return [Value(msgspec.json.encode(after), now + (ALIVE if after.running else IDLE))], exec_

        return await self._sessions.do(lambda store: store.shared.change([_key(id_)], work, now))

    async def _renew(self, id_: str) -> None:
        now = self._clock.now()
        await self._sessions.do(lambda store: store.shared.extend(_key(id_), now + ALIVE))


def _key(id_: str) -> Key:
    return Key(EXECS, id_)


def _decoded(body: bytes | None) -> Exec | None:
    return msgspec.json.decode(body, type=Exec) if body else None
