"""The valid names of a file below a folder."""

from __future__ import annotations

import os

from moorage.filler.errors import UnsafePath

NAME_BYTES = 255  # NAME_MAX of Linux' file systems
PATH_BYTES = 4095  # PATH_MAX, less the NUL


def checked(path: str) -> str:
    """The path, when it leads to a file strictly below the folder it is relative to.

    Raises UnsafePath for an empty or absolute one, for components that are empty, "." or "..", for NUL bytes, and
    for names longer than a file system holds. All other characters are allowed.
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UnsafePath(f"{shown(path)} cannot be the name of a file: {error.reason}") from error
    if not encoded:
        raise UnsafePath("a name is empty")
    if b"\0" in encoded:
        raise UnsafePath(f"{shown(path)} has a NUL byte in it")
    if encoded.startswith(b"/"):
        raise UnsafePath(f"{shown(path)} is absolute; names are relative to the folder")
    if len(encoded) > PATH_BYTES:
        raise UnsafePath(f"{shown(path)} has {len(encoded)} bytes; at most {PATH_BYTES} can be the path of a file")
    for part in encoded.split(b"/"):
        if part in (b"", b".", b".."):
            what = "an empty part" if not part else f"the part {part.decode()!r}"
            raise UnsafePath(f"{shown(path)} has {what}: it may lead out of the folder")
        if len(part) > NAME_BYTES:
            raise UnsafePath(f"{shown(path)} has a part of {len(part)} bytes; at most {NAME_BYTES} can be a name")
    return path


def shown(path: str) -> str:
    """Format a path for messages: quoted, with odd characters escaped, at most one line."""
    text = ascii(path) if not path.isprintable() else repr(path)
    return text if len(text) <= 200 else f"{text[:197]}…{text[-1]}"


def conflict_of(paths: list[str]) -> tuple[str, str] | None:
    """Two conflicting paths: one would be a file and also a folder. Object stores allow that, file systems do not.

    `paths` must be sorted by their parts.
    """
    known = set(paths)
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in known:
                return parent, path
            parent = parent.rpartition("/")[0]
    return None
