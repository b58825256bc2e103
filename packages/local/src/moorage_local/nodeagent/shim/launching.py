"""Launch shims, one directly or many by forks of a server."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import select
import signal
import sys
import time

from .kernel import PR_SET_CHILD_SUBREAPER, drain, libc_of, prctl
from .pod import Shim
from .processes import kill_descendants

LAUNCHED, LOCKED, STARTED_BEFORE, BROKEN = 0, 3, 4, 5


def launch(folder: str) -> int:
    """Start the shim of a pod folder, as a separate process; returns the launcher's exit code."""
    os.chdir(folder)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + 2.0
    while True:  # the agent may be looking at the lock this instant
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > until:
                return LOCKED
            time.sleep(0.01)
    if os.path.exists("state.json"):
        return STARTED_BEFORE
    ready, tell = os.pipe2(os.O_CLOEXEC)
    gc.collect()
    gc.freeze()
    if os.fork() == 0:
        os.close(ready)
        _detach()
        _guard(tell, lock)
    os.close(tell)
    os.close(lock)
    return LAUNCHED if os.read(ready, 1) == b"k" else BROKEN


def serve(sock: int, argv: list[str]) -> int:
    """Launch the shim of every folder that comes over a socket of packets; ends with the process at its other end.

    A fork of an interpreter that has loaded all modules costs a tenth of starting one. Each answer is the exit
    code and the folder. Errors of a launcher are written to the folder's shim.log.
    """
    import socket

    # load all that shims need, once
    libc_of()
    words = _argument_words()
    with socket.socket(fileno=sock) as channel:
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()  # for the forks
        # wait for folders, and for launchers that end
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        poll.register(wake, select.POLLIN)
        launching: dict[int, bytes] = {}
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    drain(wake)
                    continue
                folder = channel.recv(65536)
                if not folder:
                    return 0
                pid = os.fork()
                if pid:
                    launching[pid] = folder
                    continue
                # the child: launches the shim of this folder
                code = BROKEN
                try:
                    signal.set_wakeup_fd(before)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for end in (sock, wake, wake_write):
                        os.close(end)
                    os.setsid()
                    _name_process(words, argv, folder)
                    _complain_into(os.path.join(folder, b"shim.log"))
                    code = launch(os.fsdecode(folder))
                except BaseException as error:
                    print(f"cannot launch the shim: {error!r}", file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
            # report the launchers that have ended
            while launching:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                code = os.waitstatus_to_exitcode(status)
                channel.send(b"%d %s" % (code, launching.pop(pid)))


def _complain_into(path: bytes) -> None:
    errors = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 2)
    os.close(errors)


def _argument_words() -> tuple[int, int]:
    """Return where the kernel finds the command line of this process: (address, size in bytes)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46]) - int(fields[45])  # arg_start, arg_end of proc(5)


def _name_process(words: tuple[int, int], argv: list[str], folder: bytes) -> None:
    """Write the pod's folder into the command line, as for a shim that was started directly.

    Other processes identify the shim by its command line.
    """
    import ctypes

    start, size = words
    shown = b"\0".join((b"podshim", os.fsencode(argv[0]), folder)) + b"\0"
    if len(shown) > size:
        raise OSError(errno.ENAMETOOLONG, "the path of the pod's folder is too long")
    ctypes.memmove(start, shown.ljust(size, b"\0"), size)


def _detach() -> None:
    """Start a new session without a terminal, errors to shim.log; signals meant for terminals are ignored."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open("shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    for fd in (null, errors):
        if fd > 2:
            os.close(fd)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def _guard(tell: int, lock: int) -> None:
    """Start the shim and wait for it. If it was killed, kill all its remaining processes. Does not return.

    Both processes have the lock. So if the lock is free, no process of this pod runs.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Shim(os.getcwd(), lock, tell).run()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(tell)
    while True:
        try:
            pid, status = os.waitpid(child, 0)
        except InterruptedError:
            continue
        break
    if pid == child and status != 0:
        kill_descendants(os.getpid())
    os._exit(0)
