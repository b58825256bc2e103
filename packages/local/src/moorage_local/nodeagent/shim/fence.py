"""Hide a folder of this machine from a container (a fence)."""

from __future__ import annotations

import errno
import os

from .kernel import MS_BIND, MS_NODEV, MS_NOSUID, MS_RDONLY, MS_REMOUNT
from .landlock import enter_domain
from .mounting import bind, leave_mounts, mount
from .volumes import inside, is_below

REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP)


class FenceRefused(Exception):
    """The kernel does not let this user hide a folder from a process."""


def open_hidden(hidden: str, inode: list[int] | None) -> int:
    """Open the folder to hide, so that its content is not opened and hidden under another path.

    `inode`: its device and number, if known: a pod may have renamed a folder above it and made another
    one at its path. Raises OSError.
    """
    folder = os.open(hidden, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(folder)
    if inode and inode != [status.st_dev, status.st_ino]:
        raise OSError(errno.ESTALE, f'"{hidden}" is another folder than when the cluster was started')
    return folder


def cover(hidden: str, folder: int, kept: str = "", made: str = "") -> None:
    """Mount an empty, read-only file system over a folder, except for the folder `kept` below it if that exists.

    The folder is open as `folder`. `made`: an empty folder to create below it.

    A Landlock domain (`enter_domain`) must follow: it prevents the process from unmounting the file system, and
    from using the back door: it cannot read a process outside of the domain, where /proc/PID/root shows the real
    folder. Raises OSError.

    https://docs.kernel.org/userspace-api/landlock.html (ptrace restrictions, changes of the mount topology)
    """
    try:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        own = os.open(inside(hidden, kept), flags, dir_fd=folder) if is_below(kept, hidden) else -1
    except FileNotFoundError:
        own = -1
    mount("tmpfs", f"/proc/self/fd/{folder}", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k,nr_inodes=64")
    if made:
        os.makedirs(made, exist_ok=True)
    if own >= 0:
        os.makedirs(kept, exist_ok=True)
        os.chdir("/proc/self/fd")  # see `_bind`
        bind(own, kept, kept)
        os.close(own)
    mount("none", hidden, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def try_fence(folder: str) -> int:
    """Print how well pods can be fenced from a folder: fully, partly, or why not. Run it in a separate process.

    Exit code 1: unknown. Only a refusal by the kernel counts; a folder that cannot be opened or a resource
    that ran short may be a pod's work.
    """
    try:
        os.close(os.open(folder, os.O_PATH | os.O_DIRECTORY))
    except OSError as error:
        print(error)
        return 1
    try:
        leave_mounts()
        cover(folder, open_hidden(folder, None))
        print("fully" if enter_domain() else "partly")
    except OSError as error:
        print(error)
        is_shortage = error.errno in (errno.ENOSPC, errno.EUSERS)
        return 0 if error.errno in REFUSALS or (is_shortage and not namespaces_allowed()) else 1
    return 0


def namespaces_allowed() -> bool:
    """Whether this machine's settings allow the namespaces of a fence; True if the settings cannot be read."""
    for name in ("max_mnt_namespaces", "max_user_namespaces"):
        try:
            with open(f"/proc/sys/user/{name}", "rb") as file:
                if int(file.read()) == 0:
                    return False
        except (OSError, ValueError):
            continue
    return True
