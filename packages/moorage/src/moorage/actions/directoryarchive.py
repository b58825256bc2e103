"""Pack the current directory for a pod: small, the same bytes for the same files, or a clear refusal.

Files with credentials are left out, also of folders that `moor volume cp` copies.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from moorage.decide.runs.code import STORE
from moorage.decide.runs.credentials import PATHS, SCANNED_BYTES, credential_in, is_of_many_projects
from moorage.decide.runs.job import ARCHIVE_LIMIT_BYTES
from moorage_kube.errors import UsageError
from moorage_kube.quantity import format_bytes

IGNORE_FILE = ".moorageignore"
CACHES = (
    "__pycache__/",
    "*.pyc",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".DS_Store",
    f"{STORE}/",
)
ENVIRONMENTS = (".git/", ".hg/", ".svn/", ".venv/", "venv/", "node_modules/")
ALWAYS_LEFT_OUT = (*CACHES, *ENVIRONMENTS)
RAW_LIMIT_BYTES = 64 * 2**20  # nothing this large packs to 900 KiB in earnest: it is not even read
FILES_LIMIT = 20_000
LARGEST_SHOWN = 5
HINT = (
    f"leave files out with a {IGNORE_FILE} file (as .gitignore is written), or put the directory on a volume"
    " and use --working-dir VOLUME:PATH"
)


class DirectoryArchive(Struct, frozen=True):
    """The archive, and the paths that were left out: links to targets outside, and files with credentials."""

    archive: bytes
    files: int
    size: int  # bytes of all files, before packing
    left_out: tuple[str, ...]
    credentials: Mapping[str, str]  # path → kind, such as "a private key"


class _Member(Struct, frozen=True):
    """One file of the archive, or a link and its target."""

    name: str
    path: Path
    size: int  # bytes, before packing
    link: str | None


class Ignore:
    """Ignore patterns in the format of .gitignore. Raises UsageError for an invalid pattern.

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
        """Whether a path (relative, with `/`) is left out.

        Callers do not ask for paths in a folder that is left out.
        """
        return self._spec.match_file(f"{path}/" if is_folder else path)


class Credentials:
    """Finds the files and folders below a root that hold credentials, and remembers them in `left_out`.

    A line `!PATH` of the root's .moorageignore sends matching paths all the same. Raises UsageError for a
    root that is a home folder, contains one, belongs to the system, or holds credentials itself.
    """

    def __init__(self, root: Path) -> None:
        self.left_out: dict[str, str] = {}  # path (of a folder with `/`) → kind
        self._paths = Ignore(PATHS)
        self._wanted = Ignore(line[1:] for line in ignore_lines(root) if line.startswith("!"))
        self._root = root.resolve()
        if has_many_projects(self._root):
            what = "home folders and folders of the system are not sent"
        elif self._paths.leaves_out(str(self._root)[1:], is_folder=True):
            what = "it holds credentials"
        else:
            return
        raise UsageError(
            f"cannot send the folder {root}: {what}",
            hint="put the needed files into a separate folder, and run the command there",
        )

    def holds(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether a path (relative to the root, with `/`) is left out. A file is read; links are followed."""
        if self._wanted.leaves_out(path, is_folder=is_folder):
            return False
        file, what = self._root / path, None
        names = (path, str(file.resolve())[1:]) if file.is_symlink() else (path,)
        if any(self._paths.leaves_out(name, is_folder=is_folder) for name in names):
            what = "credentials"
        elif not is_folder:
            what = _credential_of(file)
        if what is not None:
            self.left_out[f"{path}/" if is_folder else path] = what
        return what is not None


def has_many_projects(root: Path) -> bool:
    """Whether a folder is a home folder, contains one, or belongs to the system."""
    homes = {Path.home().resolve()}
    with contextlib.suppress(ImportError, KeyError):  # Windows has no pwd; a user of a container may have no entry
        import pwd

        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir).resolve())
    return any(is_of_many_projects(root.resolve(), home) for home in homes)


def credentials_note(left_out: Mapping[str, str]) -> str:
    """One line about the files with credentials that were left out."""
    shown = ", ".join(f"{path} ({what})" for path, what in [*left_out.items()][:LARGEST_SHOWN])
    more = f" and {len(left_out) - LARGEST_SHOWN} more" if len(left_out) > LARGEST_SHOWN else ""
    return f"not sent, as credentials are not: {shown}{more}; to send one, write !PATH in {IGNORE_FILE}"


def ignore_lines(root: Path) -> list[str]:
    """The lines of a folder's .moorageignore; empty if the file does not exist."""
    file = root / IGNORE_FILE
    return file.read_text(errors="replace").splitlines() if file.is_file() else []


def _credential_of(file: Path) -> str | None:
    """Return the kind of credential in a text file. None for an unreadable file: its sender reports it."""
    try:
        with file.open("rb") as content:
            head = content.read(1024)
            return None if b"\0" in head else credential_in(head + content.read(SCANNED_BYTES - len(head)))
    except OSError:
        return None


def pack(
    root: Path,
    *,
    on_start: Callable[[int, int], None] = lambda _files, _size: None,
    on_progress: Callable[[int, int], None] = lambda _files, _size: None,
) -> DirectoryArchive:
    """Pack a directory into a tar.gz of at most ARCHIVE_LIMIT_BYTES.

    `on_start` gets the total number of files and bytes, `on_progress` those of each packed file.
    Raises UsageError if the archive is too large or a file cannot be read, and the errors of Credentials.
    """
    credentials = Credentials(root)
    ignore = Ignore((*ALWAYS_LEFT_OUT, *ignore_lines(root)))
    left_out: list[str] = []
    members = sorted(_walk(root, "", ignore, credentials, left_out), key=lambda member: member.name)
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
    return DirectoryArchive(archive, len(members), total, tuple(left_out), credentials.left_out)


def _walk(
    root: Path, inside: str, ignore: Ignore, credentials: Credentials, left_out: list[str]
) -> Iterator[_Member]:
    here = root / inside
    try:
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            is_link, is_folder = entry.is_symlink(), entry.is_dir()
            if ignore.leaves_out(name, is_folder=is_folder):
                continue
            if (is_folder or entry.is_file()) and credentials.holds(name, is_folder=is_folder):
                continue
            if is_link and stays_inside(root, Path(entry.path)):
                yield _Member(name, Path(entry.path), 0, os.readlink(entry.path))
            elif entry.is_file():  # through a link that leads outside, too
                yield _Member(name, Path(entry.path), entry.stat().st_size, None)
            elif is_folder and not is_link:
                yield from _walk(root, name, ignore, credentials, left_out)
            else:
                left_out.append(name)  # a link to a folder elsewhere or to nothing, a socket, a device
    except OSError as error:
        raise UsageError(f"{error.filename or here} cannot be read: {error.strerror}", hint=HINT) from error


def stays_inside(root: Path, link: Path) -> bool:
    """Whether a link is relative and points inside the root."""
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
