"""The parent process of `moor up`: it starts child processes, restarts them if they die or hang, and stops them.

Standard library only, so that it loads quickly: it is the first step between the user and a ready cluster.
It holds the data folder's lock and the listening sockets. So a restarted child gets the same port, and meanwhile
clients wait in the backlog instead of being refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO

RESTART_SECONDS = (0.2, 1.0, 5.0, 15.0)  # wait before the first, second, third and every later restart
STEADY_SECONDS = 60.0  # a child that ran this long starts counting from the first wait again
STOP_SECONDS = 60.0  # a child that ignores SIGTERM for this long is killed

CHILDREN = {  # name → module; they are asked to stop in this order, services first
    "services": "moorage.cli.services",
    "admission": "moorage.cli.admission",
    "ingress": "moorage_local.ingress",  # run by name, as is the next: nothing here imports them
    "localcluster": "moorage_local",
}

LOG_BYTES = 16 * 2**20  # of a log, and of its older part, NAME.log.1
LOG_LOOKS = 60  # turns of the loop between two looks at the logs' sizes: half a minute

LATER_SECONDS = {"ingress": 1.0}
"""Children that nobody waits for begin when the others are ready, mostly: their start takes a tenth of a second of
a processor. Whoever connects before that waits in the backlog of the socket."""

TURN_SECONDS = 0.5  # of the loop, while no child ends
ASK_SECONDS = 5.0  # between two questions whether a child's event loop turns
HANG_SECONDS = 30.0  # without an answer, once the loop runs: then SIGTERM, at which the child logs where it hangs
NOTE_SECONDS = 2.0  # between that and SIGKILL


class Child:
    """One child process, the number of its restarts, and whether it answers.

    Failures to write its log or pid stop nothing: a full disk is reported once.
    """

    def __init__(
        self,
        name: str,
        module: str,
        data: Path,
        fds: dict[str, int],
        ready_fd: int | None = None,
        *,
        hang_seconds: float = HANG_SECONDS,
        log_to_stderr: bool = False,
    ) -> None:
        self.name = name
        self._module = module
        self._data = data
        self._fds = fds
        self._ready_fd = ready_fd  # for reports of readiness, and of a failed start, to the waiting process
        self._hang_seconds = hang_seconds
        self._log_to_stderr = log_to_stderr
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None  # asks, and hears the answers of, the child's event loop
        self._silent: float | None = (
            None  # seconds of the supervisor's turns since its last answer; None: before the first
        )
        self._asked = 0.0  # the same, since the last question
        self._started = 0.0
        self._failures = 0
        self._is_noted = False
        self._problem = ""  # reported last
        self.due = 0.0  # monotonic time at which to start it (again)

    def start(self) -> None:
        self._silent, self._asked, self._is_noted = None, ASK_SECONDS, False
        try:
            self._process = self._spawn()
        except OSError as error:  # no memory, no process, no descriptor: there may be some later
            self._put_off(f"cannot be started: {error.strerror or error}")
            return
        self._started = time.monotonic()
        self._note()

    def _spawn(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", self._module, "--data", str(self._data), "--fds", json.dumps(self._fds)]
        with contextlib.ExitStack() as held:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            held.enter_context(theirs)
            ours.setblocking(False)
            if self._line is not None:
                self._line.close()
            self._line = ours
            argv += ["--alive-fd", str(theirs.fileno())]
            passed = [*self._fds.values(), theirs.fileno()]
            if self._ready_fd is not None:
                argv += ["--ready-fd", str(self._ready_fd)]
                passed.append(self._ready_fd)
            log: IO[bytes] | int | None = None
            if not self._log_to_stderr:
                try:
                    log = held.enter_context((self._data / "log" / f"{self.name}.log").open("ab"))
                except OSError as error:
                    self._report(f"its log cannot be opened: {error.strerror}")
                    log = subprocess.DEVNULL
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=passed, cwd="/"
            )

    def _note(self) -> None:
        """Write the pid file, so that `moor status` and the next `moor up` find the process faster."""
        if self._process is not None and not self._is_noted:
            problem = write_pid(self._data, self.name, self._process.pid)
            self._is_noted = problem is None
            if problem is not None:
                self._report(f"its pid file cannot be written: {problem}")

    def check(self) -> None:
        """Start or restart the child if it is not running and its delay is over."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                self._note()
                return
            self._process = None
            if time.monotonic() - self._started > STEADY_SECONDS:
                self._failures = 0
            self._put_off(f"ended with exit code {code}")
        if time.monotonic() >= self.due:
            self.start()

    def _put_off(self, why: str) -> None:
        wait = RESTART_SECONDS[min(self._failures, len(RESTART_SECONDS) - 1)]
        self._failures += 1
        self.due = time.monotonic() + wait
        say(f"{self.name} {why}; started again in {wait:g} s")
        if self._ready_fd is not None:
            with contextlib.suppress(OSError):  # the waiting process has ended
                os.write(self._ready_fd, f"{self.name} {why}\n".encode())

    def look(self, seconds: float) -> None:
        """Ask whether the child's event loop runs; end a child that has not answered for long.

        `seconds`: length of the supervisor's own turn. Turns are added up, so a supervisor that was stopped
        itself does not count its pause against a child.
        """
        if self._process is None or self._line is None:
            return
        with contextlib.suppress(OSError):  # BlockingIOError: no more answers
            while self._line.recv(16):
                self._silent = 0.0
        self._asked += seconds
        if self._asked >= ASK_SECONDS:
            self._asked = 0.0
            with contextlib.suppress(OSError):
                self._line.send(b"?")
        if self._silent is None:
            return
        before, self._silent = self._silent, self._silent + seconds
        if before < self._hang_seconds <= self._silent:
            say(f"{self.name} has not answered for {self._silent:g} s: it is replaced")
            self._process.terminate()
        elif self._silent >= self._hang_seconds + NOTE_SECONDS:
            self._process.kill()

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            say(f"{self.name}: {problem}")

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
        remove_pid(self._data, self.name)


