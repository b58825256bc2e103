"""The folder of one pod: the agent's decisions, the shim's report, and whether processes are alive.

admission.json  written first: the pod's identity, its GPUs, when it was admitted, or why it was refused; and the
                object at that time, for a store that is restored from an older copy
spec.json       the shim's order                       lock   held (flock) while anything of the pod may run
state.json      the shim's report                      stop   asks the shim to end
lost.json       since when its processes are lost      logs/<container>/<attempt>.log
volumes/<name>/ volumes the agent makes                work/<container>/ default working folders
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage_kube.errors import MoorageError
from moorage_kube.resources import Obj
from moorage_local.nodeagent.addresses import HOST_IP
from moorage_local.nodeagent.plan import Body
from moorage_local.nodeagent.records import read_admission, read_lost, read_state, read_stop
from moorage_local.removal import remove_tree


class LaunchError(MoorageError):
    """The shim could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The decision when the pod came to this node; never changed afterwards."""

    uid: str
    namespace: str
    name: str
    at: str  # `metav1.Time`
    requests: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # container → device ids
    grace_seconds: float = 30.0
    address: str = HOST_IP
    rejected: tuple[str, str] | None = None  # reason, message


@dataclass(slots=True)
class PodFolder:
    """The folder of a pod.

    Reads are fast and never wait; a missing or damaged file reads as None, see `records`.
    """

    path: Path

    def admission(self) -> Admission | None:
        """Return the admission; None if the file is missing or damaged."""
        record = read_admission(self.path / "admission.json", self.path.name)
        if record is None:
            return None
        rejected = record.get("rejected")
        return Admission(
            uid=record["uid"],
            namespace=record["namespace"],
            name=record["name"],
            at=record["at"],
            requests=record["requests"],
            gpus=tuple(record["gpus"]),
            devices={name: tuple(ids) for name, ids in record["devices"].items()},
            grace_seconds=record["graceSeconds"],
            address=record.get("address") or HOST_IP,
            rejected=(rejected[0], rejected[1]) if rejected else None,
        )

    def recorded_pod(self) -> Obj | None:
        """Return the pod as it was admitted; None for folders of older versions and damaged files."""
        pod: Obj | None = (read_admission(self.path / "admission.json", self.path.name) or {}).get("pod")
        return pod

    def write_admission(self, admission: Admission, pod: Obj | None = None) -> None:
        """Write the admission. Without `pod`, the recorded pod does not change."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(
            self.path / "admission.json",
            {
                "uid": admission.uid,
                "namespace": admission.namespace,
                "name": admission.name,
                "at": admission.at,
                "requests": dict(admission.requests),
                "gpus": list(admission.gpus),
                "devices": {name: list(ids) for name, ids in admission.devices.items()},
                "graceSeconds": admission.grace_seconds,
                "address": admission.address,
                "rejected": list(admission.rejected) if admission.rejected else None,
                "pod": pod or self.recorded_pod(),
            },
        )

    def state(self) -> Obj | None:
        return read_state(self.path / "state.json", self.path.name)

    def has_state(self) -> bool:
        """Whether the shim has written a state; the file may be damaged since."""
        return os.path.lexists(self.path / "state.json")

    def state_mark(self) -> tuple[int, int]:
        """Return a value that changes each time the shim writes its state."""
        try:
            status = os.stat(self.path / "state.json")
        except OSError:
            return (0, 0)
        return (status.st_mtime_ns, status.st_ino)

    def lost_at(self) -> str | None:
        record = read_lost(self.path / "lost.json")
        return None if record is None else str(record["at"])

    def declare_lost(self, admission: Admission, at: str) -> None:
        """Record that the processes are lost; the time first recorded stays."""
        if not self._has_admission():
            self.write_admission(admission)
        if self.lost_at() is None:
            write_json(self.path / "lost.json", {"at": at})

    def body(self) -> Body:
        """Return the state of the pod on this machine."""
        if not self._has_admission() and not self.has_state():
            return Body.ADMITTED if os.path.isdir(self.path) and self.is_locked() else Body.NONE
        locked = self.is_locked()  # before the state: then the last write is seen
        if os.path.lexists(self.path / "lost.json"):
            return Body.LOST
        state = self.state()
        if state is not None and state["pod"].get("outcome") and state["pod"].get("finishedAt"):
            return Body.ENDED
        if locked:
            return Body.ALIVE
        if self.has_state():
            state = self.state()  # it may have ended between the two looks
            ended = state is not None and state["pod"].get("finishedAt")
            return Body.ENDED if ended else Body.LOST
        admission = self.admission()
        return Body.REFUSED if admission is not None and admission.rejected else Body.ADMITTED

    def is_locked(self) -> bool:
        """Whether the shim (or its guard) is alive."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return self._shim_pid() != 0  # the lock of a running pod was removed or replaced
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return self._shim_pid() != 0
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EACCES) or self._shim_pid() != 0
        finally:
            os.close(fd)
        return False

    def _has_admission(self) -> bool:
        return os.path.lexists(self.path / "admission.json")

    def write_order(self, order: Obj) -> None:
        """Write spec.json and create the working folders of the containers."""
        for container in (*order["initContainers"], *order["containers"]):
            folder = self.path / "work" / container["name"]
            if container["workingDir"] == str(folder):
                folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "spec.json", order, durable=False)  # written again before each try to start

    def request_stop(self, grace_seconds: float, *, reason: str = "", message: str = "") -> None:
        """Ask the shim to end the pod; a second request can only shorten the remaining time.

        With `reason` the pod is Failed.
        """
        before = read_stop(self.path / "stop")
        if before is None or grace_seconds < before["graceSeconds"]:
            order = {"graceSeconds": grace_seconds, "reason": reason, "message": message}
            if before is not None:
                order |= {"reason": before["reason"], "message": before["message"]}
            write_json(self.path / "stop", order)
            self.signal_shim(signal.SIGUSR1)

    def request_restart(self, container: str, attempt: int, grace_seconds: float, message: str) -> None:
        """Ask the shim to end one container, as after a failed liveness probe.

        Its restart policy decides the next step.
        """
        order = {"container": container, "attempt": attempt, "graceSeconds": grace_seconds, "message": message}
        write_json(self.path / f"restart.{container}", order)
        self.signal_shim(signal.SIGUSR1)

    def signal_shim(self, number: int) -> None:
        """Send a signal to the shim, if the process in its state is still the shim."""
        if pid := self._shim_pid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _shim_pid(self) -> int:
        """Return the process id of the shim, if the process in its state is still the shim; else 0."""
        pid = int((self.state() or {}).get("shimPid") or 0)
        return pid if pid and is_shim_of(pid, self.path) else 0

    def remove(self) -> None:
        """Remove the folder. It never contains volumes that other objects own."""
        remove_tree(self.path)


def is_shim_of(pid: int, folder: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(folder) in words


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace a file in one step. If `durable`, the file is on the disk when this returns."""
    temporary = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # of any type: a pod may have left a pipe there
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as out:
        out.write(json.dumps(value))  # `dump` leaves garbage in cycles: functions of an encoder in Python
        out.flush()
        if durable:
            os.fsync(out.fileno())
    temporary.rename(path)
