"""Backups of a volume: one tar each, with a note that is written last; a tar without a note is no backup.

    TARGET/NAME.tar     files, folders and links as they are on the volume
    TARGET/NAME.json    its content: files, bytes, sha256 of the tar

A target is a folder (`folder:/path`, of a mounted volume) or a prefix of an object store. An interrupted
backup leaves at most a tar without a note, which the next one removes. A restore unpacks to a separate folder
of the volume, compares the checksum, and only then moves the files to their places.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from moorage.filler.errors import BackupNotFound, BadSource, Corrupt, NotEmpty, UnsafePath
from moorage.filler.paths import checked, shown
from moorage.filler.progress import Progress
from moorage.filler.sources import in_our_words, open_store
from moorage.filler.tree import Tree, TreeEntry, failing

CHUNK = 4 * 1024 * 1024
ASIDE = ".moorage-restore"  # on the volume, while a backup is unpacked
PARTIAL = ".partial"
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]{0,200}")


class Target(Protocol):
    """A store of backups. Raises FillError subclasses."""

    def writing(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A new file. It gets its name only after the block ends without an error."""
        ...

    def reading(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]: ...

    def names(self) -> list[str]: ...

    def remove(self, name: str) -> None: ...


def open_target(url: str) -> Target:
    """Open a target: folder:/path, s3://bucket/prefix or gs://bucket/prefix. Raises BadSource."""
    scheme = urlsplit(url).scheme
    if scheme == "folder":
        return FolderTarget(Path(url.removeprefix("folder:")))
    if scheme in ("s3", "gs"):
        return ObjectTarget(open_store(scheme), url)
    raise BadSource(f"{shown(url)} cannot hold backups: use s3://…, gs://… or a volume")


