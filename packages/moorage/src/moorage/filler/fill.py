"""Fill a folder once with the files of a source, so that a kill at any moment costs only the files under way.

On the volume:

    data/                    the dataset; it appears whole, by one rename
    .moorage/ready.json      written last: the content of `data` and its checksum
    .moorage/manifest.jsonl  each file: path, size, sha256, and its version at the source
    .moorage/begun.json      the fill in progress
    .moorage/listing.jsonl   the listing of the source when the fill began
    .moorage/journal.jsonl   finished files
    .moorage/parts/          files under way
    .moorage/filling/        files that are done, at their places
    .moorage/lock            held by the one filler at work

A file is written under another name, brought to the disk, renamed, then noted. The source is listed again at
the end: a file of another version, an added or a deleted one, ends the fill instead of being mixed in. Before
the data gets its place every file is read back and hashed.

The length has a reason: these are the steps of one state machine, and each relies on the files that the last
wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.filler.archive import is_archive, unpack
from moorage.filler.errors import (
    BadArchive,
    Corrupt,
    FillError,
    SourceChanged,
    SourceEmpty,
    SourceFailed,
    TooLarge,
    UnsafePath,
    VolumeFailed,
)
from moorage.filler.paths import conflict_of, shown
from moorage.filler.progress import Progress
from moorage.filler.sources import CHUNK, Entry, Source
from moorage.filler.tree import Tree, failing

STATE, DATA = ".moorage", "data"
READY, MANIFEST = f"{STATE}/ready.json", f"{STATE}/manifest.jsonl"
BEGUN, LISTING, JOURNAL = f"{STATE}/begun.json", f"{STATE}/listing.jsonl", f"{STATE}/journal.jsonl"
LOCK = f"{STATE}/lock"
PARTS, FILLING = f"{STATE}/parts", f"{STATE}/filling"

WORKERS = 16  # files under way at once
MAX_FILES = 1_000_000
TRIES = 6  # of one file, each twice as long after the last
RETRY_SECONDS = 0.5  # before the second try
FLUSH_SECONDS = 0.2  # interval of writes of the journal to the disk
SMALL = 8 * 1024 * 1024  # a file up to this size is written in one go
BACK = 1024 * 1024  # of an unfinished file, the last bytes before a crash are not trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The data to fill, with its limits. Another `revision` is another fill: an older one's state is cleared."""

    revision: str
    unpack: bool = False
    most_bytes: int | None = None
    most_files: int = MAX_FILES
    workers: int = WORKERS


@dataclass(frozen=True, slots=True)
class Done:
    """A completed file of the fill."""

    path: str
    size: int
    sha256: str
    version: str


