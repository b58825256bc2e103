"""The code of a run: the files of the current folder, copied on this machine or packed for the pod."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec.structs import asdict

from moorage.actions.submit import stored_code
from moorage.cli import console
from moorage.decide.runs.code import Code
from moorage.present.codetext import code_text
from moorage_kube.quantity import format_bytes


def packed(root: Path, on_this_machine: bool, *, stored: Code | None = None) -> tuple[Code, bytes | None] | None:
    """The code in a folder, and its archive for a pod; print its size, and the files that are left out.

    `stored`: the code to use instead. None: the command starts in the folder itself, or in that of its image.
    """
    if not on_this_machine:
        return _sent(root)
    if stored is None:
        return _copied(root)
    console.say(
        f"the code of that run is used again: {code_text(stored_code(stored))};"
        " to use your files as they are now: --live, or moor run"
    )
    return stored, None


def _copied(root: Path) -> tuple[Code, None] | None:
    from moorage.actions.directoryarchive import has_many_projects
    from moorage.cli.gitfacts import read_git
    from moorage.cli.snapshot import LIMITS, store
    from moorage.sdk.progress import PATIENCE_SECONDS, Bar, Meter

    if has_many_projects(root):
        console.note(
            f"home folders and folders of the system are not copied: the run starts in {root} itself,"
            " and sees later changes of its files"
        )
        return None
    with Bar(after=PATIENCE_SECONDS) as bar:
        meter = Meter(bar)
        snapshot = store(root, on_start=meter.begin, on_progress=meter.add)
    for name in snapshot.large:
        limit = format_bytes(LIMITS.file_bytes)
        console.note(f"{name} is larger than {limit}: it is not copied, and the run sees its later changes")
    code = Code(
        digest=snapshot.folder.name,
        files=snapshot.files,
        bytes=snapshot.size,
        folder=str(snapshot.folder),
        **asdict(read_git(root)),
    )
    console.say(f"{root} is copied for the run: {code_text(code)}")
    return code, None


def _sent(root: Path) -> tuple[Code, bytes] | None:
    from moorage.actions.directoryarchive import credentials_note, pack
    from moorage.cli.gitfacts import read_git
    from moorage.sdk.progress import PATIENCE_SECONDS, Bar, Meter

    with Bar(after=PATIENCE_SECONDS) as bar:
        meter = Meter(bar)
        archived = pack(root, on_start=meter.begin, on_progress=meter.add)
    for path in archived.left_out:
        console.note(f"{path} is not sent: its link leads outside {root}")
    if archived.credentials:
        console.note(credentials_note(archived.credentials))
    if not archived.files:
        console.note(f"{root} has no files to send: the command starts in the image's working directory")
        return None
    digest = hashlib.sha256(archived.archive).hexdigest()
    code = Code(digest=digest, files=archived.files, bytes=archived.size, **asdict(read_git(root)))
    console.say(f"{root} is sent along: {code_text(code)}")
    return code, archived.archive
