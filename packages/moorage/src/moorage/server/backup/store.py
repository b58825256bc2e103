"""Back up and restore the data of a server: a folder, or a PostgreSQL database."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from moorage.server.backup import sqlite
from moorage.server.backup.archive import DATABASES, LOGS, Manifest, check_schemas, new_manifest, unpack
from moorage.server.backup.parts import CONTENT, PARTS, Part
from moorage.server.backup.rows import Source, export
from moorage.server.databases import LOGS_FOLDER
from moorage_kube.databasefile import disk_errors
from moorage_kube.errors import Conflict, StorageError

SCRATCH = ".backup-"
POSTGRES = "postgres"


class Place(Struct, frozen=True, kw_only=True):
    """The location of a server's data. `url`: the PostgreSQL address; "" if the data is in files of `folder`."""

    folder: Path
    url: str = ""

    @property
    def dialect(self) -> str:
        return POSTGRES if self.url else sqlite.DIALECT


@contextmanager
def scratch(place: Place) -> Iterator[Path]:
    """A temporary folder on the same disk; those of killed processes are deleted first. Raises StorageFull."""
    for left in place.folder.glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError), _held(left):  # not in use
            shutil.rmtree(left, ignore_errors=True)
    with disk_errors(place.folder):
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=place.folder))
        try:
            with _held(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder inside the `with` block. Raises OSError if another process has locked it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def collect(place: Place, folder: Path, *, now: datetime) -> Manifest:
    """Write all data of a server into an empty folder, in the archive's layout. Raises StorageError, OSError."""
    target = folder / DATABASES
    if place.url:
        from moorage.server.backup.postgres import PostgresSource

        with PostgresSource(place.url) as database:
            schemas, rows = export(database, target)
    else:
        with sqlite.SqliteSource(place.folder) as files:
            schemas, rows = export(files, target)
        logs = place.folder / LOGS_FOLDER
        if logs.is_dir():
            shutil.copytree(logs, folder / LOGS, copy_function=_copy_if_there)
    return new_manifest(taken=now, dialect=place.dialect, schemas=schemas, rows=rows)


def inspect(archive: Path, folder: Path) -> Manifest:
    """Unpack and check an archive; return its manifest. Raises BadArchive."""
    manifest = unpack(archive, folder)
    known = {part.name: part.version(manifest.dialect) for part in PARTS}
    check_schemas(manifest, known, name=f"the backup {archive.name}")
    return manifest


def content_of(place: Place) -> dict[str, int]:
    """The number of rows of each CONTENT table that is not empty."""
    if place.url:
        from moorage.server.backup.postgres import PostgresSource

        with PostgresSource(place.url) as database:
            counts = _content(database)
    else:
        with sqlite.SqliteSource(place.folder) as files:
            counts = _content(files)
    return {table: count for table, count in counts.items() if count}


def _content(source: Source) -> dict[str, int]:
    return {
        table: sum(1 for _ in source.rows(part, table, ["1"]))
        for part in PARTS
        if (version := source.version(part))
        for table in part.tables(source.dialect, version)
        if table in CONTENT
    }


def refuse_content(place: Place) -> None:
    """Raise Conflict if a restore would replace existing rows."""
    counts = content_of(place)
    if counts:
        listed = ", ".join(f"{count} rows of {table}" for table, count in counts.items())
        raise Conflict(
            f"the target is not empty: it has {listed}",
            hint="back it up first; --force replaces all of it by the backup",
        )


def restore(place: Place, archive: Path, *, force: bool = False) -> Manifest:
    """Replace all data of a server by a backup. If the process is killed, either the old or the new data remains.

    Raises BadArchive, Conflict if the target is not empty (unless `force`), StorageError.
    """
    with scratch(place) as folder:
        manifest = inspect(archive, folder)
        if not force:
            refuse_content(place)
        if place.url:
            _restore_database(place, manifest, folder)
        else:
            stage_files(place.folder, manifest, folder)
            sqlite.commit(place.folder)
            finish_restore(place.folder)
        return manifest


def _restore_database(place: Place, manifest: Manifest, folder: Path) -> None:
    from moorage.server.backup import postgres

    parts = [
        (part, folder / DATABASES / part.name, version)
        for part in PARTS
        if (version := _version(part, manifest, POSTGRES))
    ]
    postgres.restore(place.url, parts)
    if (folder / LOGS).is_dir():  # the next start moves them into the database
        shutil.copytree(folder / LOGS, place.folder / LOGS_FOLDER, dirs_exist_ok=True)


def stage_files(target: Path, manifest: Manifest, folder: Path) -> Path:
    """Make the new files next to the old ones. Logs that the backup has as rows are left out."""
    staged = target / sqlite.STAGED
    (target / sqlite.JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(mode=0o700)
    for part in PARTS:
        if part.file and (version := _version(part, manifest, sqlite.DIALECT)):
            sqlite.stage(part, folder / DATABASES / part.name, version, staged / part.file)
    if (folder / LOGS).is_dir():
        shutil.copytree(folder / LOGS, staged / LOGS_FOLDER)
    return staged


def _version(part: Part, manifest: Manifest, dialect: str) -> int:
    """The schema version to create for a part; 0 if the archive does not have the part.

    If the archive has the other dialect, this is the newest version that this code knows.
    """
    version = manifest.schemas.get(part.name, 0)
    return version if manifest.dialect == dialect or not version else part.version(dialect)


def finish_restore(folder: Path) -> bool:
    """Move the files of a prepared restore into place; return whether there were any. Called when a server
    starts.
    """
    staged = folder / sqlite.STAGED
    if not (folder / sqlite.JOURNAL).exists():
        shutil.rmtree(staged, ignore_errors=True)  # it was cut short before it was whole: nothing has changed
        return False
    try:
        json.loads((folder / sqlite.JOURNAL).read_bytes())
    except ValueError as error:
        raise StorageError(f"{folder / sqlite.JOURNAL} cannot be read: {error}") from error
    sqlite.put_into_place(folder)
    if (staged / LOGS_FOLDER).is_dir():
        shutil.rmtree(folder / LOGS_FOLDER, ignore_errors=True)
        shutil.copytree(staged / LOGS_FOLDER, folder / LOGS_FOLDER)
    (folder / sqlite.JOURNAL).unlink()
    shutil.rmtree(staged, ignore_errors=True)
    return True


def _copy_if_there(source: str, target: str) -> str:
    """Copy a file, unless it was deleted meanwhile: a log may be deleted during the copy."""
    try:
        return shutil.copyfile(source, target)
    except FileNotFoundError:
        return target
