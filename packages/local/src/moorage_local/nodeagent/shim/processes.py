"""The process tree of a pod below the shim, and how to end its processes."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


UID_MARK = "MOORAGE_POD_UID"  # environment variables by which processes of a pod are known again
CONTAINER_MARK = "MOORAGE_POD_CONTAINER"
LIST_SECONDS = 2.0  # between two looks at all processes of the pod
NEW_MIN = 16  # numbers given out since the last look that are read one by one in any case
NEW_MAX = 128  # the same where the kernel has no lists of children; with more, all processes are listed
STATM_MAX = 256  # open files to read memory from
KILL_SECONDS = 10.0  # after this long, processes that SIGKILL did not end are given up (stuck in the kernel)
PAGE = os.sysconf("SC_PAGE_SIZE")


def read_stat(pid: int) -> tuple[int, int, int, str] | None:
    """(parent, session, start in clock ticks since boot, state letter) of a process, or None when it has ended."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode()


def is_alive(pid: int) -> bool:
    status = read_stat(pid)
    return status is not None and status[3] not in "ZX"


def descendants(root: int) -> set[int]:
    """Return all living descendants of a process, without zombies."""
    parents: dict[int, int] = {}
    zombies: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            status = read_stat(int(name))
            if status is not None:
                parents[int(name)] = status[0]
                if status[3] in "ZX":
                    zombies.add(int(name))
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    out: set[int] = set()
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in out:
                out.add(pid)
                todo.append(pid)
    return out - zombies


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def ask_to_end(pid: int) -> None:
    """Send SIGTERM, and send SIGCONT only to a stopped process.

    The kernel may deliver two signals at once to another thread than the one that waits for them. Then the
    handler of a Python program does not run.
    """
    send(pid, signal.SIGTERM)
    status = read_stat(pid)
    if status is not None and status[3] == "T":
        send(pid, signal.SIGCONT)


def may_have_children(besides: Collection[int] = ()) -> bool:
    """Whether this process, which has one thread, has children (zombies count) other than these.

    The children of an ended process move to its subreaper, so without children none of its processes are left, and
    other processes need not be checked. An empty answer is reliable, a long one is not (proc_tid_children(5));
    True on a kernel that does not report children.
    """
    pid = os.getpid()
    try:
        fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        children = os.read(fd, 65536).split()
    except OSError:
        return True
    finally:
        os.close(fd)
    return any(int(child) not in besides for child in children)


