"""Folders that are stored file by file, as Argo does with `archive: {none: {}}`."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from moorage_workflows.executor.errors import StepError

FILES = 10_000  # of one folder, as many as are fetched again


def files_of(source: Path, into: Path) -> Iterator[str]:
    """The files of the folder in the tar that the script left: each is written to `into`; its name is given.

    None for a tar of one file. A link is replaced by its target. Links that lead out of the folder, sockets, pipes
    and devices are left out with a message on standard error. Raises StepError.
    """
    try:
        with tarfile.open(source, "r:") as tar:
            members = sorted(tar.getmembers(), key=lambda member: member.name)
            folder = next((member.name for member in members if member.isdir()), None)
            if folder is None:
                return
            files = [member for member in members if not member.isdir()]
            if len(files) > FILES:
                raise StepError(
                    f"the folder has {len(files)} files, and at most {FILES} are stored: use the archive tar"
                )
            for member in files:
                try:
                    content = tar.extractfile(member)
                except (KeyError, RecursionError):  # a link to nothing, or in a circle
                    content = None
                if content is None:
                    _say(f"left out {member.name!r}: neither a file nor a link to one in the folder")
                    continue
                with content, into.open("wb") as out:
                    shutil.copyfileobj(content, out, 1024 * 1024)
                yield str(PurePosixPath(member.name).relative_to(folder))
    except (tarfile.TarError, EOFError) as error:
        raise StepError(f"the files cannot be read: {error}") from error
    except OSError as error:
        raise StepError(f"the files cannot be read: {error.strerror or error}") from error


def sum_of(texts: Mapping[str, str]) -> str:
    """Return one digest "sha256:…" for the digests or versions of a folder's files, by file name."""
    lines = "".join(f"{name}\0{texts[name]}\n" for name in sorted(texts))
    return f"sha256:{hashlib.sha256(lines.encode(errors='replace')).hexdigest()}"


def names_below(paths: Iterable[str], root: str) -> list[str]:
    """Return the names of a bucket's objects relative to the folder `root`, without folder markers."""
    names = (str(path).removeprefix(root).strip("/") for path in paths if not str(path).endswith("/"))
    return [name for name in names if name]


def _say(text: str) -> None:
    print(f"moorage: {text}", file=sys.stderr, flush=True)
