"""Copy the current folder for runs on a local cluster; `decide.runs.code` has the places.

Files of the user are never linked hard: an editor that writes in place would change the stored code.
Files that are not copied are links to the originals, so that the command has all its files.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from msgspec import Struct

from moorage.actions.directoryarchive import CACHES, ENVIRONMENTS, IGNORE_FILE, Ignore, ignore_lines, stays_inside
from moorage.decide.runs.code import STORE
from moorage_kube.errors import UsageError
from moorage_kube.quantity import format_bytes

ENVIRONMENT_FILES = ("pyvenv.cfg", "conda-meta")  # in a folder with programs that name its path


class Limits(Struct, frozen=True, kw_only=True):
    files: int = 20_000
    bytes: int = 256 * 2**20  # of all files
    file_bytes: int = 16 * 2**20  # a larger file is data: it is linked


LIMITS = Limits()


class Snapshot(Struct, frozen=True):
    """A stored copy of a folder."""

    folder: Path
    files: int
    size: int  # bytes of all files
    large: tuple[str, ...]  # files that are too large to copy


class _Entry(Struct, frozen=True):
    """A folder, file or link of the copy."""

    name: str
    size: int = 0
    is_folder: bool = False
    link: str = ""  # its target


def store(
    root: Path,
    *,
    limits: Limits = LIMITS,
    on_start: Callable[[int, int], None] = lambda _files, _size: None,
    on_progress: Callable[[int, int], None] = lambda _files, _size: None,
) -> Snapshot:
    """Store a copy of a folder, unless the same copy is stored already.

    `on_start` gets the number of files and bytes, `on_progress` those of each copied file. Raises UsageError for
    a folder with too much, or where the copy cannot be written.
    """
    entries = list(islice(_walk(root, limits), limits.files + 1))
    files = [entry for entry in entries if not (entry.link or entry.is_folder)]
    _check(root, entries, files, limits)
    size = sum(entry.size for entry in files)
    on_start(len(files), size)
    store = root / STORE / "code"
    try:
        store.mkdir(parents=True, exist_ok=True)
        (root / STORE / ".gitignore").write_text("*\n")
        with tempfile.TemporaryDirectory(prefix=".new-", dir=store) as scratch:
            folder = store / _copy(root, entries, Path(scratch) / "code", _newest(store), on_progress)
            if not folder.exists():
                with suppress(FileExistsError):  # another command stored the same
                    os.rename(Path(scratch) / "code", folder)
            os.utime(folder)  # the newest, for the next copy
    except OSError as error:
        raise UsageError(
            f"cannot copy the folder {root} to {store}: {error.strerror}",
            hint="start the run in the folder itself: --live",
        ) from error
    large = tuple(entry.name for entry in entries if entry.link and entry.size > limits.file_bytes)
    return Snapshot(folder, len(files), size, large)


def _walk(root: Path, limits: Limits, inside: str = "", ignore: Ignore | None = None) -> Iterator[_Entry]:
    """The parts of a copy of the folder."""
    never = Ignore(CACHES)
    ignore = ignore or Ignore((*ENVIRONMENTS, *ignore_lines(root)))
    for entry in sorted(os.scandir(root / inside), key=lambda entry: entry.name):
        name, path = f"{inside}/{entry.name}" if inside else entry.name, Path(entry.path)
        original = _Entry(name, link=str(path))
        if never.leaves_out(name, is_folder=entry.is_dir()):
            continue
        if ignore.leaves_out(name, is_folder=entry.is_dir()):
            yield original
        elif entry.is_symlink():
            yield _Entry(name, link=os.readlink(path)) if stays_inside(root, path) else original
        elif entry.is_dir():
            is_readable = os.access(path, os.R_OK | os.X_OK)
            if not is_readable or any((path / file).exists() for file in ENVIRONMENT_FILES):
                yield original
                continue
            yield _Entry(name, is_folder=True)
            yield from _walk(root, limits, name, ignore)
        else:
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = entry.stat()
                is_code = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
                is_linked = not is_code or status.st_size > limits.file_bytes
                yield _Entry(name, status.st_size, link=str(path) if is_linked else "")


def _check(root: Path, entries: list[_Entry], files: list[_Entry], limits: Limits) -> None:
    """Raise UsageError for a folder above the limits; it names the largest part."""
    if len(entries) > limits.files:
        what, weights = f"more than {limits.files} files", {entry.name: 1 for entry in entries}
    elif (size := sum(entry.size for entry in files)) > limits.bytes:
        what, weights = format_bytes(size), {entry.name: entry.size for entry in files}
    else:
        return
    parts: Counter[str] = Counter()
    for name, weight in weights.items():
        parts[name] += weight
        parts.update({f"{folder}/": weight for folder in PurePosixPath(name).parents if folder.name})
    # the innermost folder with most of it, else the largest part
    half = [part for part, weight in parts.items() if 2 * weight > sum(weights.values())]
    largest = max(half, key=len) if half else parts.most_common(1)[0][0]
    raise UsageError(
        f"cannot copy the folder {root} for the run: it has {what}, and {largest} has most of them;"
        f" at most {limits.files} files and {format_bytes(limits.bytes)} are copied",
        hint=f"write {largest} in {IGNORE_FILE}: the run reads it in place; or start in the folder itself: --live",
    )


def _newest(store: Path) -> Path | None:
    stored = [folder for folder in store.iterdir() if not folder.name.startswith(".")]
    return max(stored, key=lambda folder: folder.stat().st_mtime_ns, default=None)


def _copy(
    root: Path, entries: list[_Entry], to: Path, newest: Path | None, on_progress: Callable[[int, int], None]
) -> str:
    """Write the copy; return the digest of its paths, modes and contents. Equal files of `newest` are shared."""
    digest = hashlib.sha256()
    to.mkdir()
    for entry in entries:
        path = to / entry.name
        if entry.is_folder:
            path.mkdir()
            fact = b"folder"
        elif entry.link:
            path.symlink_to(entry.link)
            fact = b"link " + os.fsencode(entry.link)
        else:
            try:
                content, status = (root / entry.name).read_bytes(), (root / entry.name).stat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            mode = stat.S_IMODE(status.st_mode)
            if newest is None or not _share(newest / entry.name, path, content, mode):
                path.write_bytes(content)
                path.chmod(mode)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            fact = f"{mode:o} {hashlib.sha256(content).hexdigest()}".encode()
            on_progress(1, entry.size)
        digest.update(os.fsencode(entry.name) + b"\0" + fact + b"\0")
    return digest.hexdigest()


def _share(stored: Path, path: Path, content: bytes, mode: int) -> bool:
    """Link a stored file if it has this content and mode. False: it has not, or the file system cannot."""
    try:
        status = stored.lstat()
        if status.st_size != len(content) or status.st_mode != stat.S_IFREG | mode:
            return False
        if stored.read_bytes() != content:
            return False
        os.link(stored, path)
    except OSError:
        return False
    return True
