"""Run `moor` commands in processes that are forked from one which has imported all that commands need.

Tests run hundreds of commands, and four fifths of the processor time of a short one are imports. A forked command
has its own process, arguments, environment, folder, stdin, stdout and stderr, and ends as `python -m
moorage.cli.main` does. It does not cover the start of a fresh interpreter: `test_up.py`,
`test_demo.py`, `test_wheel.py` and all tests that signal a command start one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from moorage.cli.main import main as main_of_moor
from moorage_kube.clock import SYSTEM

PACKAGES = (
    "moorage.cli",
    "moorage.client",
    "moorage_kube.remote",
    "moorage.actions",
    "moorage_workflows.cli",
    "moorage_workflows.actions",
)
LATE = ("aiohttp", "encodings.idna")  # modules that commands import at their first request
FDS = 4  # of a request: stdin, stdout, stderr, and where its pid and its exit code are written
PID_BYTES = 8
REQUEST_BYTES = 2**20


class ForkServer:
    """A process that forks a process for each command. It ends with the process that started it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (self._socket, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moorage_testing.forked", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self.pid = self._process.pid
        self._folder = tempfile.mkdtemp(prefix="typed-")
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; running commands continue."""
        self._socket.close()
        self._process.wait()

    def run(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: str | None = None,
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run `moor WORDS…` and return its output. Threads may call it at the same time.

        Without `cwd` it is typed in a folder without files: `moor run` makes a snapshot of it.

        Raises subprocess.TimeoutExpired, and kills the command, after `timeout` seconds.
        """
        # a pipe for each stream, and one for pid and exit code
        argv = ["moor", *words]
        ours: dict[str, int] = {}
        theirs: list[int] = []
        with contextlib.ExitStack() as stack:
            for name in ("in", "out", "err", "status"):
                read, write = os.pipe()
                mine, other = (write, read) if name == "in" else (read, write)
                ours[name] = mine
                theirs.append(other)
                if name != "in":
                    stack.callback(os.close, mine)
            # our copies of the command's ends must be closed, or its end is never seen
            request = {"argv": argv, "env": dict(env), "cwd": str(cwd or self._folder)}
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
            finally:
                for fd in theirs:
                    os.close(fd)
            # feed and read at the same time: a full pipe would block the command
            feeding = threading.Thread(target=_feed, args=(ours["in"], (stdin or "").encode()))
            feeding.start()
            pid = int.from_bytes(os.read(ours["status"], PID_BYTES), "big")
            (out, err, code), is_whole = _read_all([ours[name] for name in ("out", "err", "status")], timeout)
            if pid and not is_whole:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            feeding.join()
        # an empty code means that the forking process itself has ended
        if not is_whole:
            raise subprocess.TimeoutExpired(argv, timeout)
        if not code:
            raise RuntimeError(f"moor {' '.join(words)}: the process that forks commands ended")
        return subprocess.CompletedProcess(argv, int(code), _text(out), _text(err))


@functools.cache
def fork_server() -> ForkServer:
    """Return the fork server of this process; the first call starts it."""
    return ForkServer()


def _text(printed: bytes) -> str:
    return printed.decode().replace("\r\n", "\n")


def _feed(fd: int, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(fd, "wb") as file:
        file.write(content)


def _read_all(fds: Sequence[int], timeout: float) -> tuple[list[bytes], bool]:
    """Read each descriptor to its end; False if one of them had not ended after `timeout` seconds."""
    deadline = SYSTEM.monotonic() + timeout
    content = {fd: bytearray() for fd in fds}
    with selectors.DefaultSelector() as selector:
        for fd in fds:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - SYSTEM.monotonic()) > 0:
            for key, _ in selector.select(left):
                if chunk := os.read(key.fd, 65536):
                    content[key.fd] += chunk
                else:
                    selector.unregister(key.fd)
        return [bytes(content[fd]) for fd in fds], not selector.get_map()


def serve(control: socket.socket) -> None:
    """Fork a process for each request until the other end of the socket is closed."""
    ends: dict[int, tuple[int, int]] = {}  # of running commands, by pidfd: pid, and the pipe for its exit code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which end this
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != control.fileno():
                    selector.unregister(key.fd)
                    _tell_end(key.fd, *ends.pop(key.fd))
                    continue
                request, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, FDS)
                if not request:
                    return
                pid = os.fork()
                if pid == 0:
                    control.close()
                    for pidfd, (_, status) in ends.items():  # held open, they would hide the end of others
                        os.close(pidfd)
                        os.close(status)
                    _become(json.loads(request), fds)
                for fd in fds[:-1]:
                    os.close(fd)
                os.write(fds[-1], pid.to_bytes(PID_BYTES, "big"))
                pidfd = os.pidfd_open(pid)
                ends[pidfd] = (pid, fds[-1])
                selector.register(pidfd, selectors.EVENT_READ)


def _tell_end(pidfd: int, pid: int, status: int) -> None:
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # the caller waits no longer
        os.write(status, str(code).encode())
    os.close(status)


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    """Become the requested command, and exit with its exit code."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, fd in enumerate(fds[:-1]):
            os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv, sys.path[0] = request["argv"], request["cwd"]  # as `python -m` has it
        code = main_of_moor()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for package in PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    serve(control)


if __name__ == "__main__":
    main()
