"""Pack the current directory for a pod: small, the same bytes for the same files, or a clear refusal."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from moorage.apimachinery.quantity import format_bytes
from moorage.decide.runs.job import ARCHIVE_LIMIT_BYTES
from moorage.errors import UsageError

IGNORE_FILE = ".moorageignore"
ALWAYS_LEFT_OUT = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    "venv/",
    "node_modules/",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".DS_Store",
)
RAW_LIMIT_BYTES = 64 * 2**20  # nothing this large packs to 900 KiB in earnest: it is not even read
FILES_LIMIT = 20_000
LARGEST_SHOWN = 5
HINT = (
    f"leave files out with a {IGNORE_FILE} file (as .gitignore is written), or put the directory on a volume"
    " and use --working-dir VOLUME:PATH"
)


@dataclass(frozen=True, slots=True)
class Shipment:
    """The archive, and the links that were left out because they lead to folders outside."""

    archive: bytes
    files: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    """One file (or link, with what it says) of the archive."""

    name: str
    path: Path
    size: int  # bytes, before packing
    link: str | None


class Ignore:
    """Patterns as in .gitignore. Raises UsageError for one that git does not know.

    https://git-scm.com/docs/gitignore#_pattern_format
    """

    def __init__(self, lines: Iterable[str]) -> None:
        import pathspec

        try:
            self._spec = pathspec.GitIgnoreSpec.from_lines(lines)
        except ValueError as error:
            raise UsageError(
                f"invalid pattern in {IGNORE_FILE}: {error}", hint="write it as in a .gitignore file"
            ) from error

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether a path (relative, with `/`) stays behind. What stands in a folder left out is not asked for."""
        return self._spec.match_file(f"{path}/" if is_folder else path)


def pack(
    root: Path,
    *,
    on_start: Callable[[int, int], None] = lambda _files, _size: None,
    on_progress: Callable[[int, int], None] = lambda _files, _size: None,
) -> Shipment:
    """Pack a directory into a tar.gz of at most ARCHIVE_LIMIT_BYTES.

    `on_start` gets the files and bytes to pack in all, `on_progress` those of each file that is packed.
    Raises UsageError, naming the largest files, when it is larger, and when a file cannot be read.
    """
    lines = list(ALWAYS_LEFT_OUT)
    if (root / IGNORE_FILE).is_file():
        lines += (root / IGNORE_FILE).read_text(errors="replace").splitlines()
    ignore = Ignore(lines)
    left_out: list[str] = []
    members = sorted(_walk(root, "", ignore, left_out), key=lambda member: member.name)
    total = sum(member.size for member in members)
    if len(members) > FILES_LIMIT:
        raise UsageError(f"{root} has more than {FILES_LIMIT} files; at most {FILES_LIMIT} can be sent", hint=HINT)
    if total > RAW_LIMIT_BYTES:
        raise _too_large(
            f"{root} has {format_bytes(total)}; at most {format_bytes(RAW_LIMIT_BYTES)} can be sent", members
        )
    on_start(len(members), total)
    raw = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member in members:
            _add(tar, member)
            on_progress(1, member.size)
    archive = raw.getvalue()
    if len(archive) > ARCHIVE_LIMIT_BYTES:
        raise _too_large(
            f"{root} packs to {format_bytes(len(archive))}; at most {format_bytes(ARCHIVE_LIMIT_BYTES)}"
            " can be sent",
            members,
        )
    return Shipment(archive, len(members), tuple(left_out))


def _walk(root: Path, inside: str, ignore: Ignore, left_out: list[str]) -> Iterator[_Member]:
    here = root / inside
    try:
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            is_link, is_folder = entry.is_symlink(), entry.is_dir()
            if ignore.leaves_out(name, is_folder=is_folder):
                continue
            if is_link and _stays_inside(root, Path(entry.path)):
                yield _Member(name, Path(entry.path), 0, os.readlink(entry.path))
            elif entry.is_file():  # through a link that leads outside, too
                yield _Member(name, Path(entry.path), entry.stat().st_size, None)
            elif is_folder and not is_link:
                yield from _walk(root, name, ignore, left_out)
            else:
                left_out.append(name)  # a link to a folder elsewhere or to nothing, a socket, a device
    except OSError as error:
        raise UsageError(f"{error.filename or here} cannot be read: {error.strerror}", hint=HINT) from error


def _stays_inside(root: Path, link: Path) -> bool:
    """Whether a link is relative and leads to something under the root."""
    return not os.path.isabs(os.readlink(link)) and link.exists() and link.resolve().is_relative_to(root.resolve())


def _add(tar: tarfile.TarFile, member: _Member) -> None:
    info = tarfile.TarInfo(member.name)
    info.mtime = 0
    if member.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, member.link
        tar.addfile(info)
        return
    try:
        content = member.path.read_bytes()
        info.mode = 0o755 if os.stat(member.path).st_mode & 0o100 else 0o644
    except OSError as error:
        raise UsageError(f"{member.path} cannot be read: {error.strerror}", hint=HINT) from error
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _too_large(message: str, members: list[_Member]) -> UsageError:
    largest = sorted(members, key=lambda member: (-member.size, member.name))[:LARGEST_SHOWN]
    shown = ", ".join(f"{member.name} ({format_bytes(member.size)})" for member in largest)
    return UsageError(f"{message}; the largest files are {shown}", hint=HINT)
