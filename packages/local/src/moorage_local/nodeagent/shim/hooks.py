"""Lifecycle hooks of a container: a child of the shim runs a command in it, sends a request, or waits."""

from __future__ import annotations

import os
import signal
import time

from .exec import enter
from .kernel import PR_SET_PDEATHSIG, prctl
from .mainprocess import leave_shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


POST_START, PRE_STOP = "postStart", "preStop"
FAILED = 1


def start_hook(hook: dict[str, Any], folder: str, main: int, *, is_privileged: bool) -> int:
    """Start a hook of the container with the main process `main`; returns the process id of the hook.

    Its exit code is that of the command. A request fails only without an answer, as in a kubelet. Raises OSError.
    """
    shim = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        signal.set_wakeup_fd(-1)
        leave_shim()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if "exec" in hook:
            code = enter(folder, main, hook["exec"], is_privileged=is_privileged, parent=shim)
        else:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if "sleep" in hook:
                time.sleep(hook["sleep"])
            elif "http" in hook:
                _request(hook["http"])
            code = 0
    finally:
        os._exit(code)


def _request(http: dict[str, Any]) -> None:
    """Send a request, and wait for the first byte of the answer. Raises OSError."""
    import socket

    with socket.create_connection((http["host"], http["port"])) as connection:
        if http["tls"]:
            import ssl

            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection = context.wrap_socket(connection)
        connection.sendall(http["request"].encode())
        if not connection.recv(1):
            raise ConnectionResetError
