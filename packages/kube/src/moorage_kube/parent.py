"""The link of a process to its parent: it ends with it, reports readiness to it, and answers its checks."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def end_with_parent(by: int = signal.SIGTERM) -> None:
    """Ask the kernel to send this process the signal `by` when its parent dies.

    Does nothing on other systems than Linux.
    """
    parent = os.getppid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), by)


def tell_parent(fd: int, line: str) -> None:
    """Write one line to the pipe of the process that waits for us, and close it; ignore a missing reader."""
    with contextlib.suppress(OSError):
        os.write(fd, f"{line}\n".encode())
        os.close(fd)


def answer_parent(fd: int | None) -> None:
    """Echo the parent's messages on this socket from the running event loop; a hung loop gives no answer."""
    if fd is None:
        return
    line = socket.socket(fileno=fd)
    line.setblocking(False)
    loop = asyncio.get_running_loop()

    def answer() -> None:
        with contextlib.suppress(OSError):
            if not (word := line.recv(16)):
                loop.remove_reader(line)  # the parent has ended
            line.send(word)

    loop.add_reader(line, answer)
    with contextlib.suppress(OSError):
        line.send(b"!")  # from now on
