"""Memory of containers, which is checked but not limited by the kernel."""

from __future__ import annotations

import sys
import time

from .processes import Tree

WATCH_SECONDS = 0.05  # between two looks at the memory of a container with a limit
WATCH_MIN_SECONDS = 0.005  # when close to the limit or growing fast
WATCH_FREE_SECONDS = 0.5  # without a limit, where only the peak is wanted
ASSUMED_GROWTH = 1024**3  # bytes/s that one process can fill; the watch is never slower than this needs
SHARED_SECONDS = 1.0  # between two fair countings of shared pages, unless the limit is near


def proportional(pid: int) -> int | None:
    """Bytes of one process with each shared page divided among the processes that share it; None if not readable.

    Pages backed by files are left out if the kernel counts them separately (5.10 and newer): they can be dropped
    at any time, and a cgroup would not kill for them.
    """
    total = anon = shmem = None
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    total = int(line.split()[1])
                elif line.startswith(b"Pss_Anon:"):
                    anon = int(line.split()[1])
                elif line.startswith(b"Pss_Shmem:"):
                    shmem = int(line.split()[1])
    except PermissionError:
        return None
    except OSError:
        return 0  # ended
    if anon is not None and shmem is not None:
        return (anon + shmem) * 1024
    return (total or 0) * 1024


class Watch:
    """Compares the memory of one container's process tree with its limit.

    For one process, its resident pages count. For several, `proportional` counts shared pages once. It is
    slow, so it runs once a second, and earlier if the growth of the resident sum shows that the limit or the
    peak may be exceeded. A container is killed only after such an exact count, or if its own anonymous pages
    already exceed the limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.now_bytes = 0
        self.peak_bytes = 0
        self.due = 0.0
        self._rss_at_fair = 0
        self._fair = 0
        self._fair_due = 0.0  # not before
        self._fair_late = 0.0  # at the latest
        self._last: tuple[float, int] | None = None

    def look(self, tree: Tree, pids: list[int]) -> bool:
        """Measure the memory; return True if it exceeds the limit."""
        now = time.monotonic()
        sizes = [tree.resident(pid) for pid in pids]
        rss = sum(size for size, _ in sizes)
        anon = sum(private for _, private in sizes)
        several = sum(1 for size, _ in sizes if size) > 1
        limit = self.limit if self.limit is not None else sys.maxsize
        if not several:
            guess = used = rss
            self._fair = self._rss_at_fair = 0
            sure = anon > limit
        else:
            guess = self._fair + max(0, rss - self._rss_at_fair)
            used, sure = self._fair or self.now_bytes, False
        wanted = guess > limit or (
            several and (not self._fair or guess > 1.1 * self.peak_bytes or now >= self._fair_late)
        )
        if wanted and not sure and now >= self._fair_due:
            fair = [proportional(pid) for pid in pids]
            # unreadable memory counts in full: too much is better than unwatched
            used = sum(size if part is None else part for part, (size, _) in zip(fair, sizes, strict=True))
            sure = used > limit
            self._fair, self._rss_at_fair = used, rss
            done = time.monotonic()
            near = guess > limit
            self._fair_due = done + max(
                WATCH_MIN_SECONDS if near else WATCH_SECONDS, (4 if near else 20) * (done - now)
            )
            self._fair_late = max(self._fair_due, done + SHARED_SECONDS)
        elif guess > limit and not sure:
            used = min(used, limit)  # not proven
        self.now_bytes = used
        self.peak_bytes = max(self.peak_bytes, used)
        self.due = time.monotonic() + self._pause(now, guess)
        return sure

    def _pause(self, now: float, used: int) -> float:
        if self.limit is None:
            return WATCH_FREE_SECONDS
        growth = 0.0
        if self._last is not None and now > self._last[0]:
            growth = (used - self._last[1]) / (now - self._last[0])
        self._last = (now, used)
        room = max(0, self.limit - used)
        return min(WATCH_SECONDS, max(WATCH_MIN_SECONDS, 0.5 * room / max(growth, ASSUMED_GROWTH)))
