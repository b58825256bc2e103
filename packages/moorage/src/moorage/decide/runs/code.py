"""The code of a run: the files of the folder in which it was submitted, as they were then.

On a cluster they are sent to the pod. On a local cluster, `cli.snapshot` stores them in
FOLDER/.moorage/code/DIGEST, and our runner copies them to FOLDER/.moorage/RUN, where the command starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import msgspec
from msgspec import Struct

from moorage.model.names import CODE_ANNOTATION
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj

STORE = ".moorage"  # in the folder of the user
DIFF_LIMIT_BYTES = 16 * 1024  # annotations may have 256 KiB in all, and each list of Jobs contains them
SCRIPTS = (".py", ".sh", ".R", ".jl", ".ipynb")


class Code(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about the code of a run."""

    digest: str  # of the files: SHA-256, in hex
    files: int
    bytes: int  # of all files
    commit: str = ""  # of git, in hex; empty: not in a git repository
    dirty: bool = False  # whether the files differ from the commit
    diff: str = ""  # to the commit, at most DIFF_LIMIT_BYTES
    folder: str = ""  # FOLDER/.moorage/code/DIGEST; empty: the files were sent to the pod
    outputs: str = ""  # with `folder`: where the command starts

    def of_run(self, run: str, salt: str) -> Code:
        """The same code for a run. `salt`: random; a second run of the same name has another folder."""
        if not self.folder:
            return self
        store = PurePosixPath(self.folder).parents[1]
        return msgspec.structs.replace(self, outputs=str(store / f"{run}.{salt[:6]}"))

    def in_copy(self, path: str) -> str | None:
        """The path in the copy for one in the user's folder. None for any other path."""
        original = PurePosixPath(self.folder).parents[2]
        inside = PurePosixPath(path)
        return str(self.outputs / inside.relative_to(original)) if inside.is_relative_to(original) else None


def code_annotations(code: Code) -> dict[str, str]:
    return {CODE_ANNOTATION: msgspec.json.encode(code).decode()}


def code_of(job: Obj) -> Code | None:
    """The code of a run, from its first Job. None if the Job does not name it."""
    try:
        return msgspec.json.decode(annotations_of(job).get(CODE_ANNOTATION, ""), type=Code)
    except msgspec.DecodeError:
        return None


def outside_notes(code: Code, command: Sequence[str]) -> Iterator[str]:
    """Notes on words of the command that name no file of the copy."""
    for word in command:
        value = word.rpartition("=")[2]
        if value == ".." or value.startswith("../"):
            yield f"the run starts in a copy of the folder, where {value} is missing: write a full path, or --live"
        elif word.endswith(SCRIPTS) and code.in_copy(word):
            yield f"{word} is the file itself, not its copy: later changes reach the run; write a relative path"