def kill_descendants(root: int) -> None:
    """Kill all descendants of this process and reap those that became its children, until none is left."""
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until and may_have_children():
        left = descendants(root)
        for pid in left:
            send(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass
        if not left:
            return
        time.sleep(0.005)


class Tree:
    """The processes below the shim, and the container of each.

    A scan reads only the processes with numbers assigned since the last one (the kernel reports the newest in
    /proc/loadavg). If others start more than this pod has threads, and every `LIST_SECONDS`, the kernel's lists of
    children are followed from the shim down, so that hundreds of pods do not each read the new processes of all
    others. All of /proc is listed only when forced, and on a kernel without such lists. A process of ours stays
    assigned to its container even when its parent ended and it moved to the shim; one never seen before that moved
    to the shim is known by its session or by the mark in its environment.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.owner: dict[int, str] = {}  # pid → container name; "" when not known
        self._start: dict[int, int] = {}
        self._statm: dict[int, int] = {}  # pid → open /proc/PID/statm: it never becomes another process's
        self._foreign: set[int] = set()
        self._loadavg = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        self._last_pid = self._newest_pid()
        self._listed = time.monotonic()  # before anything was started: nothing that exists is ours
        self._has_lists = True  # of children (proc_tid_children(5)), until one is missed
        self._threads = 1  # of the shim and its processes, at the last walk

    def look(self, mains: dict[int, str], *, force: bool = False) -> None:
        """Update `owner`. `mains`: pid of each container's main process → its name.

        After a forced scan, all numbers in `owner` are those of our processes, not of later ones.
        """
        now = time.monotonic()
        last_pid = self._newest_pid()
        before, self._last_pid = self._last_pid, last_pid
        for pid, name in mains.items():
            self.owner[pid] = name
        few = max(NEW_MIN, self._threads) if self._has_lists else NEW_MAX
        if not force and now - self._listed < LIST_SECONDS and 0 <= last_pid - before <= few:
            self._take({pid for pid in range(before + 1, last_pid + 1) if pid not in mains}, mains, threads=True)
            return
        self._listed = now
        if not force and self._has_lists:
            self._walk(mains)
            return
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in list(self.owner):
            if pid not in listed or (force and pid not in mains and not self._is_same(pid)):
                self.gone(pid)
        unknown = listed - self.owner.keys() - {self.root}
        if self._has_lists:  # so seldom here that a number may be another process's by now
            self._take(unknown, mains)
        else:
            self._foreign &= listed
            self._foreign |= self._take(unknown - self._foreign, mains)

    def _walk(self, mains: dict[int, str]) -> None:
        """Find new and ended processes by the lists of children. One that is missed, as it was started or
        lost a sibling this instant, is found at the next walk.
        """
        met: set[int] = set()
        self._threads = 0
        todo = [self.root]
        while todo:
            children = self._children(todo.pop()) - met
            met |= children
            todo += children
        for pid in self.owner.keys() - met - mains.keys():
            if not self._is_same(pid):
                self.gone(pid)
        self._take(met - self.owner.keys(), mains)

    def _children(self, parent: int) -> set[int]:
        """Children of all threads of a process; none when it has ended."""
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            return set()
        self._threads += len(threads)
        children: set[int] = set()
        for thread in threads:
            try:
                fd = os.open(f"/proc/{parent}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                if parent == self.root:
                    self._has_lists = False
                continue
            try:
                while part := os.read(fd, 65536):
                    children.update(map(int, part.split()))
            except OSError:
                pass
            finally:
                os.close(fd)
        return children

    def _newest_pid(self) -> int:
        return int(os.pread(self._loadavg, 256, 0).rsplit(None, 1)[-1])

    def _take(self, pids: set[int], mains: dict[int, str], *, threads: bool = False) -> set[int]:
        """Record the processes that belong to the tree, and return the others.

        `threads`: some numbers may be thread ids.
        """
        fresh: dict[int, tuple[int, int, int, str]] = {}
        for pid in pids:
            status = read_stat(pid)
            if status is not None and status[3] not in "ZX":
                fresh[pid] = status
        moved = True
        while moved and fresh:
            moved = False
            for pid, (parent, session, start, _) in list(fresh.items()):
                if parent != self.root and parent not in self.owner:
                    continue
                del fresh[pid]
                if threads and _is_thread(pid):
                    continue
                if parent == self.root:
                    self.owner[pid] = mains.get(session) or _marked_container(pid)
                else:
                    self.owner[pid] = self.owner[parent]
                self._start[pid] = start
                moved = True
        return set(fresh)

    def _is_same(self, pid: int) -> bool:
        status = read_stat(pid)
        return status is not None and status[2] == self._start.setdefault(pid, status[2])

    def of(self, container: str) -> list[int]:
        return [pid for pid, name in self.owner.items() if name == container]

    def resident(self, pid: int) -> tuple[int, int]:
        """(resident, private) bytes of one process, where private means not backed by a file.

        Zeros when it has ended.
        """
        try:
            fd = self._statm.get(pid)
            if fd is None:
                fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
                if len(self._statm) < STATM_MAX:
                    self._statm[pid] = fd
            fields = os.pread(fd, 256, 0).split()
            if pid not in self._statm:
                os.close(fd)
            return int(fields[1]) * PAGE, (int(fields[1]) - int(fields[2])) * PAGE
        except (OSError, IndexError):
            self._close(pid)
            return 0, 0

    def gone(self, pid: int) -> None:
        self.owner.pop(pid, None)
        self._start.pop(pid, None)
        self._close(pid)

    def _close(self, pid: int) -> None:
        fd = self._statm.pop(pid, None)
        if fd is not None:
            os.close(fd)


def _is_thread(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Tgid:"):
                    return int(line.split()[1]) != pid
    except OSError:
        pass
    return False


def _marked_container(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read()
    except OSError:
        return ""
    mark = CONTAINER_MARK.encode() + b"="
    for part in environ.split(b"\0"):
        if part.startswith(mark):
            return part[len(mark) :].decode("utf-8", "replace")
    return ""
