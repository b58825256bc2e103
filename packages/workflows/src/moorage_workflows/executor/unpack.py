"""Unpack fetched input artifacts at their places. Their files cannot leave these places."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

from moorage_workflows.executor.errors import StepError

NESTING_MAX = 64  # folders of a volume that an artifact is merged into


def unpack(source: Path, archive: str, into: Path) -> Path:
    """Unpack into the empty folder `into`; return the path of the artifact: a file, or a folder.

    `archive`: tar (any compression), zip, none, or "": tar if it is one. An archive with one entry is that
    entry. Raises StepError for names and links that lead out, for devices, and for a broken archive.
    """
    into.mkdir(parents=True)
    if archive == "" and not _is_tar(source):
        archive = "none"
    if archive == "none":
        os.replace(source, into / "file")
        return into / "file"
    folder = into / "files"
    folder.mkdir()
    try:
        if archive == "zip":
            _unzip(source, folder)
        else:
            _untar(source, folder)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise StepError(f"it cannot be unpacked as {archive or 'tar'}: {error}") from error
    except OSError as error:
        raise StepError(f"it cannot be unpacked: {error.strerror or error}") from error
    source.unlink()
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 else folder


def place(artifact: Path, target: Path) -> None:
    """Move the artifact to its place; a folder is merged into an existing one. Raises StepError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _merge(artifact, target, 0)
    except OSError as error:
        raise StepError(f"it cannot be written to {target}: {error.strerror or error}") from error


def open_up(target: Path, mode: int | None, *, is_recursive: bool) -> None:
    """Let every user of the pod read the target; then set the requested mode. Raises StepError."""
    try:
        for path in _below(target):
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode):
                readable = 0o555 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o444
                wanted = stat.S_IMODE(status.st_mode) | readable
                if mode is not None and (is_recursive or path == target):
                    wanted = mode & 0o7777
                path.chmod(wanted)
    except OSError as error:
        raise StepError(f"the mode of {target} cannot be set: {error.strerror or error}") from error


def _is_tar(source: Path) -> bool:
    try:
        with tarfile.open(source) as tar:
            return tar.next() is not None
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return False


def _untar(source: Path, folder: Path) -> None:
    with tarfile.open(source) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
            return
        for entry in tar:  # Python before 3.11.4, as Debian 12 has it
            _check_entry(entry)
        tar.extractall(folder)


def _check_entry(entry: tarfile.TarInfo) -> None:
    """Raises StepError where an entry is not a file, folder or link, or names anything that is not below it."""
    if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
        raise StepError(f"it has the entry {entry.name!r}, which is neither a file nor a folder")
    for name in (entry.name, entry.linkname):
        if name.startswith("/") or ".." in name.split("/"):
            raise StepError(
                f"it has the entry {entry.name!r}, which names {name!r}: absolute paths and '..' are refused"
                " before Python 3.11.4; use a later one, or pack the artifact without such links"
            )


def _unzip(source: Path, folder: Path) -> None:
    with zipfile.ZipFile(source) as archive:
        for entry in archive.infolist():
            name = entry.filename
            parts = name.rstrip("/").split("/")
            if name.startswith("/") or "\\" in name or not name or any(part in ("", ".", "..") for part in parts):
                raise StepError(f"it has the entry {name!r}, which leads out of its folder or is not a name")
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise StepError(f"it has the entry {name!r}, which is neither a file nor a folder")
            target = folder.joinpath(*parts)
            if entry.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as content, target.open("xb") as out:
                shutil.copyfileobj(content, out, 1024 * 1024)
            mode = (entry.external_attr >> 16) & 0o777
            target.chmod((mode or 0o644) | 0o600)


def _merge(source: Path, target: Path, depth: int) -> None:
    """Merge a folder into another. Links below the target are not followed but replaced."""
    if depth > NESTING_MAX:
        raise StepError(f"it has more than {NESTING_MAX} folders within each other")
    is_folder = source.is_dir() and not source.is_symlink()
    there = target.is_dir() and not target.is_symlink()
    if is_folder and there:
        for entry in sorted(source.iterdir()):
            _merge(entry, target / entry.name, depth + 1)
        return
    if there:
        raise StepError(f"{target} is a folder, and the artifact is a file")
    if os.path.lexists(target):
        target.unlink()
    shutil.move(str(source), str(target))


def _below(target: Path) -> list[Path]:
    """Return the target and all paths in it. Links are not followed."""
    if not target.is_dir() or target.is_symlink():
        return [target]
    return [target] + [Path(root) / name for root, names, files in os.walk(target) for name in (*names, *files)]
