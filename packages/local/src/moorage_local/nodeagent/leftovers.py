"""Find processes of ended pods by a mark that the shim sets in each container's environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from moorage_local.nodeagent.podfolder import PodFolder
from moorage_local.nodeagent.shim.processes import KILL_SECONDS, UID_MARK
from moorage_local.nodeagent.status import SHUTDOWN_MESSAGE, SHUTDOWN_REASON

STOP_GRACE_SECONDS = 10.0


def marked_processes(uids: frozenset[str]) -> dict[int, str]:
    """Processes with the mark of one of these pods: pid → pod uid. Only processes of this user can be read."""
    prefix = UID_MARK.encode() + b"="
    processes: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue
        if prefix not in environ:
            continue
        for part in environ.split(b"\0"):
            uid = part[len(prefix) :].decode("utf-8", "replace")
            if part.startswith(prefix) and uid in uids:
                processes[int(name)] = uid
    return processes


def listens(port: int, uid: str) -> bool:
    """Whether a process with the pod's mark listens on this port of 127.0.0.1."""
    local = f"0100007F:{port:04X}"  # /proc/net/tcp, addresses in host order
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == local and fields[3] == "0A":
            inodes.add(f"socket:[{fields[9]}]")
    for pid in marked_processes(frozenset({uid})) if inodes else ():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") in inodes:
                        return True
    return False


def kill_leftovers(uid: str) -> int:
    """SIGKILL every process with the pod's mark until none is left; returns how many were killed.

    Waits at most `KILL_SECONDS`: a process stuck in the kernel cannot be killed.
    """
    killed: set[int] = set()
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until:
        processes = marked_processes(frozenset({uid}))
        processes.pop(os.getpid(), None)
        if not processes:
            break
        for pid in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.005)
    return len(killed)


def stop_all(nodes: Path, grace_seconds: float = STOP_GRACE_SECONDS) -> int:
    """Stop every pod under a `nodes` folder, without an agent; returns how many were running.

    Each gets its own grace period, at most `grace_seconds`, and is marked as ended by the node's shutdown. Pods
    with damaged or missing files are stopped too: shims are also found by their command line, their pods by the
    uid in the folder's name.
    """
    nodes = nodes.resolve()
    shims = _shims_under(nodes)
    alive = [folder for folder in _folders(nodes) if folder.is_locked() or folder.path in shims]
    gone = [PodFolder(path) for path in shims if not path.is_dir()]
    for folder in alive:
        admission = folder.admission()
        grace = min(grace_seconds, admission.grace_seconds if admission else grace_seconds)
        with contextlib.suppress(OSError):  # a full disk: it is killed below
            folder.request_stop(grace, reason=SHUTDOWN_REASON, message=SHUTDOWN_MESSAGE)
    until = time.monotonic() + grace_seconds + KILL_SECONDS
    waiting = list(alive)
    while waiting and time.monotonic() < until:
        waiting = [folder for folder in waiting if _lives(folder, nodes)]
        time.sleep(0.02)
    left = _shims_under(nodes)
    for folder in (*alive, *gone):
        for pid in left.get(folder.path, ()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    for folder in (*alive, *gone):
        kill_leftovers(folder.path.name)
    return len(alive) + len(gone)


def _folders(nodes: Path) -> list[PodFolder]:
    if not nodes.is_dir():
        return []
    pods = [pod for node in sorted(nodes.iterdir()) if node.is_dir() for pod in sorted(node.iterdir())]
    return [PodFolder(pod) for pod in pods if pod.is_dir()]


def _lives(folder: PodFolder, nodes: Path) -> bool:
    if os.path.lexists(folder.path / "lock"):
        return folder.is_locked()
    return folder.path in _shims_under(nodes)


def _shims_under(nodes: Path) -> dict[Path, list[int]]:
    """Return the shims and guards of pods below this folder, by the pod's folder."""
    pids_by_folder: dict[Path, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words[1:] if any(word.endswith(b"podshim.py") for word in words) else ():
            path = Path(os.fsdecode(word))
            if path.parent.parent == nodes:
                pids_by_folder.setdefault(path, []).append(int(name))
    return pids_by_folder
