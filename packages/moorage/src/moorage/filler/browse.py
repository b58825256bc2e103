"""List a folder of a volume, read, write and delete its files: for the web page, over standard streams."""

from __future__ import annotations

import json
import os
import secrets
import struct
from collections.abc import Iterator
from typing import IO, Any

from moorage.filler.errors import BadSource
from moorage.filler.paths import checked, shown
from moorage.filler.tree import LOST_AND_FOUND, Tree, failing
from moorage.filler.wire import CHUNK, PASSING, exactly

LENGTH = struct.Struct(">I")  # before each piece of a file that is written; 0: the file is complete


def list_folder(tree: Tree, path: str, *, first: int, most: int) -> dict[str, Any]:
    """A page of a folder ("": the root): folders first, then by name; `entries` are [name, kind, size, mtime_ns].

    The kind is folder, file, link or other. A name that is not UTF-8 is shown with escapes and has the kind other.
    """
    try:
        with failing(f"cannot read the folder {shown(path)}", missing=True), tree.folder(path) as fd:
            with os.scandir(fd) as entries:
                names = sorted((not entry.is_dir(follow_symlinks=False), entry.name) for entry in entries)
    except FileNotFoundError as error:
        raise BadSource(f"the folder {shown(path)} does not exist on the volume") from error
    names = [key for key in names if path or key[1] != LOST_AND_FOUND]
    rows = []
    for _, name in names[first : first + most]:
        entry = tree.stat(f"{path}/{name}" if path else name)
        if entry is not None:
            text = os.fsencode(name).decode(errors="backslashreplace")
            rows.append([text, entry.kind if text == name else "other", entry.size, entry.mtime_ns])
    return {"phase": "ready", "entries": rows, "total": len(names)}


def read_file(tree: Tree, path: str, write: IO[bytes], *, most: int | None = None) -> None:
    """Write a line of JSON with the size of a file, then its bytes; with `most`, only the first ones."""
    try:
        fd = tree.open(checked(path))
    except FileNotFoundError as error:
        raise BadSource(f"the file {shown(path)} does not exist on the volume") from error
    with failing(f"cannot read {shown(path)}"), os.fdopen(fd, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        left = size if most is None else min(size, most)
        write.write(json.dumps({"phase": "ready", "size": size}).encode() + b"\n")
        while left > 0 and (chunk := file.read(min(CHUNK, left))):
            write.write(chunk)
            left -= len(chunk)
        write.flush()


def write_file(tree: Tree, path: str, read: IO[bytes]) -> dict[str, Any]:
    """Write a file from pieces, each after its length; it gets its name when the last piece has arrived.

    It replaces a file of this name. After an interruption the volume is as before.
    """
    folder = checked(path).rpartition("/")[0]
    passing = f"{folder}/{PASSING}-{secrets.token_hex(8)}".lstrip("/")
    size, fd = 0, tree.create(passing)
    try:
        with failing(f"cannot write {shown(path)}"), os.fdopen(fd, "wb") as out:
            for piece in _pieces(read):
                out.write(piece)
                size += len(piece)
            out.flush()
            os.fsync(out.fileno())
        tree.move(passing, path)
    except BaseException:
        tree.remove(passing)
        raise
    return {"phase": "ready", "bytes": size}


def delete(tree: Tree, path: str) -> dict[str, Any]:
    """Delete a file or link, or a folder with all its content. Raises BadSource if it does not exist."""
    entry = tree.stat(checked(path))
    if entry is None:
        raise BadSource(f"{shown(path)} does not exist on the volume")
    if entry.kind == "folder":
        tree.clear(path)
    else:
        tree.remove(path)
    return {"phase": "ready"}


def _pieces(read: IO[bytes]) -> Iterator[bytes]:
    while length := LENGTH.unpack(exactly(read, LENGTH.size))[0]:
        while length > 0:
            piece = exactly(read, min(CHUNK, length))
            yield piece
            length -= len(piece)