def say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # a full disk takes no line
        print(f"supervisor: {sentence}", file=sys.stderr, flush=True)


def write_pid(data: Path, name: str, pid: int) -> str | None:
    """Write a pid file. Returns None, or why it failed; an older file is then removed."""
    try:
        (data / "run" / f"{name}.pid").write_text(f"{pid}\n")
    except OSError as error:
        remove_pid(data, name)
        return error.strerror
    return None


def remove_pid(data: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        (data / "run" / f"{name}.pid").unlink(missing_ok=True)


def keep_small(logs: Path, most: int = LOG_BYTES) -> None:
    """Move the end of a log larger than `most` bytes to NAME.log.1, in place of the older part.

    The children hold the logs open to append: they are copied and truncated, and a line written in between is
    lost.
    """
    for log in logs.glob("*.log"):
        try:
            with log.open("r+b") as file:
                if file.seek(0, os.SEEK_END) <= most:
                    continue
                file.seek(-most, os.SEEK_END)
                newest = file.read(most)
                log.with_name(f"{log.name}.1").write_bytes(
                    newest
                )  # in its place: a full disk may have no other room
                file.truncate(0)
        except OSError as error:
            say(f"{log.name} cannot be truncated: {error.strerror}")


def supervise(
    data: Path,
    fds: dict[str, int],
    ready_fd: int | None,
    *,
    children: Mapping[str, str] = CHILDREN,
    hang_seconds: float = HANG_SECONDS,
    log_to_stderr: bool = False,
) -> None:
    """Run the children until SIGTERM or SIGINT. `fds` maps names to inherited listening sockets."""
    # signals only set a flag: the loop below ends the children
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    os.umask(0o077)  # logs, databases, sockets: only for their owner, here and in every child
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)  # only to cut the wait below short
    # note the pid for `moor down`
    if (problem := write_pid(data, "supervisor", os.getpid())) is not None:
        say(f"its own pid file cannot be written: {problem}")
    # start the children
    started = [
        Child(name, module, data, fds, ready_fd, hang_seconds=hang_seconds, log_to_stderr=log_to_stderr)
        for name, module in children.items()
    ]
    for child in reversed(started):  # the API server first: the others wait for it
        if child.name in LATER_SECONDS:
            child.due = time.monotonic() + LATER_SECONDS[child.name]
        else:
            child.start()
    # a signal wakes `select` by this pipe, so that a dead child is noticed at once
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    # in turns: cut large logs, restart ended children, replace hanging ones
    looks = 0
    while not stopping:
        looks += 1
        if looks % LOG_LOOKS == 0:
            keep_small(data / "log")
        readable, _, _ = select.select([wakeup_read], [], [], TURN_SECONDS)
        if readable:
            os.read(wakeup_read, 4096)
        if not stopping:
            # end the children one after the other, each with SIGKILL if SIGTERM does not help
            for child in started:
                child.check()
                child.look(0.0 if readable else TURN_SECONDS)
    for child in started:
        child.stop()
    remove_pid(data, "supervisor")


def main(argv: list[str]) -> None:
    """`python -m moorage.cli.supervisor DATA FDS_JSON [READY_FD]`.

    The caller has already detached this process.
    """
    ready_fd = int(argv[2]) if len(argv) > 2 else None
    supervise(Path(argv[0]), json.loads(argv[1]), ready_fd)


if __name__ == "__main__":
    main(sys.argv[1:])
