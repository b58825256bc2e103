"""The shim's interface to the kernel: numbers from its headers, and calls that Python does not have."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# <sys/prctl.h>, <linux/sched.h>, <sys/mount.h>
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 1, 32, 4096, 16384
MS_NOSUID, MS_NODEV = 2, 4
MS_UNBINDABLE, MS_PRIVATE = 1 << 17, 1 << 18
MS_RELATIME, ST_RELATIME = 1 << 21, 4096  # the one flag whose statvfs bit is not its mount bit
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}


def prctl(option: int, value: int) -> None:
    libc = libc_of()
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise os_error(f"prctl {option}")


_LIBC: list[Any] = []


def libc_of() -> Any:
    if not _LIBC:
        import ctypes

        _LIBC.append(ctypes.CDLL(None, use_errno=True))
    return _LIBC[0]


def os_error(what: str) -> OSError:
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def write_proc(name: str, text: str) -> None:
    fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def import_no_more() -> None:
    """Make every later import fail: a pod's mounts may replace the files of modules.

    An import there would run the pod's code before the fence is entered.
    """
    for finders in (sys.meta_path, sys.path_hooks, sys.path):
        finders.clear()
    sys.path_importer_cache.clear()


def drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass
