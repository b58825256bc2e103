"""Files below one folder, reached without ever following a link.

Every folder on the way is opened with O_NOFOLLOW from the one above it, so a link that another process puts there,
even while a copy runs, leads nowhere: the open fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from moorage.filler.errors import FillError, UnsafePath, VolumeFailed, VolumeFull
from moorage.filler.paths import checked, shown

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOST_AND_FOUND = "lost+found"  # at the root of ext file systems, and root's only
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """An entry of a tree. `kind`: file, folder, link or other; `target`: the target of a link."""

    path: str
    kind: str
    size: int
    mode: int
    mtime_ns: int
    target: str = ""


LeavesOut = Callable[[TreeEntry], bool]


class Tree:
    """The folder `root`, which must exist or is created. Errors of the file system become FillErrors."""

    def __init__(self, root: Path, *, create: bool = False) -> None:
        self.root = root
        with failing(f"cannot open the folder {root}"):
            if create:
                root.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._fd)

    @contextlib.contextmanager
    def parent(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the parent folder of `path`; yield it with the last name. Raises UnsafePath if a part is a link."""
        *folders, name = checked(path).split("/")
        with self._opened(folders, path, create=create) as fd:
            yield fd, name

    @contextlib.contextmanager
    def folder(self, path: str, *, create: bool = False) -> Iterator[int]:
        """Open a folder; "" is the root."""
        with self._opened(checked(path).split("/") if path else [], path, create=create) as fd:
            yield fd

    @contextlib.contextmanager
    def _opened(self, folders: list[str], path: str, *, create: bool) -> Iterator[int]:
        fd = os.dup(self._fd)
        try:
            for folder in folders:
                try:
                    below = os.open(folder, _FOLDER, dir_fd=fd)
                except FileNotFoundError:
                    if not create:
                        raise
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, 0o755, dir_fd=fd)
                    below = _open_folder(folder, fd, path)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise UnsafePath(
                            f"{shown(path)}: {shown(folder)} on the path is not a folder, or is a link"
                        ) from error
                    raise
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def create(self, path: str, mode: int = 0o644) -> int:
        """A new file, open for writing; replaces a file of this name; a link is not followed.

        A folder of that name raises UnsafePath.
        """
        with failing(f"cannot write {shown(path)}"), self.parent(path, create=True) as (fd, name):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(FileNotFoundError):
                _unlink(name, fd, path)
            made = os.open(name, flags, mode, dir_fd=fd)
            os.fchmod(made, mode)
            return made

    def reopen(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        with failing(f"cannot write {shown(path)}"), self.parent(path) as (fd, name):
            return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)

    def open(self, path: str) -> int:
        """A regular file, open for reading.

        Raises FileNotFoundError; UnsafePath for a link or any other kind of file.
        """
        with failing(f"cannot read {shown(path)}", missing=True), self.parent(path) as (fd, name):
            try:
                opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise UnsafePath(f"{shown(path)} is a link") from error
                raise
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise UnsafePath(f"{shown(path)} is not a file")
        return opened

    def move(self, source: str, target: str) -> None:
        """Rename a file of this tree, in one step; replaces a file of that name."""
        with (
            failing(f"cannot write {shown(target)}"),
            self.parent(source) as (here, name),
            self.parent(target, create=True) as (there, other),
        ):
            try:
                os.rename(name, other, src_dir_fd=here, dst_dir_fd=there)
            except IsADirectoryError as error:
                raise UnsafePath(
                    f"{shown(target)} is a folder, and a file of that name is to be written"
                ) from error

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link with this target; the target is not followed."""
        with failing(f"cannot write {shown(path)}"), self.parent(path, create=True) as (fd, name):
            with contextlib.suppress(FileNotFoundError):
                _unlink(name, fd, path)
            os.symlink(target, name, dir_fd=fd)

    def make_folder(self, path: str, mode: int = 0o755) -> None:
        with failing(f"cannot make the folder {shown(path)}"), self.folder(path, create=True) as fd:
            os.fchmod(fd, mode)

    def stat(self, path: str) -> TreeEntry | None:
        """The entry at this path, links unfollowed; None if it does not exist."""
        try:
            with self.parent(path) as (fd, name):
                return _entry(path, os.stat(name, dir_fd=fd, follow_symlinks=False), fd, name)
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        """Remove a file or a link, if it exists."""
        with contextlib.suppress(FileNotFoundError), failing(f"cannot remove {shown(path)}", missing=True):
            with self.parent(path) as (fd, name):
                _unlink(name, fd, path)

    def walk(self, below: str = "", leaves_out: LeavesOut = lambda _: False) -> Iterator[TreeEntry]:
        """All entries below a folder, folders before their content, sorted by name; links unfollowed.

        `leaves_out`: whether to skip a file, or a folder with all its content.
        Raises FileNotFoundError for a missing folder, VolumeFailed for unreadable entries.
        """
        with failing(f"cannot read the folder {shown(below)}", missing=True), self.folder(below) as fd:
            names = sorted(name for name in os.listdir(fd) if below or name != LOST_AND_FOUND)
            seen = []
            for name in names:
                path = f"{below}/{name}" if below else name
                try:
                    seen.append(_entry(path, os.stat(name, dir_fd=fd, follow_symlinks=False), fd, name))
                except FileNotFoundError:
                    continue  # deleted since
        for entry in seen:
            if entry.kind in ("file", "folder") and leaves_out(entry):
                continue
            yield entry
            if entry.kind == "folder":
                try:
                    yield from self.walk(entry.path, leaves_out)
                except FileNotFoundError:
                    continue

    def sync_folders(self, below: str = "") -> None:
        """Sync a folder and all folders below it, so that their names are on the disk."""
        for entry in self.walk(below):
            if entry.kind == "folder":
                self.sync(entry.path)
        self.sync(below)

    def sync(self, path: str = "") -> None:
        with failing("cannot bring a folder to the disk"), self.folder(path) as fd:
            os.fsync(fd)

    def write_whole(self, path: str, data: bytes) -> None:
        """Write a small file atomically, even if the power fails."""
        temporary = f"{path}.new"
        fd = self.create(temporary)
        with failing(f"cannot write {shown(path)}"), os.fdopen(fd, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        self.move(temporary, path)
        self.sync(path.rpartition("/")[0])

    def read_whole(self, path: str) -> bytes | None:
        """Read a small file; None if it does not exist."""
        try:
            fd = self.open(path)
        except FileNotFoundError:
            return None
        with failing(f"cannot read {shown(path)}"), os.fdopen(fd, "rb") as file:
            return file.read()

    def clear(self, below: str) -> None:
        """Delete a folder with its contents, if it exists."""
        try:
            entries = list(self.walk(below))
        except FileNotFoundError:
            return
        with failing(f"cannot remove the folder {shown(below)}"):
            for entry in reversed(entries):
                with contextlib.suppress(FileNotFoundError), self.parent(entry.path) as (fd, name):
                    if entry.kind == "folder":
                        os.rmdir(name, dir_fd=fd)
                    else:
                        os.unlink(name, dir_fd=fd)
            with contextlib.suppress(FileNotFoundError), self.parent(below) as (fd, name):
                os.rmdir(name, dir_fd=fd)


@contextlib.contextmanager
def failing(what: str, *, missing: bool = False) -> Iterator[None]:
    """Convert errors of the file system to FillErrors; with `missing`, FileNotFoundError is not converted."""
    try:
        yield
    except FillError:
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and missing:
            raise
        message = f"{what}: {(error.strerror or str(error)).lower()}"
        if error.errno in FULL:
            raise VolumeFull(message, hint="make the volume larger") from error
        raise VolumeFailed(message) from error


def _open_folder(name: str, fd: int, path: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UnsafePath(f"{shown(path)}: {shown(name)} on the path is not a folder, or is a link") from error
        raise


def _unlink(name: str, fd: int, path: str) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except IsADirectoryError as error:
        raise UnsafePath(f"{shown(path)} is a folder, and a file of that name is to be written") from error


def _entry(path: str, seen: os.stat_result, fd: int, name: str) -> TreeEntry:
    mode = seen.st_mode
    kind, target = "other", ""
    if stat.S_ISREG(mode):
        kind = "file"
    elif stat.S_ISDIR(mode):
        kind = "folder"
    elif stat.S_ISLNK(mode):
        kind, target = "link", os.readlink(name, dir_fd=fd)
    return TreeEntry(path, kind, seen.st_size, stat.S_IMODE(mode), seen.st_mtime_ns, target)
