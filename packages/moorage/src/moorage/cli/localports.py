"""The processes that listen on ports of this machine, from Linux' /proc; elsewhere they are unknown."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

LISTENS = "0A"  # TCP_LISTEN of /proc/net/tcp


def port_holder(port: int, proc: Path = Path("/proc")) -> str:
    """The process that listens on a port of this machine, such as "python (process 4711)".

    "" if unknown: the process belongs to another user, or the system is not Linux.
    """
    for folder in _holders(port, proc):
        with contextlib.suppress(OSError):
            return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return ""


def pod_on_port(port: int, proc: Path = Path("/proc")) -> str:
    """The uid of the pod whose process listens on a port of this machine; "" if none does or it is unknown.

    Pods share the machine's ports if their nodes run processes of this machine.
    """
    mark = b"MOORAGE_POD_UID="
    for folder in _holders(port, proc):
        with contextlib.suppress(OSError):
            for word in (folder / "environ").read_bytes().split(b"\0"):
                if word.startswith(mark):
                    return word.removeprefix(mark).decode("ascii", "replace")
    return ""


def _holders(port: int, proc: Path) -> Iterator[Path]:
    """The /proc folders of the processes that listen on a port."""
    sockets = {f"socket:[{inode}]" for inode in _listeners(port, proc)}
    for folder in proc.glob("[0-9]*") if sockets else ():
        with contextlib.suppress(OSError):
            if any(os.readlink(fd) in sockets for fd in (folder / "fd").iterdir()):
                yield folder


def _listeners(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
