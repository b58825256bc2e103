"""Copies of a data folder, made by the running control plane, to restore a damaged file.

    copies/20261122T101500Z/
        copy.json       when, by which version, how many objects; each file's size and SHA-256
        cluster.db      written from the API server's memory, so that damaged pages are not copied
        queue.db …      every other database of the folder, by `VACUUM INTO`
        VERSION config.json tokens.json pki/…

A copy is made soon after a start, every quarter of an hour, and when the cluster is stopped. It is made under
another name, read again, synced and then renamed: a folder with a copy's name is whole. When a file cannot be
copied, the copy is not made, the older ones stay and a warning is logged.

cluster.db is copied first: the objects that it refers to (a map) are in the databases copied a moment later.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from moorage_kube import __version__
from moorage_kube.clock import Clock, parse_rfc3339, rfc3339
from moorage_kube.databasefile import disk_full, find_problem, read_mark, reading, storage_errors, sync_folder
from moorage_kube.errors import StorageDamaged, StorageError, StorageFull
from moorage_kube.reserve import Reserve
from moorage_local.storage import Record, Storage
from moorage_local.storage.sqlite import read_records, write_records

log = logging.getLogger(__name__)

COPIES = "copies"
CLUSTER = "cluster.db"
MANIFEST = "copy.json"
NOT_COPIED = {  # why there is no copy of it; without it a cluster starts
    "outputs.db": "the output of maps is not copied",  # large, and best effort
    **dict.fromkeys(
        (
            "databases.manifest",
            "kubeconfig",
            "scheduler.json",
            "prometheus.yml",
            "prometheus-rules.yml",
            "log",
            "copies",
        ),
        "Moorage creates it again",
    ),
    "images.json": "write the rules of images into it again",
}
SMALL_FILES = (
    "VERSION",
    "config.json",
    "tokens.json",
    "pki/ca.crt",
    "pki/ca.key",
    "pki/server.crt",
    "pki/server.key",
    "pki/expiry.json",
    "pki/tokens.key",
)
FIRST_SECONDS = 20.0  # after the start, when it no longer slows down users
EVERY_SECONDS = 900.0  # the most that a restored copy is behind
KEEP_NEWEST = 4  # an hour of them
KEEP_DAYS = 7  # and the newest one of each of so many days
SPARE_BYTES = 256 * 2**20  # disk that a copy leaves free
_NAME = "%Y%m%dT%H%M%SZ"
_MAKING = ".making"
_TAKING = threading.Lock()  # a copy whose caller was cancelled continues in its thread while another one begins


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFile:
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy. `problem`: why the copy cannot be used."""

    path: Path
    taken: datetime
    version: str = ""
    revision: int = 0
    objects: int = 0
    files: dict[str, CopiedFile] = field(default_factory=dict)
    problem: str | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def copy_of(path: Path, names: Iterable[str], *, taken: datetime, revision: int, objects: int) -> Copy:
    """Treat a folder with these files as a copy, without sizes and checksums."""
    files = {name: CopiedFile(bytes=0, sha256="") for name in names}
    return Copy(path=path, taken=taken, revision=revision, objects=objects, files=files)


