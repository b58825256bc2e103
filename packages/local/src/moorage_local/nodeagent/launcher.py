"""Start shims: by one process that forks them, else each by its own interpreter.

Also tests once whether this machine can hide a folder from pods.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from moorage_local.nodeagent import podshim
from moorage_local.nodeagent.podfolder import LaunchError
from moorage_local.nodeagent.records import last_lines
from moorage_local.nodeagent.shim.launching import LAUNCHED, LOCKED, STARTED_BEFORE

PATH_MAX = 4096  # bytes a path may have (linux/limits.h): room for it in the command line that shims show


END_SECONDS = 5.0  # for a server to end; then it is killed
TRY_SECONDS = 20.0  # a try of the fence takes some 40 ms


@dataclass(frozen=True, slots=True)
class Fence:
    """The support of this machine's kernel for hiding a folder from pods."""

    hides: bool  # pods can be started without a view of the folder
    gap: str  # why they can read it all the same; "": they cannot


class Launcher:
    """Launches shims for all agents of a process. Its server is started at the first use, and again if it died.

    A folder whose launch was cut off by the server's death is launched again: its lock and its state prevent
    a second start of the same pod.
    """

    def __init__(self, *, end_seconds: float = END_SECONDS) -> None:
        self._end_seconds = end_seconds
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._waiting: dict[str, asyncio.Future[int | None]] = {}
        self._fences: dict[Path, asyncio.Future[Fence]] = {}

    async def launch(self, folder: Path) -> None:
        """Start the shim of a pod folder; returns once it has written its first state.

        A pod that was started before is not started again; that is not an error here, and its state has the
        outcome. Raises LaunchError.
        """
        code = await asyncio.shield(asyncio.ensure_future(self._ask(str(folder))))
        if code is None:
            code = await asyncio.to_thread(_launch_alone, folder)
        if code not in (LAUNCHED, LOCKED, STARTED_BEFORE):
            complaint = last_lines(folder / "shim.log")
            raise LaunchError(f"the pod's shim did not start (exit code {code}): {complaint[-400:]}")

    async def fence(self, folder: Path) -> Fence:
        """Return the protection of this folder from pods. Tested once; again, when the test itself failed.

        Raises LaunchError if the machine's abilities are unknown; pods must not be started then.
        """
        known = self._fences.get(folder)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._fences[folder] = asyncio.ensure_future(asyncio.to_thread(try_fence, folder))
        return await asyncio.shield(known)

    def close(self) -> None:
        """End the server. The shims continue to run; a later launch starts a new server."""
        channel, self._channel = self._channel, None
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel)
            asyncio.get_running_loop().remove_writer(channel)
            channel.close()
        self._lost()

    async def _ask(self, folder: str) -> int | None:
        """Ask the server to launch a shim. Return the launcher's exit code; None without a server."""
        known = self._waiting.get(folder)
        if known is not None:
            code: int | None = await asyncio.shield(known)
            return code
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting[folder] = answer
        try:
            channel = self._channel or self._start()
            sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(channel, os.fsencode(folder)))
            answer.add_done_callback(lambda _: sending.cancel())  # a full channel that was closed never sends it
            await asyncio.wait({sending})
            if not sending.cancelled():
                sending.result()
        except OSError:
            if self._waiting.get(folder) is answer:
                del self._waiting[folder]
            if not answer.done():  # others may wait for it too
                answer.set_result(None)
        return await answer

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = str(theirs.fileno())
        try:
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
        except OSError:
            ours.close()
            raise
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
        """Handle the end of the server: all waiting launches start a separate interpreter."""
        server, self._server = self._server, None
        if server is not None and server.poll() is None:
            asyncio.get_running_loop().run_in_executor(None, _end, server, self._end_seconds)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


_INTERPRETER = [sys.executable, "-S", "-E", "-s", podshim.__file__]


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath)}


def _launch_alone(folder: Path) -> int:
    """Start an interpreter for only this shim; return its exit code."""
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


def _end(server: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for a server whose channel is closed; kill it if it does not end because it is suspended."""
    try:
        server.wait(seconds)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def try_fence(folder: Path) -> Fence:
    """Try to hide a folder, in a separate process. Blocks. Raises LaunchError when the test itself failed.

    Pods of root have all rights of root.
    """
    words = [*_INTERPRETER, "--try-fence", str(folder)]
    try:
        tried = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=TRY_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"cannot test whether {folder} can be hidden from pods: {error}") from error
    answer = tried.stdout.strip()
    if tried.returncode != 0 or not answer:
        complaint = answer or tried.stderr.strip()[-400:] or f"exit code {tried.returncode}"
        raise LaunchError(f"cannot test whether {folder} can be hidden from pods: {complaint}")
    if answer == "fully":
        return Fence(hides=True, gap="")
    if answer == "partly":
        return Fence(hides=True, gap="this kernel has no Landlock of Linux 5.19 or newer")
    return Fence(hides=False, gap=answer)
