"""Disk space that is reserved for deletes, updates and stops, so that they succeed on a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

RESERVE_BYTES = 32 << 20  # some thousands of writes: an object has a few KiB, at most 1.5 MiB
SLICE_BYTES = 2 << 20
NAME = "reserve"  # the file in the data folder


class Reserve:
    """A file whose size is the reserved space. Several processes may use the same file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def take(self) -> bool:
        """Release a slice of the space. Return False if all of it has been released."""
        try:
            size = self._path.stat().st_size
            os.truncate(self._path, max(0, size - SLICE_BYTES))
        except OSError:
            return False
        return size > 0

    def is_in_use(self) -> bool:
        """Whether a slice was released that is not reserved again: the free space is not for new work."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_size < RESERVE_BYTES
        return False

    def fill(self) -> None:
        """Reserve the space again, if at least three times as much is free afterwards.

        On a file system or a system that cannot allocate space, nothing is reserved.
        """
        with contextlib.suppress(OSError, AttributeError):
            size = self._path.stat().st_size if self._path.exists() else 0
            free = shutil.disk_usage(self._path.parent).free
            if size < RESERVE_BYTES and free - (RESERVE_BYTES - size) >= 3 * RESERVE_BYTES:
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.posix_fallocate(fd, 0, RESERVE_BYTES)
                except OSError:
                    if size:
                        os.ftruncate(fd, size)
                    else:
                        self._path.unlink()
                    raise
                finally:
                    os.close(fd)
