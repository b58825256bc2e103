"""Files that commands write for users: kubeconfigs, logins, results, backups. Standard library only.

A regular file is replaced as a whole or not at all. A symbolic link remains, and its target is written. A device,
pipe or socket remains, and the content is written into it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read. Raises OSError."""
    with replacing(path, private=True) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file, which gets the name `path` at the end of the block.

    It is open for writing and reading.

    `private`: only its owner can read it. Otherwise it gets the permissions of the file that it replaces.
    `new`: raise FileExistsError if `path` exists, also if it is created meanwhile. If the block raises, the
    temporary file is deleted. A link or pipe of another user is replaced, never written into. Raises OSError.
    """
    target = _meant(path)
    if new and os.path.lexists(target):
        raise FileExistsError(f"{path} exists")
    if _is_stream(target):
        import shutil
        import tempfile

        with tempfile.TemporaryFile() as content, open(target, "wb", buffering=0) as stream:
            yield content
            content.seek(0)
            shutil.copyfileobj(content, stream)
        return
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    mode = 0o600 if private else _mode(target)
    fd = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb+") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(scratch, target)
        else:
            scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _meant(path: Path) -> Path:
    """Return the target of a link that this user or root made; links of other users count as files."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_symlink() and path.lstat().st_uid in (os.geteuid(), 0) and not _is_stream(path):
            return Path(os.path.realpath(path))
    return path


def _is_stream(path: Path) -> bool:
    """Whether a path is a device, pipe or socket, or a name of an open file, such as /dev/stdout.

    One that another user made counts as a file, because that user would read the content.
    """
    if path.absolute().is_relative_to("/dev") or path.absolute().is_relative_to("/proc"):
        return path.exists()
    try:
        about = path.stat()
    except OSError:
        return False
    return not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)) and about.st_uid in (os.geteuid(), 0)


def _mode(path: Path) -> int:
    """Return the permissions for the replacement of a file; the umask reduces those of a new file."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0o666
