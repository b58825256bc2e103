"""The object in work, recorded so that the note survives kill -9: an object that hangs its process twice is
skipped.

Three files in one folder: `NAME.work` has the name of the object whose pass runs at this moment, and its start;
`NAME.hang` the main thread's stack at SIGTERM; `NAME.hung` the number of hangs by object. A process hung on
an object if it ended with that in work, and was asked to end (by `moor up`, or by a kubelet that got no answer)
after that had run for LEAST_SECONDS without a pause. A process killed at once did not hang: it left no stack.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import logging
import mmap
import os
import signal
import struct
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeVar

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import MoorageError
from moorage_kube.resources import Obj, Resource

log = logging.getLogger(__name__)

HANGS = 2  # of a process with the same object in work, and the object is set aside
NOTE_BYTES = 4096  # a controller's name, a namespace, a name
LEAST_SECONDS = 10.0  # `moor up` asks a process to end after 30 s without an answer, a kubelet after 60 s
FORGET_SECONDS = 86_400.0  # after which a single hang is forgotten

_SINCE = struct.Struct("d")  # seconds of the epoch, before the name
T = TypeVar("T")
SetAside = Callable[[Resource, Obj, str], Awaitable[Obj]]
"""Tell of an object that is skipped from now on, and why; returns it as it is then."""


class HangRecord:
    """Record of the work of one process, to find hangs. Create it after the event loop handles SIGTERM.

    If the disk refuses the files, the process continues without them.
    """

    def __init__(
        self, path: Path, set_aside: SetAside, *, least_seconds: float = LEAST_SECONDS, clock: Clock = SYSTEM
    ) -> None:
        """Read the files of the previous process. `path`: the path of the files, without their suffixes."""
        self._least_seconds = least_seconds
        self._file = path.with_name(f"{path.name}.hung")
        self._set_aside = set_aside
        self._clock = clock
        self._hung: dict[str, dict[str, Any]] = {}
        self._memory: mmap.mmap | bytearray = bytearray(NOTE_BYTES)
        work, hang = path.with_name(f"{path.name}.work"), path.with_name(f"{path.name}.hang")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._read(work, hang)
            with work.open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, NOTE_BYTES)  # a full disk refuses here, not below
                self._memory = mmap.mmap(file.fileno(), NOTE_BYTES)
            self._stack = hang.open("w")
            # of the event loop's thread alone: reading the frames of threads that run may crash CPython
            faulthandler.register(signal.SIGTERM, self._stack, all_threads=False, chain=True)
        except OSError as error:
            log.warning("the object in work is not noted", extra={"path": str(work), "error": str(error)})

    def _read(self, work: Path, hang: Path) -> None:
        """Read the files of the previous process."""
        now = self._clock.now().timestamp()
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            for name, hung in json.loads(self._file.read_bytes()).items():
                if hung["times"] >= HANGS or now - hung["at"] < FORGET_SECONDS:
                    self._hung[str(name)] = {"times": hung["times"], "at": hung["at"], "marks": hung["marks"]}
        with contextlib.suppress(FileNotFoundError):
            left, status = work.read_bytes()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0"), hang.stat()
            name = left[_SINCE.size :].partition(b"\0")[0].decode("utf-8", "replace")
            seconds = status.st_mtime - _SINCE.unpack_from(left)[0]
            if name and status.st_size and seconds >= self._least_seconds:
                hung = self._hung.setdefault(name, {"times": 0, "at": now, "marks": []})
                hung |= {"times": hung["times"] + 1, "at": now}
                stack = hang.read_text(errors="replace")
                log.error("hung", extra={"work": name, "times": hung["times"], "stack": stack})
                self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            self._file.write_text(json.dumps(self._hung))

    def noting(self, name: str, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run the work. Its name is recorded while it computes, not while it waits."""
        return _Noted(self._memory, name.encode()[: NOTE_BYTES - _SINCE.size - 1] + b"\0", work, self._clock)

    async def skips(self, name: str, resource: Resource, obj: Obj | None) -> bool:
        """Whether to skip the object, because the process hung on it before.

        Once its spec changes, it is tried again.
        """
        hung = self._hung.get(name)
        if hung is None or hung["times"] < HANGS:
            return False
        mark = None if obj is None else _mark(obj)
        if obj is None or (hung["marks"] and mark not in hung["marks"]):
            del self._hung[name]
            self._write()
            return False
        if not hung["marks"]:
            message = (
                f"the controller hung {hung['times']} times in its work on this object, which is skipped until its"
                " spec changes"
            )
            try:
                hung["marks"] = [mark, _mark(await self._set_aside(resource, obj, message))]  # a copy may be older
                self._write()
            except (MoorageError, OSError) as error:
                log.warning("an object is skipped untold", extra={"work": name, "error": str(error)})
        return True


HANG_RECORD: ContextVar[HangRecord | None] = ContextVar("HANG_RECORD", default=None)
"""Of the process; its loops inherit it."""


def _mark(obj: Mapping[str, Any]) -> str:
    """Return a hash that changes with the spec or data of the object."""
    spec = {name: value for name, value in obj.items() if name not in ("metadata", "status")}
    return hashlib.sha256(json.dumps([obj["metadata"].get("uid"), spec], sort_keys=True).encode()).hexdigest()


class _Noted(Generic[T]):
    def __init__(
        self, memory: mmap.mmap | bytearray, note: bytes, work: Coroutine[Any, Any, T], clock: Clock
    ) -> None:
        self._memory, self._note, self._work, self._clock = memory, note, work, clock

    def __await__(self) -> Generator[Any, Any, T]:
        resume: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            _SINCE.pack_into(self._memory, 0, self._clock.now().timestamp())
            self._memory[_SINCE.size : _SINCE.size + len(self._note)] = self._note
            try:
                awaited = resume(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._memory[_SINCE.size] = 0
            try:
                value = yield awaited
                resume = self._work.send
            except BaseException as error:
                resume, value = self._work.throw, error
