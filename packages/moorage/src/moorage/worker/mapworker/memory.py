"""The memory of processes, from /proc; unknown where it is missing."""

from __future__ import annotations

import os

PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUP_EVENTS = "/sys/fs/cgroup/memory.events"


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still are, not theirs in turn."""
    pids: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                pids += map(int, file.read().split())
    except (OSError, ValueError):
        pass  # it has ended meanwhile
    return pids


def resident(pid: int) -> int:
    """Bytes in memory of a process and all below it."""
    total, waiting = 0, [pid]
    while waiting:
        process = waiting.pop()
        try:
            with open(f"/proc/{process}/statm") as file:
                total += int(file.read().split()[1]) * PAGE
        except (OSError, ValueError, IndexError):
            continue
        waiting += children(process)
    return total


def kills_for_memory() -> int | None:
    """How often the kernel has killed in this control group for memory; None when it does not say."""
    try:
        with open(_CGROUP_EVENTS) as file:
            for line in file:
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
    except (OSError, ValueError):
        pass  # no control groups of version 2 here
    return None