class FolderTarget:
    def __init__(self, folder: Path) -> None:
        self._tree = Tree(folder, create=True)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        passing = f".{name}{PARTIAL}"
        with failing(f"cannot write {shown(name)}"), os.fdopen(self._tree.create(passing), "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        self._tree.move(passing, name)
        self._tree.sync()

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        try:
            fd = self._tree.open(name)
        except FileNotFoundError as error:
            raise BackupNotFound(f"backup {shown(name)} not found") from error
        with os.fdopen(fd, "rb") as file:
            yield file

    def names(self) -> list[str]:
        return [entry.path for entry in self._tree.walk() if entry.kind == "file" and "/" not in entry.path]

    def remove(self, name: str) -> None:
        self._tree.remove(name)


class ObjectTarget:
    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        self._url = url.rstrip("/")
        self._root = url.split("://", 1)[1].rstrip("/")
        if not self._root:
            raise BadSource(f"{shown(url)} has no bucket")
        self._run = in_our_words(url)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        out = self._run(lambda: self._store.open(f"{self._root}/{name}", "wb", block_size=32 << 20))
        try:
            yield out
        except BaseException:
            with contextlib.suppress(Exception):
                out.discard()  # an upload in parts that is not completed is no object
            out.closed = True
            raise
        self._run(out.close)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        path = f"{self._root}/{name}"
        if not self._run(lambda: self._store.exists(path)):
            raise BackupNotFound(f"backup {shown(name)} not found at {shown(self._url)}")
        with self._run(lambda: self._store.open(path, "rb", block_size=8 << 20)) as file:
            yield file

    def names(self) -> list[str]:
        try:
            paths = self._store.find(self._root, maxdepth=1)
        except FileNotFoundError:
            return []
        return [posixpath.basename(path) for path in paths]

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._store.rm_file(f"{self._root}/{name}")


class _Hashed:
    """A stream that counts and hashes its bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.running, self.size = hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.running.update(data)
        self.size += len(data)
        return self._file.write(data)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.running.update(data)
        self.size += len(data)
        return data


def backup(
    root: Path,
    target: Target,
    name: str,
    progress: Progress,
    *,
    series: str,
    keep: int,
    open_tree: Callable[[Path], Tree] = Tree,
) -> dict[str, Any]:
    """Write the volume at `root` as the backup NAME; keep the newest `keep` whose names begin with "SERIES-".

    Safe to kill and to repeat under the same name. A file that changes while it is read is in it as it was read,
    and counted in `changed`.
    """
    checked_name(name)
    # an earlier process may have finished this backup
    known = notes_of(target, series)
    if name in known:
        return known[name] | {"phase": "ready", "kept": _tidy(target, series, keep)}
    tree = open_tree(root)
    progress.begin("backing up")
    files = changed = 0
    try:
        with target.writing(f"{name}.tar") as file:
            out = _Hashed(file)
            stream: Any = out
            with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as tar:
                for entry in tree.walk():
                    if entry.path.split("/")[0].startswith(ASIDE):
                        continue
                    whole = _add(tar, tree, entry)
                    files += entry.kind == "file"
                    changed += not whole
                    progress.add(files=int(entry.kind == "file"), size=entry.size if entry.kind == "file" else 0)
    finally:
        tree.close()
    # the note comes last: a tar without a note is not a backup
    note = {"name": name, "files": files, "bytes": out.size, "sha256": out.running.hexdigest(), "changed": changed}
    with target.writing(f"{name}.json") as file:
        file.write(json.dumps(note).encode())
    return note | {"phase": "ready", "kept": _tidy(target, series, keep)}


def _add(tar: tarfile.TarFile, tree: Tree, entry: TreeEntry) -> bool:
    """Add one entry to the archive; return False if a file changed while it was read."""
    info = tarfile.TarInfo(entry.path)
    info.mode, info.mtime = entry.mode, entry.mtime_ns // 10**9
    if entry.kind == "folder":
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
        return True
    if entry.kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
        tar.addfile(info)
        return True
    if entry.kind != "file":
        return True  # sockets and pipes have no content
    try:
        fd = tree.open(entry.path)
    except FileNotFoundError:
        return False
    with os.fdopen(fd, "rb", buffering=0) as file:
        before = os.fstat(fd)
        info.size = before.st_size
        tar.addfile(info, _Padded(file, before.st_size))  # type: ignore[arg-type]
        after = os.fstat(fd)
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


class _Padded:
    """Exactly `size` bytes of a file; zeros at the end if the file has become shorter."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        data = self._file.read(wanted)
        data += bytes(wanted - len(data))
        self._left -= wanted
        return data


def _tidy(target: Target, series: str, keep: int) -> list[str]:
    """Delete backups of the series beyond `keep` (the note first) and tars without a note.

    Return the others' names.
    """
    names = sorted(notes_of(target, series))
    for old in names[: max(0, len(names) - keep)]:
        target.remove(f"{old}.json")
    kept = set(names[max(0, len(names) - keep) :])
    for file in target.names():
        is_ours = file.removeprefix(".").startswith(f"{series}-")
        whole = file.removesuffix(PARTIAL).removeprefix(".").removesuffix(".tar").removesuffix(".json")
        if is_ours and whole not in kept and (file.endswith((".tar", PARTIAL))):
            target.remove(file)
    return sorted(kept)


def notes_of(target: Target, series: str) -> dict[str, dict[str, Any]]:
    """The notes of a series' complete backups, by name."""
    notes = {}
    for file in target.names():
        name = file.removesuffix(".json")
        if file.endswith(".json") and name.startswith(f"{series}-") and _NAME.fullmatch(name):
            with contextlib.suppress(ValueError), target.reading(file) as note:
                document = json.loads(note.read())
                if isinstance(document, dict):
                    notes[name] = document
    return notes


def restore(
    root: Path,
    target: Target,
    name: str,
    progress: Progress,
    *,
    force: bool = False,
    open_tree: Callable[[Path], Tree] = Tree,
) -> dict[str, Any]:
    """Restore a backup to the volume at `root`, which must be empty.

    With `force`, its files replace existing ones.

    Files are moved to their places only after all are unpacked and the checksum is right. Safe to kill and to
    repeat.
    """
    checked_name(name)
    with target.reading(f"{name}.json") as file:
        try:
            note = json.loads(file.read())
            wanted = str(note["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"the note of the backup {name} cannot be read") from error
    # files of other programs must not be lost without `force`
    tree = open_tree(root)
    try:
        begun = tree.stat(f"{ASIDE}.done") is not None  # the present files may be half of this restore
        there = [entry.path for entry in tree.walk() if "/" not in entry.path and not entry.path.startswith(ASIDE)]
        if there and not force and not begun:
            raise NotEmpty(
                f"the volume is not empty: it has {shown(there[0])}", hint="restore to a new one, or use --force"
            )
        # the mark is written once all files are unpacked: a killed restore continues with the moves
        if not begun:
            tree.clear(ASIDE)
            tree.make_folder(ASIDE)
            _unpack(tree, target, name, wanted, progress)
            tree.sync_folders(ASIDE)
            tree.write_whole(f"{ASIDE}.done", name.encode())
        _put_in_place(tree)
        return {"phase": "ready", "name": name, "files": int(note.get("files") or 0), "bytes": int(note["bytes"])}
    finally:
        tree.close()


def _unpack(tree: Tree, target: Target, name: str, wanted: str, progress: Progress) -> None:
    progress.begin("restoring")
    modes: list[tuple[str, int]] = []
    with target.reading(f"{name}.tar") as file:
        through = _Hashed(file)
        try:
            stream: Any = through
            with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
                for member in tar:
                    path = f"{ASIDE}/{checked(member.name)}"
                    if member.isdir():
                        tree.make_folder(path)
                        modes.append((path, member.mode))
                    elif member.issym():
                        tree.link(path, member.linkname)
                    elif member.isreg():
                        _write(tar, tree, member, path)
                        progress.add(files=1, size=member.size)
                    else:
                        raise UnsafePath(f"{shown(member.name)} in the backup is neither file, folder nor link")
                    tar.members.clear()  # type: ignore[attr-defined]
        except tarfile.TarError as error:
            raise Corrupt(f"the backup {name} cannot be read: {error}") from error
        while through.read(CHUNK):
            pass  # to the end, for the checksum
    if through.running.hexdigest() != wanted:
        raise Corrupt(f"the backup {name} is damaged: its checksum differs")
    for path, mode in reversed(modes):
        tree.make_folder(path, mode & 0o777 | 0o700)


def _write(tar: tarfile.TarFile, tree: Tree, member: tarfile.TarInfo, path: str) -> None:
    content = tar.extractfile(member)
    assert content is not None
    fd = tree.create(path, member.mode & 0o777)
    with failing(f"cannot write {shown(member.name)}"), os.fdopen(fd, "wb") as out:
        while chunk := content.read(CHUNK):
            out.write(chunk)
        out.flush()
        os.utime(out.fileno(), (member.mtime, member.mtime))
        os.fsync(out.fileno())


def _put_in_place(tree: Tree) -> None:
    try:
        entries = [entry for entry in tree.walk(ASIDE) if entry.path.count("/") == 1]
    except FileNotFoundError:
        entries = []
    for entry in entries:
        name = entry.path.split("/")[1]
        there = tree.stat(name)
        if there is not None and there.kind == "folder":
            tree.clear(name)
        elif there is not None:
            tree.remove(name)
        tree.move(entry.path, name)
    tree.sync()
    tree.clear(ASIDE)
    tree.remove(f"{ASIDE}.done")


def checked_name(name: str) -> str:
    """Raises UnsafePath for an invalid name of a backup."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise UnsafePath(f"invalid name of a backup: {shown(name)}")
    return name
