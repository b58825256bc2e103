"""Which logs are read now, and which of their lines are new.

A container's log ends with its pod, and a lost node returns nothing afterwards: logs are followed while they
grow. Only so many streams are open at once. Beyond that most continue to follow, and a tenth reads the rest
by turns.

After a break a log is read again from some time before its newest stored line, because clocks differ. A line
that is stored already is dropped, once for each stored copy: times are not enough, because lines of two
streams of a container may be out of order, or have the same time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from moorage_kube.moments import parse_rfc3339
from moorage_kube.podlogs import is_kubelets_notice

OVERLAP = timedelta(seconds=60)  # read again after a break
LINE_BYTES = 256 * 1024  # of one line; the rest of it is dropped
TURN_SECONDS = 10.0  # between two reads of a log that takes its turn, at least
TURNS_A_SECOND = 15  # of all logs that take turns: each costs some 4 ms of CPU
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?\d*(Z|[+-]\d\d:\d\d) ?")


class Wanted(Struct, frozen=True, kw_only=True):
    """A log that is not completely read. Times are seconds of a monotonic clock."""

    key: str
    ended: bool  # its container, or its pod is being deleted
    reading: bool = False
    following: bool = False
    read_at: float | None = None  # when it was last begun
    not_before: float = 0.0  # after an error


class Read(Struct, frozen=True):
    """Start to read a log; with `follow`, until its container ends."""

    key: str
    follow: bool


class Stop(Struct, frozen=True):
    """Stop following a log, so that others get a turn. The stopped log waits for its next turn."""

    key: str


def plan_reads(logs: Iterable[Wanted], *, streams: int, now: float) -> tuple[Read | Stop, ...]:
    """The reads to begin and to stop; at most `streams` are open at once.

    Ended pods come first: they are deleted soonest. Then the logs that were not read for longest.
    """
    logs = list(logs)
    free = streams - sum(log.reading for log in logs)
    is_crowded = len(logs) > streams
    follow_most = streams - max(1, streams // 10) if is_crowded else streams
    turn = max(TURN_SECONDS, len(logs) / TURNS_A_SECOND)
    followed = sorted((log for log in logs if log.following), key=lambda log: (log.read_at or 0.0, log.key))
    following = len(followed)
    stops = [Stop(log.key) for log in followed if not log.ended][: max(0, following - follow_most)]
    due = [
        log
        for log in logs
        if not log.reading
        and now >= log.not_before
        and (log.ended or not is_crowded or log.read_at is None or now - log.read_at >= turn)
    ]
    due.sort(key=lambda log: (not log.ended, log.read_at is not None, log.read_at or 0.0, log.key))
    reads: list[Read | Stop] = []
    for log in due[: max(0, free)]:
        follow = not log.ended and following < follow_most
        following += follow
        reads.append(Read(log.key, follow))
    return (*stops, *reads)


class NewLines:
    """Finds the new lines of a log that is read again.

    `kept`: its stored end, whole lines; `cut`: earlier lines were deleted.
    """

    def __init__(self, kept: bytes = b"", *, cut: bool = False) -> None:
        lines = [line + b"\n" for line in kept.split(b"\n")[:-1]]
        stamps = [stamp for line in lines if (stamp := stamp_of(line)) is not None]
        self.newest = max(stamps, default=None)
        self._start = None if self.newest is None else self.newest - OVERLAP
        self._dropped = stamps[0] if cut and stamps else None  # lines up to this time were dropped on purpose
        self._kept = Counter(line for line in lines if not self._is_old(stamp_of(line)))

    def since_seconds(self, now: datetime) -> int | None:
        """The age in seconds from which to read; None for the whole log."""
        if self.newest is None:
            return None
        return max(1, int((now - self.newest) / timedelta(seconds=1)) + 1 + int(OVERLAP.total_seconds()))

    def is_new(self, line: bytes) -> bool:
        """Whether a line, with its end, is of the log and not stored yet."""
        if is_kubelets_notice(line):
            return False
        if self._kept and self._kept[line] > 0:
            self._kept[line] -= 1
            return False
        stamp = stamp_of(line)
        if stamp is not None and self._dropped is not None and stamp <= self._dropped:
            return False
        return not self._is_old(stamp)

    def _is_old(self, stamp: datetime | None) -> bool:
        return stamp is not None and self._start is not None and stamp < self._start


class Splitter:
    """Whole lines from pieces that end anywhere. A line is bounded: its bytes beyond LINE_BYTES are dropped."""

    def __init__(self, line_bytes: int = LINE_BYTES) -> None:
        self._most = line_bytes
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Add a piece of the log; return the lines that are now complete, with their line ends."""
        *lines, rest = piece.split(b"\n")
        if not lines:
            self._rest = (self._rest + rest)[: self._most]
            return []
        lines[0] = self._rest + lines[0]
        self._rest = rest[: self._most]
        return [line[: self._most] + b"\n" for line in lines]

    def end(self) -> list[bytes]:
        """Return an incomplete last line, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest + b"\n"] if rest else []


def stamp_of(line: bytes) -> datetime | None:
    """The timestamp at the start of a line, in the format of kubelets (nanoseconds); None if absent."""
    stamp = _STAMP.match(line)
    if stamp is None:
        return None
    try:
        return parse_rfc3339((stamp[1] + (stamp[2] or b"") + stamp[3]).decode())
    except ValueError:
        return None


def without_stamp(line: bytes) -> bytes:
    stamp = _STAMP.match(line)
    return line if stamp is None else line[stamp.end() :]
