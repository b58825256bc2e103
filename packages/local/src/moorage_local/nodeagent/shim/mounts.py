"""The mounts of one container: its volumes at their paths, in its own namespace."""

from __future__ import annotations

import errno
import os

from .fence import FenceRefused, cover, open_hidden
from .kernel import (
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_UNBINDABLE,
    PIVOT_ROOT,
    libc_of,
    os_error,
)
from .logs import complain
from .mounting import bind, kept_flags, leave_mounts, mount
from .private import PrivateRefused, build_private
from .volumes import MountFailed, Point, host_path, inside, is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class MountRefused(Exception):
    """The kernel does not let this user create mount namespaces."""


def enter_mounts(
    mounts: list[dict[str, Any]],
    workdir: str,
    home: str,
    scratch: str,
    *,
    message: dict[str, Any] | None = None,
    hidden: str = "",
    kept: str = "",
    inode: list[int] | None = None,
    private: str = "",
) -> None:
    """Give this process (just forked) a mount namespace with every volume in its place and `hidden` empty.

    `mounts`: {mountPath, hostPath, subPath, readOnly}. `message`: a file to mount into /dev. `scratch` is an
    existing empty folder, or one in `hidden`. `kept`: the folder in `hidden` that stays visible, if there is one.
    `inode`: see `open_hidden`. `private`: an empty folder: the root is a copy of this machine's, and writes are
    stored there.

    The volumes are opened first, then the folder is hidden; the rest is done behind the fence, so that a mount
    point that a pod chooses never leads into the folder. Missing mount points: the folder is made when it lies
    below the working folder or the home folder (these must stay writable as they are); otherwise the root is built
    from binds of the existing files and folders, and its rebuilt levels are read-only, so that files cannot be
    written where they would vanish.

    Raises FenceRefused when the folder cannot be hidden, MountFailed when a volume cannot be mounted,
    PrivateRefused when there can be no private root; without `hidden`, MountRefused when the kernel does not allow
    it.
    """
    # the kernel may refuse namespaces; the error says which feature needed them
    try:
        leave_mounts()
    except OSError as error:
        raise (FenceRefused if hidden else PrivateRefused if private else MountRefused)(str(error)) from error
    # open everything while the paths still lead to the real folders
    points = [Point(entry) for entry in mounts]
    try:
        folder = open_hidden(hidden, inode) if hidden else -1
    except OSError as error:
        raise FenceRefused(str(error)) from error
    message_point = Point(message) if message else None
    for point in (*points, message_point) if message_point else points:
        point.open(hidden, folder)
    own = _open_private(private, hidden, folder) if private else -1
    # from here on the hidden folder cannot be reached by any path
    if hidden:
        try:
            cover(hidden, folder, kept, scratch if mounts or message or private else "")
        except OSError as error:
            raise FenceRefused(str(error)) from error
    # mount in the new root, or over the existing folders
    root = build_private(scratch, own, hidden) if private else ""
    try:
        if root:
            _mount_in_private(points, root)
        else:
            writable = [folder for folder in (workdir, home) if os.path.isdir(folder)]
            _mount_volumes(points, message_point, writable, scratch, hidden)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES) and not hidden:
            raise MountRefused(str(error)) from error
        raise MountFailed(f"cannot mount the volumes: {error}") from error


def _open_private(private: str, hidden: str, folder: int) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if hidden and is_below(private, hidden):
            return os.open(inside(hidden, private), flags, dir_fd=folder)
        return os.open(private, flags)
    except OSError as error:
        raise PrivateRefused(str(error)) from error


def _mount_in_private(points: list[Point], root: str) -> None:
    """Bind all volumes into a finished root, and make it the root of this process."""
    for point in points:
        point.target = os.path.realpath(point.target)
    os.chdir("/proc/self/fd")  # see `bind`
    for point in sorted(points, key=lambda point: point.target.count("/")):
        _bind_volume(point, root)
    mount(None, root, None, MS_PRIVATE)
    _pivot(root)


