"""Convert the tar file of the script into the file to upload. The same files give the same bytes."""

from __future__ import annotations

import gzip
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from moorage_workflows.executor.errors import StepError

GZIP_LEVEL = 3  # 1.5 times as fast as 6, and some percent larger
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the format knows no earlier time


def pack(source: Path, archive: str, into: Path, *, level: int | None = None) -> str:
    """Write the packed artifact to `into`. Returns its packing: "tar", "zip" or "none".

    A folder cannot be stored with "none", so it is packed as "tar". Owners are left out. Sockets, pipes and
    devices are left out with a note on standard error. Raises StepError.
    """
    try:
        with tarfile.open(source, "r:") as tar:
            members = sorted(_members(tar), key=lambda member: (member.islnk(), member.name))
            if archive == "none" and len(members) == 1 and members[0].isreg():
                with _content(tar, members[0]) as content, into.open("wb") as out:
                    shutil.copyfileobj(content, out, 1024 * 1024)
                return "none"
            if archive == "zip":
                _write_zip(tar, members, into)
                return "zip"
            _write_tgz(tar, members, into, GZIP_LEVEL if level is None else level)
            return "tar"
    except (tarfile.TarError, EOFError) as error:
        raise StepError(f"the files cannot be packed: {error}") from error
    except OSError as error:
        raise StepError(f"the files cannot be packed: {error.strerror or error}") from error


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar file with names relative to the artifact's folder, and without owners."""
    for member in tar:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            print(f"moorage: left out {member.name!r}: neither file, folder nor link", file=sys.stderr, flush=True)
            continue
        member.name = member.name.removeprefix("./") or "."
        if member.islnk():
            member.linkname = member.linkname.removeprefix("./")
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        member.pax_headers = {}
        yield member


def _write_tgz(tar: tarfile.TarFile, members: list[tarfile.TarInfo], into: Path, level: int) -> None:
    with (
        into.open("wb") as out,
        gzip.GzipFile("", "wb", level, out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as made,
    ):
        for member in members:
            if member.isreg():
                with _content(tar, member) as content:
                    made.addfile(member, content)
            else:
                made.addfile(member)


def _write_zip(tar: tarfile.TarFile, members: list[tarfile.TarInfo], into: Path) -> None:
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED, compresslevel=GZIP_LEVEL) as made:
        for member in members:
            if member.issym() or member.islnk():
                raise StepError(f"a zip file cannot hold the link {member.name!r}: use the archive tar")
            entry = zipfile.ZipInfo(member.name + ("/" if member.isdir() else ""), _ZIP_EPOCH)
            entry.external_attr = (member.mode | (0o040000 if member.isdir() else 0o100000)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            if member.isdir():
                made.writestr(entry, b"")
                continue
            entry.file_size = member.size
            with _content(tar, member) as content, made.open(entry, "w") as out:
                shutil.copyfileobj(content, out, 1024 * 1024)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    return cast(IO[bytes], tar.extractfile(member))
