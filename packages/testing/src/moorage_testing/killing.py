"""Faults for a local cluster: its processes are killed, or stopped for a while, and started again.

A kill (SIGKILL) hits the process itself at any moment. The supervisor restarts its children, each
time later than the last. So that a test with hundreds of kills ends, a child that died three times takes the
supervisor with it the next time, and `moor up` starts all processes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from moorage.cli.datafolder import DataFolder
from moorage.cli.supervisor import CHILDREN
from moorage_kube.testing import pausing
from moorage_testing.cluster import Cluster

EVERYTHING = "everything"
LAUNCHER = "launcher"  # the process of the node agents that forks the shims of pods; it comes back when needed
DEATHS_OF_A_CHILD = 3  # after these the supervisor waits 15 s
UP_SECONDS = 900.0  # bounds a hang: `moor up` itself gives up after 15 minutes


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parent_of(pid: int) -> int | None:
    """The number of a process's parent; None when the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def send(pid: int, number: int) -> bool:
    """Send a signal; False when the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def pids_with(*words: str) -> list[int]:
    """Return the processes of this machine with all these words in their command line or environment."""
    wanted, pids = [word.encode() for word in words], []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if all(word in text for word in wanted):
                pids.append(int(entry.name))
    return pids


class Trouble:
    """Kills and stops the processes of one `moor up`, and restarts them.

    `counts`: the number of faults by process.
    """

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.failed_starts: list[str] = []  # the output of `moor up` when it was killed itself, or had no port
        self.cluster = cluster
        self._folder = DataFolder(cluster.home)
        self._deaths: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def pid(self, name: str) -> int | None:
        """Return the process id of the supervisor, one of its children or the launcher.

        None if it does not run.
        """
        if name == LAUNCHER:
            control_plane = self.pid("localcluster")
            return next(
                (pid for pid in pids_with("podshim.py", "--serve") if parent_of(pid) == control_plane), None
            )
        return self._folder.pid(name)

    async def kill(self, name: str) -> bool:
        """Send SIGKILL to a process, or to all; return False if there is none to kill now."""
        if name in CHILDREN and self._deaths[name] >= DEATHS_OF_A_CHILD:
            name = EVERYTHING
        if name == EVERYTHING:
            pids = {child: self.pid(child) for child in (*CHILDREN, "supervisor")}
        else:
            pids = {name: self.pid(name)}
        struck = [pid for pid in pids.values() if pid is not None and send(pid, signal.SIGKILL)]
        await until_gone(struck)
        if struck:
            self.counts[f"kill {name}"] += 1
            self._deaths[name] += 1
        return bool(struck)

    async def stop(self, name: str, seconds: float) -> bool:
        """Send SIGSTOP, and SIGCONT after some seconds; return False if there is no process to stop now."""
        pid = self.pid(name)
        if pid is None:
            return False
        return await self.stop_process(pid, name, seconds)

    async def stop_process(self, pid: int, name: str, seconds: float) -> bool:
        if not send(pid, signal.SIGSTOP):
            return False
        self.counts[f"stop {name}"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            send(pid, signal.SIGCONT)
        return True

    def kill_process(self, pid: int, name: str) -> bool:
        """Send SIGKILL to any process, and count it under that name."""
        struck = send(pid, signal.SIGKILL)
        self.counts[f"kill {name}"] += struck
        return struck

    async def bring_back(self) -> None:
        """Return once the cluster is up: run `moor up` again and again if the supervisor has ended.

        Raises AssertionError with the output of `moor up` when the cluster does not start.
        """
        ends = time.monotonic() + UP_SECONDS
        while self.pid("supervisor") is None:
            self._deaths.clear()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "moorage.cli.main", "up", "--data", str(self._folder.path)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await process.communicate()
            if process.returncode == 0:
                return
            self.failed_starts.append(output.decode(errors="replace"))
            if time.monotonic() > ends:
                raise AssertionError(f"`moor up` failed for {UP_SECONDS:g} s: {self.failed_starts[-1]}")
            await asyncio.sleep(0.2)

    async def strike(self, *names: str, again: float = 0.25) -> None:
        """Kill a random one of these processes, and start the cluster again.

        `again`: the probability of another kill during the start.
        """
        if not await self.kill(self.chance.choice(names)):
            await asyncio.sleep(0.05)  # it is just being started
        if self.pid("supervisor") is not None:
            return
        starting = asyncio.create_task(self.bring_back())
        try:
            if self.chance.random() < again:
                await pausing.pause(self.chance, 0.0, 2.0)
                await self.kill(self.chance.choice(names))
        finally:
            await starting
        await self.bring_back()

    async def strike_again_and_again(
        self, kills: int, *names: str, pause: tuple[float, float], seen: Callable[[], str]
    ) -> None:
        """Strike until so many were killed, after a pause (seconds) each.

        `seen` returns the progress of the work.
        """
        while self.total < kills:
            await pausing.pause(self.chance, *pause)
            before = self.total
            await self.strike(*names)
            if self.total // 10 != before // 10:
                print(f"{self.total} kills: {seen()}", file=sys.stderr, flush=True)
        await self.bring_back()


async def until_gone(pids: Iterable[int]) -> None:
    """Wait until these processes have ended."""
    waited_for = list(pids)
    await until_so(lambda: not any(is_alive(pid) for pid in waited_for), every=0.01)


async def until_so(is_so: Callable[[], bool], *, every: float = 0.1) -> None:
    """Wait for a state that can only be polled; the caller limits the time."""
    while True:
        if is_so():
            return
        await asyncio.sleep(every)
