"""The parent of `moor up`'s processes: starts them, starts them again when they die, stops them.

Standard library only and quick to load: it is the first thing between the user and a ready cluster.
It holds the data folder's lock and the listening sockets, so that a child that died finds its port
still its own, and clients wait in the backlog instead of being refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

RESTART_SECONDS = (0.2, 1.0, 5.0, 15.0)  # wait before the first, second, third and every later restart
STEADY_SECONDS = 60.0  # a child that ran this long starts counting from the first wait again
STOP_SECONDS = 60.0  # a child that ignores SIGTERM for this long is killed

CHILDREN = {  # name → module; they are asked to stop in this order, services first
    "services": "moorage.cli.services",
    "ingress": "moorage.localcluster.ingress",
    "localcluster": "moorage.localcluster",
}

LOG_BYTES = 16 * 2**20  # of a log, and of the older part that is kept beside it
LOG_LOOKS = 60  # turns of the loop between two looks at the logs' sizes: half a minute

LATER_SECONDS = {"ingress": 1.0}
"""Children that nobody waits for begin when the others are ready, mostly: their start takes a tenth of a second of
a processor. Whoever connects before that waits in the backlog of the socket."""


class Child:
    """One child process and how often it had to be started again."""

    def __init__(self, name: str, data: Path, fds: dict[str, int], *, log_to_stderr: bool) -> None:
        self.name = name
        self._data = data
        self._fds = fds
        self._log_to_stderr = log_to_stderr
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._failures = 0
        self.due = 0.0  # monotonic time at which to start it (again)
        self.ready_fd: int | None = None  # where whoever waits for readiness is told of a failed start

    def start(self, ready_fd: int | None) -> None:
        argv = [sys.executable, "-m", CHILDREN[self.name], "--data", str(self._data)]
        argv += ["--fds", json.dumps(self._fds)]
        passed = list(self._fds.values())
        if ready_fd is not None:
            argv += ["--ready-fd", str(ready_fd)]
            passed.append(ready_fd)
        log = None if self._log_to_stderr else (self._data / "log" / f"{self.name}.log").open("ab")
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log if log else None,
                stderr=subprocess.STDOUT if log else None,
                pass_fds=passed,
                cwd="/",
            )
        finally:
            if log:
                log.close()
        self._started = time.monotonic()
        write_atomically(self._data / "run" / f"{self.name}.pid", f"{self._process.pid}\n")

    def check(self) -> None:
        """Start the child (again) if it is not running and its wait is over."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            if time.monotonic() - self._started > STEADY_SECONDS:
                self._failures = 0
            wait = RESTART_SECONDS[min(self._failures, len(RESTART_SECONDS) - 1)]
            self._failures += 1
            self.due = time.monotonic() + wait
            say(f"{self.name} ended with exit code {code}; started again in {wait:g} s")
            if self.ready_fd is not None:
                with contextlib.suppress(OSError):  # nobody waits any more
                    os.write(self.ready_fd, f"{self.name} ended with exit code {code}\n".encode())
        if time.monotonic() >= self.due:
            self.start(None)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"{self.name} did not stop within {STOP_SECONDS:g} s and is killed")
            self._process.kill()
            self._process.wait()
        (self._data / "run" / f"{self.name}.pid").unlink(missing_ok=True)


def say(sentence: str) -> None:
    print(f"supervisor: {sentence}", file=sys.stderr, flush=True)


def write_atomically(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text)
    scratch.replace(path)


def keep_small(logs: Path, most: int = LOG_BYTES) -> None:
    """Move what is in a log that has grown beyond `most` bytes to NAME.log.1, in the place of what was there.

    The children hold the logs open to append: they are copied and cut, and a line written in between is lost.
    """
    for log in logs.glob("*.log"):
        try:
            with log.open("r+b") as file:
                if file.seek(0, os.SEEK_END) <= most:
                    continue
                file.seek(-most, os.SEEK_END)
                newest = file.read(most)
                scratch = log.with_name(f".{log.name}.{os.getpid()}")
                scratch.write_bytes(newest)
                scratch.replace(log.with_name(f"{log.name}.1"))
                file.truncate(0)
        except OSError as error:
            say(f"{log.name} is not cut: {error.strerror}")


def supervise(data: Path, fds: dict[str, int], ready_fd: int | None, *, log_to_stderr: bool = False) -> None:
    """Run the children until SIGTERM or SIGINT. `fds` maps names to inherited listening sockets."""
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    os.umask(0o077)  # logs, databases, sockets: for their owner alone, here and in every child
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)  # only to cut the wait below short
    write_atomically(data / "run" / "supervisor.pid", f"{os.getpid()}\n")
    children = [Child(name, data, fds, log_to_stderr=log_to_stderr) for name in CHILDREN]
    for child in reversed(children):  # the API server first: the others wait for it
        if child.name in LATER_SECONDS:
            child.due = time.monotonic() + LATER_SECONDS[child.name]
            continue
        child.start(ready_fd)
        child.ready_fd = ready_fd
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    looks = 0
    while not stopping:
        looks += 1
        if looks % LOG_LOOKS == 0:
            keep_small(data / "log")
        readable, _, _ = select.select([wakeup_read], [], [], 0.5)
        if readable:
            os.read(wakeup_read, 4096)
        if not stopping:
            for child in children:
                child.check()
    for child in children:
        child.stop()
    (data / "run" / "supervisor.pid").unlink(missing_ok=True)


def main(argv: list[str]) -> None:
    """`python -m moorage.cli.supervisor DATA FDS_JSON [READY_FD]`: detached already by the caller."""
    ready_fd = int(argv[2]) if len(argv) > 2 else None
    supervise(Path(argv[0]), json.loads(argv[1]), ready_fd)


if __name__ == "__main__":
    main(sys.argv[1:])
