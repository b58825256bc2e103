"""The file of a backup: a gzipped tar.

    backup.json                    format, version, time, source; SHA-256 and size of every other
member
    databases/maps/items.jsonl    a line of columns, then a row a line; bytes as {"b64": …}
    databases/maps/meta.jsonl      the part's rows in the table `meta`, except its version
    objects/mapjobs.jsonl          of a cluster: its MapJobs that have a map, a line each
    logs/…                         the ends of pods' logs, where they are files
    folder/…                       of a local cluster: cluster.db, its certificates, tokens and ports

An archive is checked as a whole before anything is restored.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath

import msgspec

from moorage import __version__
from moorage.api.errors import ErrorCode
from moorage.client.files import replacing
from moorage_kube.databasefile import disk_errors
from moorage_kube.errors import MoorageError

FORMAT = 1
MANIFEST = "backup.json"
DATABASES, LOGS, FOLDER = "databases", "logs", "folder"


class Member(msgspec.Struct, frozen=True):
    """A file of the archive, as the manifest lists it."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The manifest of an archive. `schemas`: versions of the parts; `rows`: of counted tables."""

    format: int
    version: str
    taken: datetime
    dialect: str
    schemas: dict[str, int]
    rows: dict[str, int]
    revision: int = 0  # of the objects of a local cluster
    members: dict[str, Member] = {}


class BadArchive(MoorageError):
    """An archive that cannot be restored: damaged, not a backup, or written by a newer Moorage."""


def pack(folder: Path, manifest: Manifest, target: Path) -> Manifest:
    """Write all files of a folder into an archive. After a failure `target` does not exist.

    Raises StorageFull, OSError.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    members = {str(path.relative_to(folder)): _member(path) for path in files}
    manifest = msgspec.structs.replace(manifest, members=members)
    with (
        disk_errors(target),
        replacing(target, private=True) as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=3, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        first = folder / MANIFEST
        first.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        for path in (first, *files):
            tar.add(path, arcname=str(path.relative_to(folder)), filter=_plain)
    return manifest


def unpack(archive: Path, folder: Path) -> Manifest:
    """Extract an archive into an empty folder and check every file. Raises BadArchive, OSError."""
    try:
        with gzip.open(archive) as packed, tarfile.open(fileobj=packed, mode="r:") as tar:
            for entry in tar:
                _check_entry(archive, entry)
                _extract(tar, entry, folder)
            while packed.read(2**20):  # to its checksum
                pass
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, UnicodeError) as error:
        raise _bad(archive, f"cannot be read to its end: {error}") from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == str(archive):
            raise MoorageError(f"backup {archive} not found") from error
        raise
    except Exception as error:  # zlib.error has no own base class
        raise _bad(archive, f"cannot be read to its end: {error}") from error
    return _checked(archive, folder)


def _checked(archive: Path, folder: Path) -> Manifest:
    try:
        text = (folder / MANIFEST).read_bytes()
        number = msgspec.json.decode(text, type=_Format).format
        if number > FORMAT:
            raise _bad(archive, f"has format {number}; this Moorage knows formats up to {FORMAT}", newer=True)
        manifest = msgspec.json.decode(text, type=Manifest)
    except FileNotFoundError as error:
        raise _bad(archive, f"has no {MANIFEST}: it is no backup of Moorage, or its end is missing") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise _bad(archive, f"has a {MANIFEST} that cannot be read: {error}") from error
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    if files != manifest.members.keys():
        odd = sorted(files ^ manifest.members.keys())[0]
        raise _bad(archive, f"lacks or adds {odd}")
    for name, member in manifest.members.items():
        if _member(folder / name) != member:
            raise _bad(archive, f"has another {name} than was written")
    return manifest


class _Format(msgspec.Struct):
    format: int


def check_schemas(manifest: Manifest, known: Mapping[str, int], *, name: str) -> None:
    """Raise BadArchive if a part has a newer schema than this code. `known`: the newest schema of each part."""
    for part, version in manifest.schemas.items():
        if version > known.get(part, 0):
            raise BadArchive(
                f"{name} has schema version {version} of {part}; this Moorage knows versions up to"
                f" {known.get(part, 0)}",
                hint=f"restore it with Moorage {manifest.version} or newer, then upgrade",
                code=ErrorCode.INVALID,
            )


def new_manifest(
    *, taken: datetime, dialect: str, schemas: dict[str, int], rows: dict[str, int], revision: int = 0
) -> Manifest:
    return Manifest(
        format=FORMAT, version=__version__, taken=taken, dialect=dialect, schemas=schemas, rows=rows,
        revision=revision,
    )  # fmt: skip


def _bad(archive: Path, problem: str, *, newer: bool = False) -> BadArchive:
    hint = "restore it with a newer Moorage" if newer else "nothing was changed; choose another backup"
    return BadArchive(f"the backup {archive.name} {problem}", hint=hint, code=ErrorCode.INVALID)


def _check_entry(archive: Path, entry: tarfile.TarInfo) -> None:
    path = PurePosixPath(entry.name)
    if not (entry.isfile() or entry.isdir()) or path.is_absolute() or ".." in path.parts:
        raise _bad(archive, f"holds {entry.name!r}, which is no plain file")


def _extract(tar: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Extract one entry, like `extract` with a filter, which needs Python 3.11.4 or later."""
    path = folder / entry.name
    if entry.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(entry)
    assert source is not None  # a plain file has content
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry


def _member(path: Path) -> Member:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Member(bytes=file.tell(), sha256=digest.hexdigest())
