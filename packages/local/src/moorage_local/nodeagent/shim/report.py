"""Write the pod's report `state.json`, and notify the agent."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1  # of state.json


def write_state(state: dict[str, Any], *, durable: bool) -> None:
    """Replace `state.json` in one step. With `durable`, it survives a power failure. Raises OSError."""
    fd = os.open("state.json.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = json.dumps(state).encode()
        while data:
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename("state.json.tmp", "state.json")


def notify(spec: dict[str, Any]) -> None:
    """Send the pod's uid to the agent, if it listens.

    Socket paths have a limit of 107 bytes, so the folder of the socket is opened first.
    """
    path = spec.get("notifySocket")
    if not path:
        return
    import _socket

    try:
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
        try:
            sock.sendto(spec["uid"].encode(), f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        finally:
            sock.close()
    except OSError:
        pass  # the agent is stopped: it reads the file when it starts
    finally:
        os.close(folder)