class Journal:
    """The journal of completed files, written to the disk with a short delay. An incomplete line is ignored."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._waiting: list[Done] = []
        self._wake = asyncio.Event()
        self._end = asyncio.Event()

    def read(self) -> dict[str, Done]:
        done: dict[str, Done] = {}
        for line in read_lines(self._tree.read_whole(JOURNAL) or b""):
            with contextlib.suppress(KeyError, TypeError):
                done[line["path"]] = Done(
                    line["path"], int(line["size"]), str(line["sha256"]), str(line["version"])
                )
        return done

    def begin(self, known: Iterable[Done]) -> None:
        """Write the entries that are still valid to a new file."""
        self._tree.write_whole(JOURNAL, b"".join(map(_line, known)))

    def add(self, done: Done) -> None:
        self._waiting.append(done)
        self._wake.set()

    async def run(self) -> None:
        """Write added entries, until `close`."""
        fd = await asyncio.to_thread(self._tree.reopen, JOURNAL)
        try:
            os.lseek(fd, 0, os.SEEK_END)
            while True:
                await self._wake.wait()
                self._wake.clear()
                batch, self._waiting = self._waiting, []
                if batch:
                    await asyncio.to_thread(_append, fd, b"".join(map(_line, batch)))
                if self._end.is_set() and not self._waiting:
                    return
                if not self._end.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FLUSH_SECONDS):
                            await self._end.wait()
        finally:
            os.close(fd)

    def close(self) -> None:
        self._end.set()
        self._wake.set()


async def fill(
    source: Source,
    root: Path,
    order: Order,
    progress: Progress,
    *,
    retry_seconds: float = RETRY_SECONDS,
    open_tree: Callable[[Path], Tree] = Tree,
) -> dict[str, Any]:
    """Fill; return the files, bytes, sha256 over all, and the digest of the source's versions.

    Safe to kill and to start again at any moment; a fill that is done only reports its result. Raises FillError.
    `retry_seconds`: before the second try of a file; doubled before each later one.
    """
    tree = await asyncio.to_thread(open_tree, root)
    try:
        with _alone(tree):
            return await _Fill(source, tree, order, progress, retry_seconds).run()
    finally:
        tree.close()
        await source.close()


@contextlib.contextmanager
def _alone(tree: Tree) -> Iterator[None]:
    """One filler at a time: a replaced one on an unreachable node may still write.

    Raises VolumeFailed while another is at work. The lock ends with its process, in every case.
    """
    tree.make_folder(STATE)
    if tree.stat(LOCK) is None:
        os.close(tree.create(LOCK))
    fd = tree.reopen(LOCK)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise VolumeFailed("another filler is at work on the volume") from error
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
                raise VolumeFailed(f"cannot lock the volume: {error.strerror}") from error
        yield
    finally:
        os.close(fd)


class _Fill:
    def __init__(self, source: Source, tree: Tree, order: Order, progress: Progress, retry_seconds: float) -> None:
        self._source, self._tree, self._order, self._progress = source, tree, order, progress
        self._retry_seconds = retry_seconds

    async def run(self) -> dict[str, Any]:
        ready = await asyncio.to_thread(self._ready)
        if ready is not None:
            return ready
        if await asyncio.to_thread(self._is_moved):
            return await asyncio.to_thread(self._commit)
        listing = await self._list()
        journal = Journal(self._tree)
        done = await asyncio.to_thread(self._still_good, journal, listing)
        await self._fetch(journal, listing, done)
        if self._order.unpack:
            files = await asyncio.to_thread(self._unpack, listing[0])
        else:
            files = await self._verify(listing, done)
        await self._look_again(listing)
        await asyncio.to_thread(self._note, files)
        return await asyncio.to_thread(self._commit)

    # --- existing files

    def _ready(self) -> dict[str, Any] | None:
        """The stored result of a completed fill; None if there is none.

        Raises VolumeFailed for another dataset's.
        """
        for folder in (STATE, PARTS):
            self._tree.make_folder(folder)
        text = self._tree.read_whole(READY)
        if text is not None:
            ready: dict[str, Any] = json.loads(text)
            if ready.get("revision") != self._order.revision:
                raise VolumeFailed(
                    "the volume holds another dataset already",
                    hint="a filled dataset cannot change: create another dataset",
                )
            return ready
        return None

    def _is_moved(self) -> bool:
        """Whether an earlier process was killed after it moved the data into place, but before it recorded
        the result.
        """
        begun = _json(self._tree.read_whole(BEGUN))
        return (
            begun.get("revision") == self._order.revision
            and self._tree.stat(DATA) is not None
            and self._tree.stat(FILLING) is None
            and self._tree.stat(MANIFEST) is not None
        )

    async def _list(self) -> list[Entry]:
        """The listing of the source when the fill began. The first process asks for it, and stores the answer."""
        begun = _json(await asyncio.to_thread(self._tree.read_whole, BEGUN))
        if begun.get("revision") == self._order.revision:
            kept = await asyncio.to_thread(self._tree.read_whole, LISTING)
            if kept is not None:
                return [
                    Entry(line["path"], line["size"], line["version"], line["where"]) for line in read_lines(kept)
                ]
        self._progress.begin("listing")
        entries = await self._source.entries(most=self._order.most_files)
        _judge(entries, self._order)

        def keep() -> None:
            for folder in (FILLING, PARTS, DATA):
                self._tree.clear(folder)
            for path in (JOURNAL, MANIFEST, LISTING):
                self._tree.remove(path)
            self._tree.make_folder(PARTS)
            self._tree.write_whole(LISTING, b"".join(map(_entry_line, entries)))
            self._tree.write_whole(BEGUN, json.dumps({"revision": self._order.revision}).encode())

        await asyncio.to_thread(keep)
        return entries

    def _still_good(self, journal: Journal, listing: list[Entry]) -> dict[str, Done]:
        """Completed files whose version is still the listed one; all others are removed from the journal."""
        known = journal.read()
        self._tree.make_folder(FILLING)
        done = {}
        for entry in listing:
            recorded = known.get(entry.path)
            if recorded is None or recorded.version != entry.version:
                continue
            there = self._tree.stat(self._place(entry))
            if there is not None and there.kind == "file" and there.size == recorded.size:
                done[entry.path] = recorded
        journal.begin(done.values())
        return done

    def _place(self, entry: Entry) -> str:
        return f"{PARTS}/archive" if self._order.unpack else f"{FILLING}/{entry.path}"

    # --- fetching

    async def _fetch(self, journal: Journal, listing: list[Entry], done: dict[str, Done]) -> None:
        sizes = [entry.size for entry in listing]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        self._progress.begin("filling", files=len(listing), size=total)
        self._progress.add(files=len(done), size=sum(file.size for file in done.values()))
        waiting = iter([entry for entry in listing if entry.path not in done])
        self._room = None if self._order.most_bytes is None else self._order.most_bytes - self._progress.bytes

        async def work() -> None:
            for entry in waiting:
                file = await self._fetch_one(entry)
                done[entry.path] = file
                journal.add(file)

        writer = asyncio.create_task(journal.run())
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._order.workers):
                    tasks.create_task(work())
        except ExceptionGroup as failures:
            raise _first(failures) from failures
        finally:
            journal.close()
            await writer
        self._progress.report(now=True)

    async def _fetch_one(self, entry: Entry) -> Done:
        part = f"{PARTS}/{hashlib.sha256(os.fsencode(entry.path)).hexdigest()[:32]}"
        for left in reversed(range(TRIES)):
            try:
                size, digest = await self._write_part(entry, part)
                await asyncio.to_thread(self._tree.move, part, self._place(entry))
                self._progress.add(files=1)
                return Done(entry.path, size, digest, entry.version)
            except SourceFailed:
                if not left:
                    raise
                await asyncio.sleep(self._retry_seconds * 2.0 ** (TRIES - 1 - left))
        raise AssertionError("unreachable")

    async def _write_part(self, entry: Entry, part: str) -> tuple[int, str]:
        """Download a file completely under its temporary name and sync it; return its size and SHA-256."""
        if entry.size is not None and entry.size <= SMALL:
            data = bytearray()
            async for chunk in self._source.read(entry):
                data += chunk
                if len(data) > entry.size:
                    raise SourceChanged(f"{shown(entry.path)} has become longer at the source")
            if len(data) < entry.size:
                raise SourceFailed(f"{shown(entry.path)}: {entry.size:,} bytes expected, {len(data):,} received")
            self._take_room(len(data))
            digest = await asyncio.to_thread(self._write_small, part, bytes(data))
            self._progress.add(size=len(data))
            return len(data), digest
        fd, size, running = await asyncio.to_thread(self._open_part, entry, part)
        if size:
            self._progress.add(size=size)
        try:
            if entry.size is None or size < entry.size:
                async for chunk in self._source.read(entry, size):
                    self._take_room(len(chunk))
                    await asyncio.to_thread(_write_and_hash, fd, chunk, running)
                    size += len(chunk)
                    self._progress.add(size=len(chunk))
                    if entry.size is not None and size > entry.size:
                        raise SourceChanged(f"{shown(entry.path)} has become longer at the source")
            with failing(f"cannot write {shown(entry.path)}"):
                os.fchmod(fd, 0o444)
                await asyncio.to_thread(os.fsync, fd)
        except BaseException:
            self._progress.add(size=-size)
            raise
        finally:
            os.close(fd)
        if entry.size is not None and size < entry.size:
            self._progress.add(size=-size)
            raise SourceFailed(f"{shown(entry.path)}: {entry.size:,} bytes expected, {size:,} received")
        return size, running.hexdigest()

    def _write_small(self, part: str, data: bytes) -> str:
        fd = self._tree.create(part, 0o444)
        running = hashlib.sha256()
        try:
            _write_and_hash(fd, data, running)
            with failing("cannot write"):
                os.fsync(fd)
        finally:
            os.close(fd)
        return running.hexdigest()

    def _open_part(self, entry: Entry, part: str) -> tuple[int, int, Any]:
        """The valid part of an earlier process, or a new one: descriptor, bytes, hash.

        The version of a part is stored next to it. A source without sizes or versions starts from the beginning.
        """
        running = hashlib.sha256()
        note = f"{part}.of"
        of = _json(self._tree.read_whole(note))
        there = self._tree.stat(part)
        other = there is None or not there.mode & 0o200 or of != {"version": entry.version}
        if entry.size is None or not entry.version or there is None or other:
            fd = self._tree.create(part, 0o644)
            self._tree.write_whole(note, json.dumps({"version": entry.version}).encode())
            return fd, 0, running
        fd = self._tree.reopen(part)
        keep = max(0, min(there.size, entry.size) - BACK)
        size = 0
        with failing("cannot go on with a file under way"):
            while size < keep:
                chunk = os.read(fd, min(CHUNK, keep - size))
                if not chunk:
                    break
                running.update(chunk)
                size += len(chunk)
            os.ftruncate(fd, size)
            os.lseek(fd, size, os.SEEK_SET)
        return fd, size, running

    def _take_room(self, size: int) -> None:
        if self._room is None:
            return
        self._room -= size
        if self._room < 0:
            raise _too_large(self._order, None)

    # --- the end

    async def _verify(self, listing: list[Entry], done: dict[str, Done]) -> list[Done]:
        """Read every file back; fetch changed ones again, once."""
        bad = await self._read_back(listing, done)
        if bad:
            for entry in bad:
                del done[entry.path]
            again = Journal(self._tree)
            await asyncio.to_thread(again.begin, done.values())
            await self._fetch(again, listing, done)
            if bad := await self._read_back(bad, done):
                names = ", ".join(shown(entry.path) for entry in bad[:3])
                raise Corrupt(f"{len(bad)} files are not on the volume as they were written, such as {names}")
        return [done[entry.path] for entry in listing]

    async def _read_back(self, listing: list[Entry], done: Mapping[str, Done]) -> list[Entry]:
        total = sum(done[entry.path].size for entry in listing)
        self._progress.begin("verifying", files=len(listing), size=total)
        bad: list[Entry] = []
        waiting = iter(listing)

        async def work() -> None:
            for entry in waiting:
                expected = done[entry.path]
                actual = await asyncio.to_thread(self._hash, f"{FILLING}/{entry.path}")
                if actual != (expected.size, expected.sha256):
                    bad.append(entry)
                self._progress.add(files=1, size=expected.size)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(4, self._order.workers)):
                    tasks.create_task(work())
        except ExceptionGroup as failures:
            raise _first(failures) from failures
        return bad

    def _hash(self, path: str) -> tuple[int, str]:
        try:
            fd = self._tree.open(path)
        except FileNotFoundError:
            return -1, ""
        return hash_file(fd)

    def _unpack(self, entry: Entry) -> list[Done]:
        """Unpack the archive; return the files that replace it."""
        self._tree.clear(FILLING)
        self._tree.make_folder(FILLING)
        fd = self._tree.open(f"{PARTS}/archive")
        with os.fdopen(fd, "rb") as archive:
            self._progress.begin("unpacking", size=self._order.most_bytes)
            files = []
            for path, size, digest in unpack(
                archive,
                self._tree,
                FILLING,
                most_bytes=self._order.most_bytes,
                most_files=self._order.most_files,
                on_bytes=lambda size: self._progress.add(size=size),
            ):
                self._progress.add(files=1)
                files.append(Done(path, size, digest, ""))
        if not files:
            raise SourceEmpty(f"the archive {shown(entry.path)} has no file in it")
        files.sort(key=lambda file: file.path)
        self._progress.begin("verifying", files=len(files), size=sum(file.size for file in files))
        for file in files:
            if self._hash(f"{FILLING}/{file.path}") != (file.size, file.sha256):
                raise Corrupt(f"{shown(file.path)} is not on the volume as it was written")
            self._progress.add(files=1, size=file.size)
        return files

    async def _look_again(self, listing: list[Entry]) -> None:
        """Check that the source has not changed: a dataset must not mix two states of it."""
        now = {entry.path: entry for entry in await self._source.entries(most=self._order.most_files)}
        before = {entry.path: entry for entry in listing}
        changed = [path for path, entry in before.items() if path in now and _differs(entry, now[path])]
        gone = [path for path in before if path not in now]
        come = [path for path in now if path not in before]
        if changed or gone or come:
            words = [
                f"{len(paths):,} {word}"
                for word, paths in (("changed", changed), ("gone", gone), ("new", come))
                if paths
            ]
            example = shown(min((*changed, *gone, *come)))
            raise SourceChanged(
                f"the source changed while it was read: {', '.join(words)}, such as {example}",
                hint="start again: moor dataset refill",
            )

    def _note(self, files: list[Done]) -> None:
        self._tree.sync_folders(FILLING)
        self._tree.write_whole(MANIFEST, b"".join(map(_line, files)))

    def _commit(self) -> dict[str, Any]:
        """Move the data to its place, then write its note.

        An earlier process may have done either before it was killed.
        """
        files = list(read_lines(self._tree.read_whole(MANIFEST) or b""))
        listing = list(read_lines(self._tree.read_whole(LISTING) or b""))
        if self._tree.stat(FILLING) is not None:
            self._tree.clear(DATA)
            self._tree.move(FILLING, DATA)
        self._tree.sync()
        self._tree.sync(STATE)
        ready = {
            "phase": "ready",
            "revision": self._order.revision,
            "files": len(files),
            "bytes": sum(int(file["size"]) for file in files),
            "sha256": checksum((file["path"], file["sha256"]) for file in files),
            "versions": checksum((entry["path"], str(entry["version"])) for entry in listing),
        }
        self._tree.write_whole(READY, json.dumps(ready).encode())
        self._tree.clear(PARTS)
        for path in (JOURNAL, LISTING, BEGUN):
            self._tree.remove(path)
        return ready


def checksum(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 over "digest  path" lines in the order of paths' bytes.

    The output of `sha256sum`, sorted by name.
    """
    total = hashlib.sha256()
    for path, digest in sorted(pairs, key=lambda pair: os.fsencode(pair[0])):
        total.update(digest.encode() + b"  " + os.fsencode(path) + b"\n")
    return total.hexdigest()


