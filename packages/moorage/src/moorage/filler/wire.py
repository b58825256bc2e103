"""Files over two streams of bytes: `send` at one end, `receive` at the other, each in a separate process.

    sender    {"files": [[path, size, mtime_ns], …], "single": bool}
    receiver  {"want": [index, …]}                 those it has not yet, by size and time
    sender    for each: {"path", "size", "mode", "mtime_ns"}, the bytes, the SHA-256 of them
    receiver  {"phase": "ready", "files", "bytes"}, or {"phase": "failed", "reason", "message"}

A message is its length in four bytes, then JSON. Neither end trusts the other: paths are checked, links out
of the folder are not followed, and a file gets its name when its checksum is right. An interrupted transfer
continues with the missing files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Callable
from typing import IO, Any

from moorage.filler.errors import BadSource, Corrupt, FillError, SourceChanged, SourceFailed, TooManyFiles
from moorage.filler.paths import checked, conflict_of, shown
from moorage.filler.tree import LeavesOut, Tree, TreeEntry, failing

CHUNK = 1024 * 1024
HEAD_BYTES = 256 * 1024 * 1024  # of one message: the names of a million files
MOST_FILES = 1_000_000
PASSING = ".moorage-copy"  # how the name of a file under way begins

OnProgress = Callable[[int, int], None]  # files, bytes


def send(
    tree: Tree,
    path: str,
    read: IO[bytes],
    write: IO[bytes],
    *,
    on_start: OnProgress = lambda _files, _size: None,
    on_progress: OnProgress = lambda _files, _size: None,
    leaves_out: LeavesOut = lambda _: False,
) -> dict[str, Any]:
    """Send a file, or all files below a folder ("": all of the tree).

    Return the last message of the other end. Links are not sent; their number is in `left_out`. `on_start`
    gets the totals to send. `leaves_out`: the files of a folder to skip; a single file is always sent. Raises
    FillError.
    """
    files, single, left_out = _files(tree, path, leaves_out)
    if not files and not single and not left_out and path and tree.stat(path) is None:
        _put(write, {"failed": f"{shown(path)} not found on the volume"})
        raise BadSource(f"{shown(path)} not found")
    start = 0 if single or not path else len(path) + 1
    names = [file.path.rpartition("/")[2] if single else file.path[start:] for file in files]
    asked = [[name, file.size, file.mtime_ns] for name, file in zip(names, files, strict=True)]
    _put(write, {"files": asked, "single": single})
    want = _get(read).get("want") or ()
    for index in want:
        if not isinstance(index, int) or not 0 <= index < len(files):
            raise Corrupt("the receiver asked for a file that does not exist")
    on_start(len(want), sum(files[index].size for index in want))
    for index in want:
        _send_one(tree, files[index], names[index], write, on_progress)
    answer = _get(read)
    if answer.get("phase") != "ready":
        raise Corrupt(str(answer.get("message") or "the other end failed"))
    return answer | {"left_out": left_out}


def _files(tree: Tree, path: str, leaves_out: LeavesOut) -> tuple[list[TreeEntry], bool, int]:
    if path:
        entry = tree.stat(checked(path))
        if entry is not None and entry.kind == "file":
            return [entry], True, 0
        if entry is None:
            return [], False, 0
    entries = list(tree.walk(path, leaves_out))
    files = [
        entry
        for entry in entries
        if entry.kind == "file" and not entry.path.rpartition("/")[2].startswith(PASSING)
    ]
    return files, False, sum(entry.kind in ("link", "other") for entry in entries)


def _send_one(tree: Tree, entry: TreeEntry, name: str, write: IO[bytes], on_progress: OnProgress) -> None:
    try:
        fd = tree.open(entry.path)
    except FileNotFoundError as error:
        raise SourceChanged(f"{shown(entry.path)} was deleted while it was copied") from error
    running, left = hashlib.sha256(), entry.size
    _put(write, {"path": name, "size": entry.size, "mode": entry.mode, "mtime_ns": entry.mtime_ns})
    with failing(f"cannot read {shown(entry.path)}"), os.fdopen(fd, "rb") as file:
        while left > 0:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise SourceChanged(f"{shown(entry.path)} became shorter while it was copied")
            write.write(chunk)
            running.update(chunk)
            left -= len(chunk)
            on_progress(0, len(chunk))
    write.write(running.digest())
    write.flush()
    on_progress(1, 0)


def receive(
    tree: Tree,
    base: str,
    read: IO[bytes],
    write: IO[bytes],
    *,
    single: tuple[str, str] | None = None,
    on_start: OnProgress = lambda _files, _size: None,
    on_progress: OnProgress = lambda _files, _size: None,
) -> dict[str, Any]:
    """Receive files into the folder `base` of the tree ("": its root).

    With `single`, one file into that folder under that name. Raises FillError, after reporting it to the
    other end.
    """
    try:
        return _receive(tree, base, read, write, single, on_start, on_progress)
    except FillError as error:
        with contextlib.suppress(SourceFailed):
            _put(write, {"phase": "failed", "reason": error.reason, "message": error.message})
        raise


def _receive(
    tree: Tree,
    base: str,
    read: IO[bytes],
    write: IO[bytes],
    single: tuple[str, str] | None,
    on_start: OnProgress,
    on_progress: OnProgress,
) -> dict[str, Any]:
    offer = _get(read)
    if "failed" in offer:
        raise BadSource(str(offer["failed"]))
    files = offer.get("files")
    if not isinstance(files, list) or len(files) > MOST_FILES:
        raise TooManyFiles(f"more than {MOST_FILES:,} files are offered")
    if offer.get("single") and single is not None and len(files) == 1:
        base, name = single
        files = [[name or files[0][0], *files[0][1:]]]
    paths = [checked(str(file[0])) for file in files]
    if conflict := conflict_of(paths):
        raise BadSource(f"{shown(conflict[0])} is both a file and a folder")
    want = [index for index, file in enumerate(files) if not _has(tree, _join(base, paths[index]), file)]
    _put(write, {"want": want})
    on_start(len(want), sum(size for index in want for size in files[index][1:2] if isinstance(size, int)))
    total = 0
    for index in want:
        head = _get(read)
        total += _receive_one(tree, _join(base, paths[index]), head, read, on_progress)
    _put(write, done := {"phase": "ready", "files": len(want), "bytes": total, "skipped": len(files) - len(want)})
    return done


def _has(tree: Tree, path: str, offered: list[Any]) -> bool:
    there = tree.stat(path)
    return there is not None and there.kind == "file" and [there.size, there.mtime_ns] == list(offered[1:3])


def _receive_one(tree: Tree, path: str, head: dict[str, Any], read: IO[bytes], on_progress: OnProgress) -> int:
    folder, _, name = path.rpartition("/")
    passing = _join(folder, f"{PASSING}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}")
    size, mode, mtime = int(head["size"]), int(head.get("mode") or 0o644) & 0o777, int(head.get("mtime_ns") or 0)
    running, left = hashlib.sha256(), size
    fd = tree.create(passing, mode | 0o600)
    try:
        with failing(f"cannot write {shown(path)}"), os.fdopen(fd, "wb") as out:
            while left > 0:
                chunk = exactly(read, min(CHUNK, left))
                out.write(chunk)
                running.update(chunk)
                left -= len(chunk)
                on_progress(0, len(chunk))
            out.flush()
            os.utime(out.fileno(), ns=(mtime, mtime))
            os.fsync(out.fileno())
        if exactly(read, 32) != running.digest():
            raise Corrupt(f"{shown(path)} was spoilt on its way")
    except BaseException:
        tree.remove(passing)
        raise
    tree.move(passing, path)
    on_progress(1, 0)
    return size


def _join(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder else path


def _put(write: IO[bytes], message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    try:
        write.write(struct.pack(">I", len(data)) + data)
        write.flush()
    except OSError as error:
        raise SourceFailed("the connection broke off; the same command resumes the transfer") from error


def _get(read: IO[bytes]) -> dict[str, Any]:
    (size,) = struct.unpack(">I", exactly(read, 4))
    if size > HEAD_BYTES:
        raise Corrupt("the other end does not speak as it should")
    try:
        document = json.loads(exactly(read, size))
    except ValueError as error:
        raise Corrupt("the other end does not speak as it should") from error
    if not isinstance(document, dict):
        raise Corrupt("the other end does not speak as it should")
    return document


def exactly(read: IO[bytes], size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = read.read(size - len(data))
        if not chunk:
            raise SourceFailed("the connection broke off; the same command resumes the transfer")
        data += chunk
    return bytes(data)
