"""The termination message of a container: a file that its program writes before its end.

https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from __future__ import annotations

import os
import stat

from .volumes import SubPathRefused, host_path, is_below, open_volume

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


FILE = ".termination-log"  # in the container's folder in `work`
BYTES_MAX = 4096  # a kubelet's limit


class Message:
    """The file of one attempt: `below` the folder `volume` of this machine."""

    def __init__(self, volume: str, below: str, path: str) -> None:
        self.volume = volume
        self.below = below
        self.path = path  # as the container sees it; "" in a volume, where the file is in its place

    def as_mount(self) -> dict[str, Any]:
        return {"mountPath": self.path, "hostPath": host_path(self.volume, self.below)}

    def read(self) -> str:
        """The end of the message; "" if the file is missing, empty or not a regular file.

        Links that the pod made do not lead out of the folder.
        """
        try:
            folder = open_volume(self.volume, os.path.dirname(self.below))
        except (OSError, SubPathRefused):
            return ""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(os.path.basename(self.below), flags, dir_fd=folder)
        except OSError:
            return ""
        finally:
            os.close(folder)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return ""
            return os.pread(fd, BYTES_MAX, max(0, status.st_size - BYTES_MAX)).decode("utf-8", "replace")
        finally:
            os.close(fd)


def make_message(spec: dict[str, Any], folder: str) -> Message:
    """Create the empty file of an attempt in the pod's folder, or choose one in a volume. Raises OSError."""
    path = os.path.normpath(spec["messagePath"])
    for mount in sorted(spec.get("mounts") or [], key=lambda mount: -len(mount["mountPath"])):
        if is_below(path, mount["mountPath"]):
            below = path[len(os.path.normpath(mount["mountPath"])) + 1 :]
            return Message(mount["hostPath"], host_path(mount.get("subPath") or ".", below), "")
    place = os.path.join(folder, "work", spec["name"])
    os.makedirs(place, exist_ok=True)
    file = os.path.join(place, FILE)
    try:
        os.unlink(file)
    except FileNotFoundError:
        pass
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    return Message(place, FILE, path)