def hash_file(fd: int) -> tuple[int, str]:
    """The size and SHA-256 of an open file; closes the file."""
    with failing("cannot read a file back"), os.fdopen(fd, "rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def read_lines(text: bytes) -> Iterator[dict[str, Any]]:
    """Parse lines of JSON objects. An incomplete last line is skipped."""
    for line in text.split(b"\n"):
        if line:
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if isinstance(document, dict):
                    yield document


def _judge(entries: list[Entry], order: Order) -> None:
    """Check all that is known before the first download."""
    if not entries:
        raise SourceEmpty("the source has no file")
    if conflict := conflict_of([entry.path for entry in entries]):
        raise UnsafePath(f"{shown(conflict[0])} is both a file and a folder, of {shown(conflict[1])}")
    total = sum(entry.size or 0 for entry in entries)
    if order.most_bytes is not None and total > order.most_bytes:
        raise _too_large(order, total)
    if order.unpack and (len(entries) != 1 or not is_archive(entries[0].path)):
        raise BadArchive("--unpack takes one .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz or .zip file")


def _too_large(order: Order, total: int | None) -> TooLarge:
    has = "more than that" if total is None else f"{total:,} bytes"
    return TooLarge(
        f"the source does not fit on the volume: it has {has}, the volume has room for {order.most_bytes:,} bytes",
        hint="make it larger with --size",
    )


def _differs(entry: Entry, other: Entry) -> bool:
    return (entry.version, entry.size) != (other.version, other.size)


def _append(fd: int, data: bytes) -> None:
    with failing("cannot write the journal"):
        _write(fd, data)
        os.fsync(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_and_hash(fd: int, data: bytes, running: Any) -> None:
    with failing("cannot write"):
        _write(fd, data)
    running.update(data)


def _line(done: Done) -> bytes:
    fields = {"path": done.path, "size": done.size, "sha256": done.sha256, "version": done.version}
    return json.dumps(fields).encode() + b"\n"


def _entry_line(entry: Entry) -> bytes:
    fields = {"path": entry.path, "size": entry.size, "version": entry.version, "where": entry.where}
    return json.dumps(fields).encode() + b"\n"


def _json(text: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(text or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _first(failures: BaseExceptionGroup[Any]) -> Exception:
    """Of the errors that the workers raised together, the most useful: final errors first."""
    flat: list[Exception] = []

    def collect(group: BaseExceptionGroup[Any]) -> None:
        for exception in group.exceptions:
            if isinstance(exception, BaseExceptionGroup):
                collect(exception)
            elif isinstance(exception, Exception):
                flat.append(exception)

    collect(failures)
    return min(flat, key=lambda failure: not (isinstance(failure, FillError) and failure.final))
