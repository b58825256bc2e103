"""One process at a time opens the databases of a folder, by a lease stored in the folder.

There are two guards, as a volume may be mounted on several nodes. The first is an OS lock (flock) on the file
`server.lease`: the kernel releases it when its process ends, and a stopped process still holds it. The second is
the file's content: the holder, the boot of its node, and a beat that it renews. If locks do not reach other nodes,
another server takes over once it has itself watched the beat unchanged for LEASE_SECONDS. Wall clocks are never
compared.

A holder stops writing RENEW_DEADLINE_SECONDS after it began the last renewal that succeeded: `check` raises then,
before and after each commit, and `on_lost` ends the process. So it has stopped before another begins, and a write
that may have been late is not acknowledged.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import StorageError

log = logging.getLogger(__name__)

FILE = "server.lease"
RETRY_SECONDS = 1.0
LEASE_SECONDS = 15.0
RENEW_DEADLINE_SECONDS = 10.0  # LEASE_SECONDS by a clock that runs 1.5 times as fast
RECORD_BYTES = 512
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_held: dict[Path, FolderLease] = {}  # of this process


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of a lease in seconds; tests use shorter ones."""

    retry: float = RETRY_SECONDS
    lease: float = LEASE_SECONDS
    deadline: float = RENEW_DEADLINE_SECONDS


@dataclass(frozen=True, slots=True)
class Record:
    """The content of the lease file. An empty `holder` means that the lease was released."""

    holder: str = ""
    boot: str = ""
    beat: int = 0


def check_lease(folder: Path) -> None:
    """Raise StorageError if this process had the lease of a folder and may have lost it."""
    if (lease := _held.get(folder)) is not None:
        lease.check()


def _exit() -> None:
    os._exit(1)


class FolderLease:
    """The lease of a folder, for one process. Without `renew` only the OS lock guards the folder on this machine.

    `lock` locks a descriptor as `fcntl.flock` does; another function is for volumes without locks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        renew: bool,
        times: Times = Times(),
        clock: Clock = SYSTEM,
        on_lost: Callable[[], None] = _exit,
        lock: Callable[[int, int], None] = fcntl.flock,
    ) -> None:
        self._folder = folder.absolute()
        self._renew, self._times, self._clock, self._on_lost, self._lock = renew, times, clock, on_lost, lock
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._boot = _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
        self._file: int | None = None
        self._record = Record()
        self._sent = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.holder = ""  # the other server that is waited for

    async def acquire(self) -> None:
        """Wait until this process has the lease of the folder.

        Raises StorageError if the file cannot be written.
        """
        seen, since = Record(), self._clock.monotonic()
        while True:
            locked, record = self._try_lock(), self._read()
            now = self._clock.monotonic()
            if record != seen:
                seen, since = record, now
            self.holder = record.holder
            is_free = not record.holder or (locked and record.boot == self._boot)
            if locked is not False and (is_free or now - since >= self._times.lease):
                self._record = Record(self._name, self._boot, record.beat + 1)
                self._write()
                if not is_free:  # another may have done the same at this moment: the last one to write has it
                    await self._clock.sleep(2 * self._times.retry)
                if self._read() == self._record:
                    self._begin(now)
                    return
            await self._clock.sleep(self._times.retry)

    def check(self) -> None:
        """Raise StorageError if another server may have taken the lease."""
        if self._ended.is_set() or (self._renew and self._clock.monotonic() - self._sent > self._times.deadline):
            raise StorageError(
                f"the lease of {self._folder} was not renewed in time: another server may have taken over",
                hint="this server writes no more, and starts again",
            )

    def release(self) -> None:
        """Release the folder for another server; call this after all of its databases are closed."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(StorageError):
            if self._file is not None and self._thread is not None and self._read().holder == self._name:
                self._record = Record("", "", self._record.beat + 1)
                self._write()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        _held.pop(self._folder, None)

    def _begin(self, sent: float) -> None:
        self._sent, self.holder = sent, ""
        _held[self._folder] = self
        self._thread = threading.Thread(target=self._keep, name="folder-lease", daemon=True)
        self._thread.start()
        log.info("holds the folder", extra={"path": str(self._folder), "holder": self._name})

    def _keep(self) -> None:
        """Renew in a separate thread, so that a busy event loop does not lose the lease."""
        while self._renew and not self._ended.wait(self._times.retry):
            started = self._clock.monotonic()
            try:
                is_ours = started - self._sent <= self._times.deadline and self._read().holder == self._name
                if is_ours:
                    self._record = Record(self._name, self._boot, self._record.beat + 1)
                    self._write()
                    self._sent = started
            except StorageError as error:  # tried again until it is too late
                log.warning("cannot renew the lease of the folder", extra={"error": error.message})
                continue
            if not is_ours:
                log.error("no longer holds the folder", extra={"path": str(self._folder)})
                self._sent = float("-inf")
                self._on_lost()
                return

    def _try_lock(self) -> bool | None:
        """Whether this process has the lock; None if the volume does not support locks."""
        try:
            if self._file is None:
                self._file = os.open(self._folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"could not open {self._folder / FILE}: {error.strerror}") from error
        try:
            self._lock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

    def _read(self) -> Record:
        """Read the lease file.

        An unreadable record was half written by another process: it equals no expected one.
        """
        assert self._file is not None
        try:
            text = os.pread(self._file, RECORD_BYTES, 0).rstrip(b"\0 \n")
            return Record(**json.loads(text)) if text else Record()
        except (ValueError, TypeError):
            return Record("unreadable")
        except OSError as error:
            raise StorageError(f"could not read {self._folder / FILE}: {error.strerror}") from error

    def _write(self) -> None:
        assert self._file is not None
        record = {"holder": self._record.holder, "boot": self._record.boot, "beat": self._record.beat}
        try:
            os.pwrite(self._file, json.dumps(record).encode().ljust(RECORD_BYTES), 0)
            os.fsync(self._file)
        except OSError as error:
            raise StorageError(f"could not write {self._folder / FILE}: {error.strerror}") from error
