"""Archives, unpacked within limits.

Sizes in an archive's headers are not trusted: bytes are counted as they come out. Links, devices, encrypted
and doubled members are refused, and so are members that grow as only a bomb does.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from moorage.filler.errors import ArchiveBomb, BadArchive, TooLarge, TooManyFiles
from moorage.filler.paths import checked, shown
from moorage.filler.tree import Tree, failing

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
CHUNK = 1024 * 1024
BOMB_RATIO = 200  # text and tables shrink some 20-fold, the emptiest of real data some 100-fold
BOMB_BYTES = 256 * 1024 * 1024  # below this, growth is no danger

Unpacked = tuple[str, int, str]  # path, size, SHA-256


def is_archive(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def unpack(
    archive: IO[bytes],
    tree: Tree,
    below: str,
    *,
    most_bytes: int | None,
    most_files: int,
    on_bytes: Callable[[int], None] = lambda _size: None,
    bomb_bytes: int = BOMB_BYTES,
) -> Iterator[Unpacked]:
    """Write the archive's files below a folder of the tree; yields each. Raises FillError.

    `bomb_bytes`: an archive that grows to more bytes, and BOMB_RATIO-fold, is refused.
    """
    limits = _Limits(os.fstat(archive.fileno()).st_size, most_bytes, most_files, on_bytes, bomb_bytes)
    try:
        if zipfile.is_zipfile(archive):
            archive.seek(0)
            yield from _unzip(archive, tree, below, limits)
        else:
            archive.seek(0)
            yield from _untar(archive, tree, below, limits)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise BadArchive(f"the archive cannot be read: {error}") from error
    except RuntimeError as error:  # how zipfile says that a member is encrypted
        raise BadArchive(f"the archive cannot be read: {error}") from error


class _Limits:
    def __init__(
        self,
        packed: int,
        most_bytes: int | None,
        most_files: int,
        on_bytes: Callable[[int], None],
        bomb_bytes: int,
    ) -> None:
        self._packed, self._most_bytes, self._most_files, self._on_bytes = packed, most_bytes, most_files, on_bytes
        self._bomb_bytes = bomb_bytes
        self._bytes = self._members = 0
        self._seen: set[str] = set()

    def member(self, name: str) -> str:
        """The safe path of a member; folders count as members, too. Raises UnsafePath, TooManyFiles."""
        self._members += 1
        if self._members > self._most_files:
            raise TooManyFiles(f"the archive has more than {self._most_files:,} members")
        path = name.rstrip("/")
        while path.startswith("./"):
            path = path[2:]
        return checked(path) if path not in ("", ".") else ""

    def file(self, path: str) -> None:
        if path in self._seen:
            raise BadArchive(f"the archive has {shown(path)} twice")
        self._seen.add(path)

    def grown(self, size: int) -> None:
        self._bytes += size
        self._on_bytes(size)
        if self._bytes > self._bomb_bytes and self._bytes > BOMB_RATIO * max(1, self._packed):
            raise ArchiveBomb(
                f"the archive of {self._packed:,} bytes grows to more than {self._bytes:,}:"
                " this looks like a zip bomb"
            )
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            raise TooLarge(
                f"the archive does not fit on the volume, which has room for {self._most_bytes:,} bytes",
                hint="make it larger with --size",
            )


def _untar(archive: IO[bytes], tree: Tree, below: str, limits: _Limits) -> Iterator[Unpacked]:
    with tarfile.open(fileobj=archive, mode="r:*") as tar:
        for member in tar:
            path = limits.member(member.name)
            if member.isdir():
                if path:
                    tree.make_folder(f"{below}/{path}")
                continue
            if not member.isreg():
                what = "a link" if member.islnk() or member.issym() else "no file"
                raise BadArchive(
                    f"{shown(member.name)} in the archive is {what}; only files and folders are unpacked"
                )
            content = tar.extractfile(member)
            assert content is not None
            yield _write(content, tree, below, path, limits)
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile remembers every one otherwise


def _unzip(archive: IO[bytes], tree: Tree, below: str, limits: _Limits) -> Iterator[Unpacked]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            path = limits.member(member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                if path:
                    tree.make_folder(f"{below}/{path}")
                continue
            if kind not in (0, stat.S_IFREG):
                what = "a link" if kind == stat.S_IFLNK else "no file"
                raise BadArchive(
                    f"{shown(member.filename)} in the archive is {what}; only files and folders are unpacked"
                )
            with packed.open(member) as content:
                yield _write(content, tree, below, path, limits)


def _write(content: IO[bytes] | Any, tree: Tree, below: str, path: str, limits: _Limits) -> Unpacked:
    if not path:
        raise BadArchive("the archive has a file without a name")
    limits.file(path)
    running, size = hashlib.sha256(), 0
    fd = tree.create(f"{below}/{path}", 0o444)
    with failing(f"cannot write {shown(path)}"), os.fdopen(fd, "wb", buffering=0) as out:
        while chunk := content.read(CHUNK):
            limits.grown(len(chunk))
            out.write(chunk)
            running.update(chunk)
            size += len(chunk)
        os.fsync(out.fileno())
    return path, size, running.hexdigest()
