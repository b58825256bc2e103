"""Commands run in a container on request: `kubectl exec`.

A command gets the environment, mounts and first working folder of the container, as another process of this
machine's user. It ends with the container, with the node agent, and when its client disconnects. Its memory
does not count as the container's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moorage_local.nodeagent import podshim
from moorage_local.nodeagent.shim.processes import descendants

STDOUT, STDERR = 1, 2
PIECE = 32 * 1024
DRAIN_SECONDS = 1.0  # for the rest in the pipes once the command has ended: a child of it may hold them open
DRAIN_TURNS = (
    20  # of the event loop, at least: from a readable pipe to a piece it takes four, however late they come
)


class RunningContainer(NamedTuple):
    """A running container that commands can join. `folder`: of its pod."""

    folder: Path
    pid: int  # of its main process
    is_privileged: bool

    def words(self, option: str, command: Sequence[str]) -> list[str]:
        """Return the command line. `option`: --enter or --exec of the shim."""
        kind = "privileged" if self.is_privileged else "fenced"
        start = [sys.executable, "-S", "-E", "-s", podshim.__file__, option]
        return [*start, str(self.folder), str(self.pid), kind, *command]


class Command:
    """A running command. `start` creates it; call `close` at the end."""

    def __init__(self, process: asyncio.subprocess.Process, master: int | None) -> None:
        self._process = process
        self._master = master
        self._pieces: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(4)  # short: the command waits then
        self._readers: list[asyncio.Task[None]] = []
        self._finishing: asyncio.Task[None] | None = None
        self._container_fd = -1
        self.killed = False

    @classmethod
    async def start(cls, main: RunningContainer, command: Sequence[str], *, stdin: bool, tty: bool) -> Command:
        """Run a command next to a container's main process. Raises OSError."""
        argv = main.words("--exec", command)
        env = {"PATH": os.environ.get("PATH", os.defpath)}
        if tty:
            master, slave = pty.openpty()
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd="/", start_new_session=True
                )
            except OSError:
                os.close(master)
                raise
            finally:
                os.close(slave)
            os.set_blocking(master, False)
            made = cls(process, master)
        else:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd="/",
                start_new_session=True,
            )
            made = cls(process, None)
        made._begin(main.pid)
        return made

    def _begin(self, pid: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._container_fd = os.pidfd_open(pid)
            loop.add_reader(self._container_fd, self.kill)
        except ProcessLookupError:
            self.kill()
        if self._master is not None:
            self._readers = [loop.create_task(self._read_terminal(self._master))]
        for stream, reader in ((STDOUT, self._process.stdout), (STDERR, self._process.stderr)):
            if reader is not None:
                self._readers.append(loop.create_task(self._read(stream, reader)))
        self._finishing = loop.create_task(self._finish())

    # -- out

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield (stream, bytes) until the command has ended and all output was read.

        A terminal only has standard output.
        """
        ended = asyncio.ensure_future(self._process.wait())
        getting: asyncio.Task[tuple[int, bytes] | None] | None = None
        try:
            while True:
                getting = getting or asyncio.ensure_future(self._pieces.get())
                waiting: set[asyncio.Task[Any]] = {ended, getting}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    await asyncio.wait({getting}, timeout=DRAIN_SECONDS)
                for _ in range(DRAIN_TURNS):  # after a stall the time is over before anything was read
                    if getting.done():
                        break
                    await asyncio.sleep(0)
                if not getting.done() or (piece := getting.result()) is None:
                    return
                getting = None
                yield piece
        finally:
            ended.cancel()
            if getting is not None:
                getting.cancel()

    async def _finish(self) -> None:
        await asyncio.gather(*self._readers)
        await self._pieces.put(None)

    async def _read(self, stream: int, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(PIECE):
            await self._pieces.put((stream, piece))

    async def _read_terminal(self, fd: int) -> None:
        while True:
            await _ready(fd, reading=True)
            try:
                piece = os.read(fd, PIECE)
            except BlockingIOError:
                continue
            except OSError:  # EIO: the terminal is closed
                return
            if not piece:
                return
            await self._pieces.put((STDOUT, piece))

    # -- in

    async def write(self, data: bytes) -> None:
        """Write to standard input; data is lost if the command no longer reads."""
        if self._master is not None:
            while data:
                try:
                    data = data[os.write(self._master, data) :]
                except BlockingIOError:
                    await _ready(self._master, reading=False)
                except OSError:
                    return
        elif self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    async def close_input(self) -> None:
        """Signal the end of input; at a terminal, send Ctrl-D."""
        if self._master is not None:
            await self.write(b"\x04")
        elif self._process.stdin is not None:
            self._process.stdin.close()

    def resize(self, width: int, height: int) -> None:
        """Set the size of the terminal in characters; does nothing without a terminal."""
        if self._master is not None and 0 < width < 1 << 16 and 0 < height < 1 << 16:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    # -- end

    async def exit_code(self) -> int:
        """Return the exit code; 128 + the signal number if a signal ended the command."""
        code = await self._process.wait()
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        """Kill the command and all its descendants."""
        if self._container_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._container_fd)
        if self._process.returncode is not None:
            return
        self.killed = True
        pid = self._process.pid
        below = descendants(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        for target in (pid, *below):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(target, signal.SIGKILL)

    async def close(self) -> None:
        """End the command if it still runs, and release its resources."""
        self.kill()
        tasks = [*self._readers, *([self._finishing] if self._finishing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._container_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._container_fd)
            os.close(self._container_fd)
            self._container_fd = -1
        if self._master is not None:
            os.close(self._master)
            self._master = None
        transport = self._process._transport  # type: ignore[attr-defined]
        transport.close()


async def _ready(fd: int, *, reading: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_reader if reading else loop.add_writer)(fd, wake)
    try:
        await ready
    finally:
        (loop.remove_reader if reading else loop.remove_writer)(fd)