def list_copies(data: Path) -> list[Copy]:
    """All copies of a data folder, the newest first; those that cannot be read have a `problem`."""
    copies = []
    try:
        folders = [folder for folder in (data / COPIES).iterdir() if not folder.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    for folder in folders:
        with contextlib.suppress(ValueError):  # a folder of the user
            copies.append(_read_copy(folder, datetime.strptime(folder.name, _NAME).replace(tzinfo=UTC)))
    return sorted(copies, key=lambda copy: copy.taken, reverse=True)


def _read_copy(folder: Path, named: datetime) -> Copy:
    try:
        raw: Any = json.loads((folder / MANIFEST).read_bytes())
        return Copy(
            path=folder,
            taken=parse_rfc3339(raw["taken"]),
            version=str(raw["version"]),
            revision=int(raw["revision"]),
            objects=int(raw["objects"]),
            files={
                str(name): CopiedFile(bytes=int(file["bytes"]), sha256=str(file["sha256"]))
                for name, file in raw["files"].items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Copy(path=folder, taken=named, problem=f"{MANIFEST} cannot be read: {error}")


def check_copy(copy: Copy, names: Iterable[str]) -> None:
    """Raise StorageDamaged if one of these files of the copy was changed."""
    for name in names:
        expected = copy.files.get(name)
        try:
            actual = None if expected is None else _digest(copy.path / name)
        except OSError:
            actual = None
        if actual is None or actual != expected:
            raise StorageDamaged(
                f"{name} of the copy {copy.name} is damaged", hint="choose another copy: `moor restore` lists them"
            )


def newest_whole(copies: Iterable[Copy], names: Iterable[str] | None) -> Copy | None:
    """Return the first of these copies with all these files undamaged; None if there is none.

    `names` None: all files that the copy must have.
    """
    for copy in copies:
        wanted = set(copy.files if names is None else names)
        with contextlib.suppress(StorageDamaged):
            if copy.problem is None and wanted <= copy.files.keys():
                check_copy(copy, wanted)
                return copy
    return None


def to_drop(taken: Sequence[datetime], *, now: datetime) -> list[datetime]:
    """Return the copies to delete: all except the newest few, and the newest of each of the last days."""
    newest_first = sorted(taken, reverse=True)
    kept = set(newest_first[:KEEP_NEWEST])
    days: set[object] = set()
    for moment in newest_first:
        if moment.date() not in days and now - moment <= timedelta(days=KEEP_DAYS):
            days.add(moment.date())
            kept.add(moment)
    return [moment for moment in newest_first if moment not in kept]


def take_copy(
    data: Path, records: Sequence[Record], revision: int, *, now: datetime, spare_bytes: int = SPARE_BYTES
) -> Copy:
    """Make a copy and remove the expired ones. Blocks: call it off the event loop.

    Raises StorageError and OSError; nothing has changed then.
    """
    with _TAKING:
        return _take_copy(data, records, revision, now=now, spare_bytes=spare_bytes)


def _take_copy(data: Path, records: Sequence[Record], revision: int, *, now: datetime, spare_bytes: int) -> Copy:
    root = data / COPIES
    root.mkdir(mode=0o700, exist_ok=True)
    _sweep(root)
    if Reserve(data).is_in_use():
        raise disk_full("copy", data)
    sources = _databases(data)
    content_bytes = sum(len(record.value) + 200 for record in records)
    content_bytes += sum(source.stat().st_size for source in sources)
    free, needed = shutil.disk_usage(root).free, 2 * content_bytes + spare_bytes
    if free < needed:
        raise StorageFull(
            f"no copy of {data} was made: not enough free disk space; it needs {needed} bytes and {free} are free",
            hint="free some space; data written before is not lost",
        )
    making = Path(tempfile.mkdtemp(prefix=f"{_MAKING}-", dir=root))
    try:
        copy = _fill(making, data, sources, records, revision, now)
        named = now.astimezone(UTC)
        while (final := root / named.strftime(_NAME)).exists():  # one was made in this second
            named += timedelta(seconds=1)
        making.rename(final)
        sync_folder(root)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    by_time = {kept.taken: kept for kept in list_copies(data) if kept.problem is None}
    for moment in to_drop(list(by_time), now=now):
        drop(by_time[moment])
    return _read_copy(final, copy.taken)


def drop(copy: Copy) -> None:
    """Remove a copy: renamed first, so that a half-removed folder never has a copy's name."""
    going = copy.path.with_name(f"{_MAKING}-old-{copy.name}")
    with contextlib.suppress(OSError):
        copy.path.rename(going)
        shutil.rmtree(going, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove the unfinished work of an earlier process."""
    for left in root.glob(f"{_MAKING}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _databases(data: Path) -> list[Path]:
    names = {CLUSTER, *NOT_COPIED}
    return [path for path in sorted(data.glob("[!.]*.db")) if path.name not in names and path.stat().st_size]


def _fill(
    making: Path, data: Path, sources: Sequence[Path], records: Sequence[Record], revision: int, now: datetime
) -> Copy:
    identity = _identity(data / CLUSTER)
    write_records(making / CLUSTER, records, revision, identity=identity)
    if len(read_records(making / CLUSTER)) != len(records):
        raise StorageDamaged(f"a copy of {data / CLUSTER} did not read back as it was written")
    for source in sources:
        _copy_database(source, making / source.name)
    for name in SMALL_FILES:
        if (data / name).exists():
            (making / name).parent.mkdir(mode=0o700, exist_ok=True)
            _write(making / name, (data / name).read_bytes())
    for database in making.glob("*.db"):
        os.chmod(database, 0o600)
        _sync(database)
        if problem := find_problem(database, deep=True):
            raise StorageDamaged(f"a copy of {data / database.name} {problem}")
    files = {str(path.relative_to(making)): _digest(path) for path in sorted(making.rglob("*")) if path.is_file()}
    manifest = {
        "taken": rfc3339(now),
        "version": __version__,
        "revision": revision,
        "objects": len(records),
        "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in files.items()},
    }
    _write(making / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    for folder in (making / "pki", making):
        if folder.is_dir():
            sync_folder(folder)
    return Copy(path=making, taken=now, revision=revision, objects=len(records), files=files)


def _identity(database: Path) -> str | None:
    mark = read_mark(database)
    return mark.identity if mark else None


def _copy_database(source: Path, target: Path) -> None:
    with storage_errors("copy", source), reading(source, in_use=True) as db:
        db.execute("VACUUM INTO ?", (str(target),))


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _digest(path: Path) -> CopiedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return CopiedFile(bytes=file.tell(), sha256=digest.hexdigest())


async def keep_copies(data: Path, storage: Storage, *, clock: Clock) -> None:
    """Create a copy soon after the start and then every quarter of an hour, until cancelled."""
    seconds = FIRST_SECONDS
    while True:
        await clock.sleep(seconds)
        seconds = EVERY_SECONDS
        await copy_now(data, storage, clock=clock)


async def make_copy(data: Path, storage: Storage, *, clock: Clock, spare_bytes: int = 0) -> str:
    """Create a copy if the disk has space for it and `spare_bytes`; return its name.

    Raises StorageError, OSError.
    """
    page = storage.list("")  # records never change: this is one moment
    take = partial(take_copy, data, page.records, page.revision, now=clock.now(), spare_bytes=spare_bytes)
    copy = await asyncio.to_thread(take)
    log.info("copied the data folder", extra={"copy": copy.name, "bytes": copy.bytes})
    return copy.name


async def copy_now(data: Path, storage: Storage, *, clock: Clock) -> None:
    """Create a copy; log the reason if it fails."""
    try:
        await make_copy(data, storage, clock=clock, spare_bytes=SPARE_BYTES)
    except (StorageError, OSError) as error:
        message = error.message if isinstance(error, StorageError) else str(error)
        log.warning("the data folder is not copied", extra={"error": message})
