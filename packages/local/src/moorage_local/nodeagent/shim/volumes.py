"""The volumes of a container: their paths, and the part that a subPath selects."""

from __future__ import annotations

import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


LINKS_MAX = 40  # symbolic links followed in one path, as the kernel does


class MountFailed(Exception):
    """One volume could not be mounted."""


class SubPathRefused(Exception):
    """A subPath does not lead to a path inside its volume."""


class Point:
    """One volume and its mount point.

    `target` must have no symbolic links when the volumes are mounted. In a new root, an absolute link would
    lead back to the old root.
    """

    def __init__(self, mount: dict[str, Any]) -> None:
        self.target: str = mount["mountPath"]
        self.volume: str = mount["hostPath"]
        self.below: str = mount.get("subPath") or ""
        self.read_only = bool(mount.get("readOnly"))
        self.fd = -1
        self.is_folder = False

    def open(self, hidden: str = "", folder: int = -1) -> None:
        """Open the volume. A volume in the folder `hidden` is opened through the open descriptor `folder`.

        Raises MountFailed.
        """
        what = f'mounting "{host_path(self.volume, self.below)}" to "{self.target}"'
        try:
            if hidden and (self.volume == hidden or is_below(self.volume, hidden)):
                self.fd = open_volume(inside(hidden, self.volume), self.below, folder)
            else:
                self.fd = open_volume(self.volume, self.below)
        except OSError as error:
            raise MountFailed(f"{what}: {os.strerror(error.errno or 0).lower()}") from error
        except SubPathRefused as error:
            raise MountFailed(f"{what}: {error}") from error
        self.is_folder = stat.S_ISDIR(os.fstat(self.fd).st_mode)


_PATH_BEGINS = re.compile(r"(?<![\w./~-])(?=[^\s])")
_PATH_ENDS = re.compile(r"$|[^\w.~-]|\.(?:\W|$)")


def inside(folder: str, path: str) -> str:
    """Return the path relative to the folder."""
    return path[len(folder) :].strip("/") or "."


def open_volume(volume: str, below: str, folder: int | None = None) -> int:
    """Open a volume, or the path `below` in it, with O_PATH; missing folders are made in it.

    Symbolic links are followed while they stay in the volume, so a pod that mounts it cannot lead us out of it:
    each step opens one name of the open folder and follows no link, also if names change meanwhile. Raises
    OSError and SubPathRefused.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    path = [os.open(volume, os.O_PATH | os.O_CLOEXEC, dir_fd=folder)]  # all that is open, from the volume down
    names = below.split("/")[::-1]
    links = 0
    try:
        while names:
            name = names.pop()
            # one name further, or one folder back, never above the volume
            if name in ("", "."):
                continue
            if name == "..":
                if len(path) == 1:
                    raise SubPathRefused(f'subPath "{below}" follows a symbolic link that leads out of the volume')
                os.close(path.pop())
                continue
            try:
                fd = os.open(name, flags, dir_fd=path[-1])
            except FileNotFoundError:
                try:
                    os.mkdir(name, dir_fd=path[-1])
                except FileExistsError:
                    pass  # another container was faster
                fd = os.open(name, flags, dir_fd=path[-1])
            path.append(fd)
            # a link: go on from its folder by the names in it
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                target = os.readlink("", dir_fd=fd)
                os.close(path.pop())
                links += 1
                if links > LINKS_MAX:
                    raise SubPathRefused(f'subPath "{below}" follows more than {LINKS_MAX} symbolic links')
                if target.startswith("/"):
                    raise SubPathRefused(
                        f'subPath "{below}" follows the absolute symbolic link "{name}": links in a volume must be'
                        " relative and stay in it"
                    )
                names.extend(reversed(target.split("/")))
        return path.pop()
    finally:
        for fd in path:
            os.close(fd)


def host_path(volume: str, below: str) -> str:
    return f"{volume}/{below}" if below else volume


def is_below(path: str, folder: str) -> bool:
    folder = os.path.normpath(folder)
    return path != folder and (folder == "/" or path.startswith(folder + "/"))


def translate(text: str, mounts: list[dict[str, Any]]) -> str:
    """Replace mount paths by host paths at the start of paths in a text; for machines without namespaces.

    "/data" is replaced in "/data", "/data/x", "--in=/data:/y", "cat '/data/x'"; not in "/database", "/my/data".
    """
    table = {
        os.path.normpath(mount["mountPath"]): host_path(mount["hostPath"], mount.get("subPath") or "")
        for mount in mounts
    }
    if not table:
        return text
    longest = sorted(table, key=len, reverse=True)
    parts: list[str] = []
    end = 0
    for begin in _PATH_BEGINS.finditer(text):
        for path in longest if begin.start() >= end else ():
            after = begin.start() + len(path)
            if text.startswith(path, begin.start()) and _PATH_ENDS.match(text, after):
                parts += text[end : begin.start()], table[path]
                end = after
                break
    return "".join((*parts, text[end:]))