def _mount_volumes(
    points: list[Point], message: Point | None, writable: list[str], scratch: str, hidden: str
) -> None:
    """Bind all volumes, and the termination message, to their mount points.

    `writable`: folders in which missing mount points may be created.
    """
    for point in points:
        point.target = os.path.realpath(point.target)
    points.sort(key=lambda point: point.target.count("/"))
    writable = [os.path.realpath(folder) for folder in writable]
    missing: list[Point] = []
    for point in points:
        if os.path.lexists(point.target) or any(is_below(point.target, other.target) for other in points):
            continue
        is_hidden = hidden and is_below(point.target, os.path.realpath(hidden))
        if not is_hidden and any(is_below(point.target, folder) for folder in writable):
            _make_point(point.target, point.is_folder)
        else:
            missing.append(point)
    root = ""
    if missing:
        root = scratch
        if message is not None:
            points.append(message)
            if not os.path.lexists(message.target):
                missing.append(message)
        _build_root(root, missing)
    os.chdir("/proc/self/fd")  # see `bind`
    for point in points:
        _bind_volume(point, root)
    if not root and message is not None:
        _mount_message(message, scratch)
    if root:
        mount(None, root, None, MS_PRIVATE)
        _pivot(root)
        mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _mount_message(point: Point, scratch: str) -> None:
    """Bind the file of the termination message; a missing mount point is made in a copy of /dev from binds.

    The container also runs without it.
    """
    folder = os.path.dirname(point.target)
    try:
        if not os.path.lexists(point.target):
            mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m,nr_inodes=65536")
            os.mkdir(scratch + folder)
            _fill_level(scratch, folder, [])
            _make_point(scratch + point.target, folder=False)
            mount(scratch + folder, folder, None, MS_BIND | MS_REC)
            mount("none", folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
            libc_of().umount2(os.fsencode(scratch), MNT_DETACH)
        os.chdir("/proc/self/fd")  # see `bind`
        bind(point.fd, point.target, point.volume)
    except OSError as error:
        complain("the termination message cannot be mounted:", error)


def _make_point(path: str, folder: bool) -> None:
    if folder:
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _bind_volume(point: Point, root: str) -> None:
    target = root + point.target
    if not os.path.lexists(target):  # inside another volume
        _make_point(target, point.is_folder)
    bind(point.fd, target, host_path(point.volume, point.below))
    if point.read_only:
        # of a place in another volume, the pod may change the path meanwhile
        top = os.open(target, os.O_PATH | os.O_CLOEXEC)
        if not os.path.samestat(os.fstat(top), os.fstat(point.fd)):
            raise MountFailed(f'the mount point "{point.target}" was replaced while its volume was mounted')
        flags = kept_flags(os.fstatvfs(top).f_flag)
        mount("none", str(top), None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def _build_root(root: str, missing: list[Point]) -> None:
    """Fill a tmpfs at `root` with binds of everything in /, and with folders for the missing mount points."""
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m,nr_inodes=65536")
    mount(None, root, None, MS_UNBINDABLE)  # so that binding the folder it lies in does not bind it too
    _fill_level(root, "/", [point.target for point in missing])
    for point in missing:
        _make_point(root + point.target, point.is_folder)


def _fill_level(root: str, level: str, missing: list[str]) -> None:
    prefix = level if level == "/" else level + "/"
    for name in os.listdir(level):
        path = prefix + name
        new = root + path
        if os.path.islink(path):
            os.symlink(os.readlink(path), new)
        elif os.path.isdir(path):
            os.mkdir(new)
            if any(is_below(point, path) for point in missing):
                _fill_level(root, path, missing)
            else:
                mount(path, new, None, MS_BIND | MS_REC)
        else:
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o644))
            mount(path, new, None, MS_BIND | MS_REC)


def _pivot(root: str) -> None:
    libc = libc_of()
    os.chdir(root)
    number = PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(errno.EPERM, f"pivot_root is not known on {os.uname().machine}")
    if libc.syscall(number, b".", b".") != 0:
        raise os_error("pivot_root")
    if libc.umount2(b".", MNT_DETACH) != 0:
        raise os_error("umount2")
    os.chdir("/")
