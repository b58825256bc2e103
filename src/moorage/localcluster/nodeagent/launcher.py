"""Starts shims: by one process that forks them, else each by an interpreter of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from moorage.localcluster.nodeagent import podshim, shim
from moorage.localcluster.nodeagent.podfolder import LaunchError, last_lines

PATH_MAX = 4096  # bytes a path may have (linux/limits.h): room for it in the command line that shims show


class Launcher:
    """One for all agents of a process. Its server is started when first needed, and again should it have died.

    A folder whose launch was cut off by the server's death is launched again: what was started before is not
    started twice, its lock and its state say so.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._waiting: dict[str, asyncio.Future[int | None]] = {}

    @property
    def server_pid(self) -> int | None:
        """The process that forks shims, if one was started and is not known to have ended."""
        return self._server.pid if self._server is not None else None

    async def launch(self, folder: Path) -> None:
        """Start the shim of a pod folder; returns once it has written its first state.

        A pod that was started before is not started again: that is no error here, its state says what became
        of it. Raises LaunchError.
        """
        code = await asyncio.shield(asyncio.ensure_future(self._ask(str(folder))))
        if code is None:
            code = await asyncio.to_thread(_launch_alone, folder)
        if code not in (shim.LAUNCHED, shim.LOCKED, shim.STARTED_BEFORE):
            complaint = last_lines(folder / "shim.log")
            raise LaunchError(f"the pod's shim did not start (exit code {code}): {complaint[-400:]}")

    def close(self) -> None:
        """End the server. Shims live on; a later launch starts another server."""
        channel, self._channel = self._channel, None
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel)
            channel.close()
        self._lost()

    async def _ask(self, folder: str) -> int | None:
        """The launcher's exit code, or None when there is no server to ask."""
        known = self._waiting.get(folder)
        if known is not None:
            code: int | None = await asyncio.shield(known)
            return code
        try:
            channel = self._channel or self._start()
            answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            self._waiting[folder] = answer
            await asyncio.get_running_loop().sock_sendall(channel, os.fsencode(folder))
        except OSError:
            self._waiting.pop(folder, None)
            return None
        return await answer

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = str(theirs.fileno())
        with theirs:
            self._server = subprocess.Popen(
                [*_INTERPRETER, "--serve", number, " " * PATH_MAX],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.setblocking(False)
        self._channel = ours
        asyncio.get_running_loop().add_reader(ours, self._answered, ours)
        return ours

    def _answered(self, channel: socket.socket) -> None:
        try:
            packet = channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.close()
            return
        code, _, folder = packet.partition(b" ")
        waiting = self._waiting.pop(os.fsdecode(folder), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(int(code))

    def _lost(self) -> None:
        """The server is no more: whoever waits for it does without."""
        server, self._server = self._server, None
        if server is not None and server.poll() is None:
            server.wait()  # it has closed its end: it is gone in a moment
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


_INTERPRETER = [sys.executable, "-S", "-E", "-s", podshim.__file__]


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath)}


def _launch_alone(folder: Path) -> int:
    """Start an interpreter for this shim alone; returns its exit code."""
    with (folder / "shim.log").open("ab") as errors:
        process = subprocess.run(
            [*_INTERPRETER, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=_environment(),
            cwd="/",
            start_new_session=True,
            check=False,
        )
    return process.returncode


def why_not_fenced(folder: Path) -> str | None:
    """Why pods on this machine can read a folder of the platform; None when they cannot.

    Root's pods can, in the end, do whatever root can.
    """
    words = [*_INTERPRETER, "--try-fence", str(folder)]
    tried = subprocess.run(
        words, capture_output=True, text=True, env=_environment(), stdin=subprocess.DEVNULL, check=False
    )
    answer = tried.stdout.strip()
    if answer == "fully":
        return None
    return "this kernel has no Landlock" if answer == "partly" else answer or "it cannot be tried"
