"""Make single mounts, and leave the mount tree of this machine."""

from __future__ import annotations

import os

from .kernel import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_PRIVATE,
    MS_REC,
    MS_RELATIME,
    ST_RELATIME,
    libc_of,
    os_error,
    write_proc,
)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    import ctypes

    def raw(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    if libc_of().mount(raw(source), raw(target), raw(kind), ctypes.c_ulong(flags), raw(data)) != 0:
        raise os_error(f'mounting "{source or kind or "none"}" to "{target}"')


def bind(fd: int, target: str, shown: str) -> None:
    """Bind an open file or folder, with all mounts below it; `shown` names it in errors.

    The current folder must be /proc/self/fd: it exists even when a volume lies over /proc.
    """
    try:
        mount(str(fd), target, None, MS_BIND | MS_REC)
    except OSError as error:
        raise OSError(error.errno, f'mounting "{shown}" to "{target}": {os.strerror(error.errno or 0)}') from error


def leave_mounts() -> None:
    """Move this process to its own mount namespace, in a user namespace if needed. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    libc = libc_of()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
            raise os_error("unshare")
        write_proc("setgroups", "deny")
        write_proc("uid_map", f"{user} {user} 1")
        write_proc("gid_map", f"{group} {group} 1")
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def kept_flags(kept: int) -> int:
    """Convert the flags of statvfs to those of a remount: flags that a user namespace may not remove."""
    return kept & (2 | 4 | 8 | 1024 | 2048) | (MS_RELATIME if kept & ST_RELATIME else 0)
