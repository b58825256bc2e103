"""Files that their owner alone can read: logins, tokens, kubeconfigs. Standard library only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file so that only its owner can read it; completely or not at all.

    In a folder that others may write to, a file that they put in the way is removed, never written into.
    """
    scratch = path.parent / f".{path.name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
