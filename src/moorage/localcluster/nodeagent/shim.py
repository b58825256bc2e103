"""The shim: one small process per pod that starts its containers and writes down what becomes of them.

Standard library only, single-threaded, and it knows nothing of the API: it lives on while the control plane is
away. `POD_DIR/spec.json` is its order, `POD_DIR/state.json` its report, `POD_DIR/lock` is locked (flock) as long
as any process of the pod may run, and `POD_DIR/stop` asks it to end.

Three processes at start: the *launcher* (which the agent waits for; exit code below), the *guard* and the *shim*
itself. The guard only waits: should the shim be killed, the pod's processes fall to the guard, which kills them.

Launcher's exit code: 0 the shim runs and has written its first state; 3 another shim holds the lock;
4 this pod was started before (state.json exists), so it is never started again; 5 anything else (see shim.log).

What Kubernetes does and this does not: preStop hooks, users (`securityContext`), terminals, cgroups. Memory is
therefore watched (20 to 200 times a second), not fenced: a container may overshoot its limit for some
milliseconds before it is killed.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import re
import select
import signal
import stat
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

VERSION = 1  # of state.json
LAUNCHED, LOCKED, STARTED_BEFORE, BROKEN = 0, 3, 4, 5

BACKOFF_SECONDS = 10.0  # kubelet: second failure waits 10 s, then twice as long each time, up to
BACKOFF_MAX_SECONDS = 300.0  # this; forgotten after a run of twice this long
LOG_MAX_BYTES = 10 * 1024 * 1024  # kubelet's containerLogMaxSize
LOG_MAX_FILES = 5  # kubelet's containerLogMaxFiles
LINE_MAX = 16 * 1024  # longer lines are cut in parts, as CRI runtimes do
PARTIAL_SECONDS = 1.0  # an unfinished line (a progress bar) is written out after this long
WATCH_SECONDS = 0.05  # between two looks at the memory of a container with a limit
WATCH_MIN_SECONDS = 0.005  # when close to the limit or growing fast
WATCH_FREE_SECONDS = 0.5  # without a limit, where only the peak is wanted
ASSUMED_GROWTH = 1024**3  # bytes/s that one process can fill; the watch is never slower than this needs
LIST_SECONDS = 2.0  # between two looks at all processes of the pod
NEW_MIN = 16  # numbers given out since the last look that are read one by one in any case
NEW_MAX = 128  # the same where the kernel has no lists of children; with more, all processes are listed
STATM_MAX = 256  # files kept open to read memory from
SHARED_SECONDS = 1.0  # between two fair countings of shared pages, unless the limit is near
REPORT_SECONDS = 1.0  # at most one state for changed memory figures alone in this time
STOP_LOOK_SECONDS = 1.0  # how often the stop file is looked for, should its signal have been missed
KILL_SECONDS = 10.0  # after this long, processes that SIGKILL did not end are given up (stuck in the kernel)
START_ERROR = 128  # exit code containerd gives a container that could not be started
PAGE = os.sysconf("SC_PAGE_SIZE")
UID_MARK = "MOORAGE_POD_UID"  # environment variables by which processes of a pod are known again
CONTAINER_MARK = "MOORAGE_POD_CONTAINER"

# <sys/prctl.h>, <linux/sched.h>, <sys/mount.h>
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 1, 32, 4096, 16384
MS_NOSUID, MS_NODEV = 2, 4
MS_UNBINDABLE, MS_PRIVATE = 1 << 17, 1 << 18
MS_RELATIME, ST_RELATIME = 1 << 21, 4096  # the one flag whose statvfs bit is not its mount bit
MNT_DETACH = 2
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP)
LINKS_MAX = 40  # symbolic links followed in one path, as the kernel does
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446  # on every architecture
LANDLOCK_CREATE_RULESET_VERSION = LANDLOCK_RULE_PATH_BENEATH = 1
LANDLOCK_ACCESS_FS_MAKE_BLOCK, LANDLOCK_ACCESS_FS_REFER = 1 << 11, 1 << 13
LANDLOCK_ABI_OF_REFER = 2  # Linux 5.19
PR_CAPBSET_DROP = 24
WAYS_BEHIND = {  # <linux/capability.h>: what root needs to look behind a fence; containers do not have them either
    "DAC_READ_SEARCH": 2,  # opens files by their handles, past all mounts
    "SYS_MODULE": 16,
    "SYS_RAWIO": 17,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "PERFMON": 38,  # reads the environment and the memory map of any process
    "BPF": 39,
    "CHECKPOINT_RESTORE": 40,
}
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}


def main(argv: list[str]) -> int:
    """Launch the shim of the pod folder `argv[1]`; see the module for the exit codes.

    `--serve FD …` waits for folders instead and forks a launcher for each; see `serve`.
    `--try-fence FOLDER` says whether pods can be kept from a folder.
    `--enter POD_DIR PID KIND COMMAND…` runs a command beside a container's main process, in its mounts,
    environment and working folder (exec probes). `--exec POD_DIR PID KIND COMMAND…` does so for `kubectl exec`:
    the command ends with whoever started it, and has its standard input as its terminal where that is one.
    KIND is "fenced" or "privileged", as the container.
    """
    if argv[1] in ("--enter", "--exec"):
        parent = os.getppid() if argv[1] == "--exec" else 0
        return enter(argv[2], int(argv[3]), argv[5:], is_privileged=argv[4] == "privileged", parent=parent)
    if argv[1] == "--try-fence":
        return try_fence(argv[2])
    if argv[1] == "--serve":
        return serve(int(argv[2]), argv)
    return launch(argv[1])


def launch(folder: str) -> int:
    """Start the shim of a pod folder, as a process of its own; returns the launcher's exit code."""
    os.chdir(folder)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + 2.0
    while True:  # the agent may be looking at the lock this instant
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > until:
                return LOCKED
            time.sleep(0.01)
    if os.path.exists("state.json"):
        return STARTED_BEFORE
    ready, tell = os.pipe2(os.O_CLOEXEC)
    gc.collect()
    gc.freeze()
    if os.fork() == 0:
        os.close(ready)
        _detach()
        _guard(tell, lock)
    os.close(tell)
    os.close(lock)
    return LAUNCHED if os.read(ready, 1) == b"k" else BROKEN


def serve(sock: int, argv: list[str]) -> int:
    """Launch the shim of every folder that comes over a socket of packets; ends with whoever holds its other end.

    A fork of an interpreter that has loaded all it needs costs a tenth of starting one. Each answer is the exit
    code and the folder. What a launcher complains of goes into the folder's shim.log.
    """
    import socket

    _libc()  # what shims load is loaded once, here
    words = _argument_words()
    with socket.socket(fileno=sock) as channel:
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        poll.register(wake, select.POLLIN)
        launching: dict[int, bytes] = {}
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    _drain(wake)
                    continue
                folder = channel.recv(65536)
                if not folder:
                    return 0
                pid = os.fork()
                if pid:
                    launching[pid] = folder
                    continue
                code = BROKEN
                try:
                    signal.set_wakeup_fd(before)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for end in (sock, wake, wake_write):
                        os.close(end)
                    os.setsid()
                    _name_process(words, argv, folder)
                    _complain_into(os.path.join(folder, b"shim.log"))
                    code = launch(os.fsdecode(folder))
                except BaseException as error:
                    print(f"cannot launch the shim: {error!r}", file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
            while launching:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                code = os.waitstatus_to_exitcode(status)
                channel.send(b"%d %s" % (code, launching.pop(pid)))


def _complain_into(path: bytes) -> None:
    errors = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 2)
    os.close(errors)


def _argument_words() -> tuple[int, int]:
    """Where the kernel finds this process's command line: (address, size in bytes)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46]) - int(fields[45])  # arg_start, arg_end of proc(5)


def _name_process(words: tuple[int, int], argv: list[str], folder: bytes) -> None:
    """Have the command line show the folder, as of a shim that was started by itself: it is known by that."""
    import ctypes

    start, size = words
    shown = b"\0".join((b"podshim", os.fsencode(argv[0]), folder)) + b"\0"
    if len(shown) > size:
        raise OSError(errno.ENAMETOOLONG, "the path of the pod's folder is too long")
    ctypes.memmove(start, shown.ljust(size, b"\0"), size)


def enter(folder: str, pid: int, command: list[str], *, is_privileged: bool, parent: int = 0) -> int:
    """Become `command` as if started by the process `pid`; 126 or 127 when that cannot be done, as shells say.

    `pid` must be the main process of a container of the pod in `folder`: whatever the pod's report says, the
    command runs beside nothing else. It is fenced as the container is: one that `is_privileged` is not.
    With `parent`, end when that process does, and take standard input as the controlling terminal if it is one.
    """
    import termios

    os.umask(0o022)  # as the container's own processes have it, whatever the agent's is
    libc = _libc()
    try:
        process = os.pidfd_open(pid)
        if not _is_main(pid, folder):
            raise StartError(f"process {pid} is not the main process of a container of this pod")
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [one.partition(b"=") for one in file.read().split(b"\0") if one]
        env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        workdir = os.readlink(f"/proc/{pid}/cwd")
        is_apart = os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        namespaces = []
        for kind in ("user", "mnt"):
            if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
                namespaces.append((kind, os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)))
        if select.select([process], [], [], 0)[0]:  # its number may be another's by now
            raise ProcessLookupError(errno.ESRCH, "the container has ended")
        import_no_more()
        for kind, fd in namespaces:
            if libc.setns(fd, 0) != 0:
                raise _os_error(f"setns {kind}")
        try:
            os.chdir(env.get("PWD") or workdir)  # where the container began, wherever its process is now
        except OSError:
            os.chdir(workdir)
        if parent:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                return 126
            if os.isatty(0):
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                env.setdefault("TERM", "xterm")
        path = _find(command[0], env.get("PATH", ""))
        if is_apart and not is_privileged:
            enter_domain()  # as the container: else the command could look behind its fence
    except (OSError, StartError) as error:
        print(error, file=sys.stderr, flush=True)
        return 127 if isinstance(error, StartError) else 126
    try:
        os.execve(path, command, env)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
    return 126


def _is_main(pid: int, folder: str) -> bool:
    """Whether a process is the main one of a container: its parent, the shim, has the lock of the pod's folder.

    The shim itself does not pass for one, though it is a child of its guard, which has the lock too.
    Raises OSError.
    """
    status = read_stat(pid)
    lock = os.path.join(os.path.realpath(folder), "lock")
    return status is not None and not _has_open(pid, lock) and _has_open(status[0], lock)


def _has_open(pid: int, path: str) -> bool:
    """Whether a process has this file open, which may have been removed since. Raises OSError."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}") in (path, f"{path} (deleted)"):
                return True
        except FileNotFoundError:
            continue  # closed meanwhile
    return False


def import_no_more() -> None:
    """Have every later import fail: among a pod's mounts the files of modules are whatever the pod wants.

    What is imported there would run before the fence is entered.
    """
    for finders in (sys.meta_path, sys.path_hooks, sys.path):
        finders.clear()
    sys.path_importer_cache.clear()


def _detach() -> None:
    """A session of its own, no terminal, errors into shim.log; signals meant for terminals are ignored."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open("shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    for fd in (null, errors):
        if fd > 2:
            os.close(fd)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def _guard(tell: int, lock: int) -> None:
    """Start the shim and wait for it; if it was killed, kill all it leaves behind. Does not return.

    The lock is held by both, so a free lock means: nothing of this pod runs.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Shim(os.getcwd(), lock, tell).run()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(tell)
    while True:
        try:
            pid, status = os.waitpid(child, 0)
        except InterruptedError:
            continue
        break
    if pid == child and status != 0:
        kill_descendants(os.getpid())
    os._exit(0)


def prctl(option: int, value: int) -> None:
    libc = _libc()
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise _os_error(f"prctl {option}")


_LIBC: list[Any] = []


def _libc() -> Any:
    if not _LIBC:
        import ctypes

        _LIBC.append(ctypes.CDLL(None, use_errno=True))
    return _LIBC[0]


def _os_error(what: str) -> OSError:
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def stamp(moment: float | None = None) -> str:
    """RFC 3339 in UTC with microseconds."""
    now = time.time() if moment is None else moment
    whole = int(now)
    parts = time.gmtime(whole)
    return time.strftime("%Y-%m-%dT%H:%M:%S", parts) + f".{int((now - whole) * 1e6):06d}Z"


# ---------------------------------------------------------------------------------------------- processes


def read_stat(pid: int) -> tuple[int, int, int, str] | None:
    """(parent, session, start in clock ticks since boot, state letter) of a process, or None when it is gone."""
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


def descendants(root: int) -> set[int]:
    """All living descendants of a process; zombies are not counted."""
    parents: dict[int, int] = {}
    zombies: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = read_stat(int(name))
            if found is not None:
                parents[int(name)] = found[0]
                if found[3] in "ZX":
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
    """SIGTERM, and SIGCONT only to a process that is stopped: two signals at once may both be handed to another
    thread than the one that waits for them, and a Python program's handler then does not run."""
    send(pid, signal.SIGTERM)
    found = read_stat(pid)
    if found is not None and found[3] == "T":
        send(pid, signal.SIGCONT)


def may_have_children(besides: Collection[int] = ()) -> bool:
    """Whether this process, which has one thread, has children (zombies count) other than these.

    Whatever a process leaves behind falls to its subreaper, so without children nothing of it is left, and nobody
    else needs to be looked at. One empty answer can be relied on, a long one cannot (proc_tid_children(5)); True
    on a kernel that does not tell.
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
    """SIGKILL all descendants of this process and reap those that fell to it, until none is left."""
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
    """The processes below the shim, and which container each belongs to.

    A look reads only the processes whose numbers were given out since the last one (the kernel tells the newest
    in /proc/loadavg). Where others start more than this pod has threads, and every `LIST_SECONDS`, the kernel's
    lists of children are followed from the shim down, so that hundreds of pods do not each read what every other
    one starts. All of /proc is listed only when forced, and on a kernel without such lists.
    A process of ours keeps its container even when its parent ended and it fell to the shim; one never seen
    before that fell to the shim is known by its session or by the mark in its environment.
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
        """Bring `owner` up to date. `mains`: pid of each container's main process → its name.

        After a forced look, no number in `owner` stands for a later process of somebody else.
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
        """Find what is new, and what is gone, by the lists of children. One that is missed, as it was started or
        lost a sibling this instant, is found at the next walk."""
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
        """Children of all threads of a process; none when it is gone."""
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
        """Find out which of these are ours; returns the others. `threads`: some numbers may be threads'."""
        fresh: dict[int, tuple[int, int, int, str]] = {}
        for pid in pids:
            found = read_stat(pid)
            if found is not None and found[3] not in "ZX":
                fresh[pid] = found
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
        found = read_stat(pid)
        return found is not None and found[2] == self._start.setdefault(pid, found[2])

    def of(self, container: str) -> list[int]:
        return [pid for pid, name in self.owner.items() if name == container]

    def resident(self, pid: int) -> tuple[int, int]:
        """(resident, of it private to nobody's file: anonymous) bytes of one process; zeros when it is gone."""
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
    for one in environ.split(b"\0"):
        if one.startswith(mark):
            return one[len(mark) :].decode("utf-8", "replace")
    return ""


# ---------------------------------------------------------------------------------------------- memory


def proportional(pid: int) -> int | None:
    """Bytes of one process with each shared page divided among those who share it; None when it is not ours to
    read.

    Pages backed by files are left out where the kernel tells them apart (5.10 and newer): they can be dropped at
    any time, and a cgroup would not kill for them.
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
        return 0  # gone
    if anon is not None and shmem is not None:
        return (anon + shmem) * 1024
    return (total or 0) * 1024


class Watch:
    """The memory of one container's process tree against its limit.

    One process: its resident pages. Several: shared pages are counted once by `proportional`, which is slow and
    so is done once a second, and sooner when the growth of the resident sum says that the limit or the peak may be
    passed. Nobody is killed before a fair count, or its own anonymous pages alone, have said so.
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
        """Measure; True when the limit is exceeded."""
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
            # what cannot be read counts in full: better too much than unwatched
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


# ---------------------------------------------------------------------------------------------- logs


class Log:
    """One attempt's log in CRI format, `<RFC3339Nano> stdout|stderr F|P text`, rotated by size.

    `0.log` is written to; `0.log.1` is the newest of the full ones. A full disk loses lines, not the container.
    https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md
    """

    def __init__(self, path: str, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes, self._max_files = max_bytes, max_files
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._rest: dict[bytes, bytes] = {}
        self._since: dict[bytes, float] = {}

    def feed(self, stream: bytes, data: bytes) -> None:
        """Bytes as they came from the container."""
        data = self._rest.pop(stream, b"") + data
        lines = data.split(b"\n")
        rest = lines.pop()
        at = _nano()
        full, part = at + b" " + stream + b" F ", at + b" " + stream + b" P "
        out: list[bytes] = []
        for line in lines:
            while len(line) > LINE_MAX:
                out.append(part + line[:LINE_MAX])
                line = line[LINE_MAX:]
            out.append(full + line)
        while len(rest) >= LINE_MAX:
            out.append(part + rest[:LINE_MAX])
            rest = rest[LINE_MAX:]
        if rest:
            self._rest[stream] = rest
            self._since[stream] = time.monotonic()
        self._write(out)

    def flush(self, *, older_than: float = 0.0) -> None:
        """Write out unfinished lines that have waited `older_than` seconds; at 0 the stream has ended."""
        now = time.monotonic()
        for stream in list(self._rest):
            if now - self._since[stream] >= older_than:
                kind = b" P " if older_than else b" F "
                self._write([_nano() + b" " + stream + kind + self._rest.pop(stream)])

    def waits(self) -> bool:
        return bool(self._rest)

    def tail(self, max_bytes: int, max_lines: int) -> str:
        """The end of the log as text, for the termination message."""
        try:
            with open(self._path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - 4 * max_bytes))
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return ""
        text = b"".join(
            parts[3] + (b"\n" if parts[2] == b"F" else b"")
            for parts in (line.split(b" ", 3) for line in lines[-max_lines:])
            if len(parts) == 4
        )
        return text[-max_bytes:].decode("utf-8", "replace")

    def close(self) -> None:
        self.flush()
        os.close(self._fd)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            start, size = 0, self._size
            for at, line in enumerate(lines):
                if size and size + len(line) + 1 > self._max_bytes:
                    self._append(lines[start:at])
                    self._rotate()
                    start, size = at, 0
                size += len(line) + 1
            self._append(lines[start:])
        except OSError as error:
            print(stamp(), "log lines lost:", error, file=sys.stderr, flush=True)

    def _append(self, lines: list[bytes]) -> None:
        if lines:
            self._size += os.write(self._fd, b"\n".join(lines) + b"\n")

    def _rotate(self) -> None:
        for number in range(self._max_files - 1, 0, -1):
            older = f"{self._path}.{number - 1}" if number > 1 else self._path
            try:
                os.rename(older, f"{self._path}.{number}")
            except FileNotFoundError:
                pass
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = 0


def _nano() -> bytes:
    nanos = time.time_ns()
    whole, rest = divmod(nanos, 10**9)
    return (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{rest:09d}Z").encode()


# ---------------------------------------------------------------------------------------------- mounts


class MountRefused(Exception):
    """The kernel does not let this user make mount namespaces."""


class MountFailed(Exception):
    """One volume could not be mounted."""


def enter_mounts(
    mounts: list[dict[str, Any]],
    workdir: str,
    home: str,
    scratch: str,
    *,
    hidden: str = "",
    kept: str = "",
    inode: list[int] | None = None,
) -> None:
    """Give this process (just forked) a mount namespace with every volume in its place and `hidden` empty.

    `mounts`: {mountPath, hostPath, subPath, readOnly}. `scratch` is an existing empty folder, or one in `hidden`.
    `kept`: the folder in `hidden` that stays as it is, if there is one. `inode`: see `open_hidden`.

    The volumes are opened first, then the folder is hidden; the rest is done behind the fence, so that no mount
    point that a pod chooses leads into the folder. Mount points that do not exist: the folder is made when it lies
    below the working folder or the home folder (these must stay writable as they are); otherwise the root is built
    anew from binds of what is there, and its rebuilt levels are read-only, so that nothing can be written where it
    would vanish.

    Raises FenceRefused when the folder cannot be hidden, MountFailed when a volume cannot be mounted; without
    `hidden`, MountRefused when the kernel does not allow it.
    """
    try:
        leave_mounts()
    except OSError as error:
        raise (FenceRefused if hidden else MountRefused)(str(error)) from error
    points = [Point(one) for one in mounts]
    try:
        folder = open_hidden(hidden, inode) if hidden else -1
    except OSError as error:
        raise FenceRefused(str(error)) from error
    for point in points:
        point.open(hidden, folder)
    if hidden:
        try:
            cover(hidden, folder, kept, scratch if mounts else "")
        except OSError as error:
            raise FenceRefused(str(error)) from error
    try:
        _mount_volumes(points, [folder for folder in (workdir, home) if os.path.isdir(folder)], scratch, hidden)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES) and not hidden:
            raise MountRefused(str(error)) from error
        raise MountFailed(f"cannot mount the volumes: {error}") from error


def _mount_volumes(points: list[Point], writable: list[str], scratch: str, hidden: str) -> None:
    """Bind every volume to its place. `writable`: folders in which missing mount points are made."""
    if not points:
        return
    for one in points:
        one.target = os.path.realpath(one.target)
    points.sort(key=lambda one: one.target.count("/"))
    writable = [os.path.realpath(folder) for folder in writable]
    missing: list[Point] = []
    for one in points:
        if os.path.lexists(one.target) or any(_below(one.target, other.target) for other in points):
            continue
        is_hidden = hidden and _below(one.target, os.path.realpath(hidden))
        if not is_hidden and any(_below(one.target, folder) for folder in writable):
            _make_point(one.target, one.is_folder)
        else:
            missing.append(one)
    root = ""
    if missing:
        root = scratch
        _build_root(root, missing)
    os.chdir("/proc/self/fd")  # see `_bind`
    for one in points:
        _bind_volume(one, root)
    if root:
        _mount(None, root, None, MS_PRIVATE)
        _pivot(root)
        _mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


class Point:
    """One volume and its place. `target` has no symbolic links once the volumes are mounted: followed inside a new
    root, an absolute one would lead back to the old root."""

    def __init__(self, mount: dict[str, Any]) -> None:
        self.target: str = mount["mountPath"]
        self.volume: str = mount["hostPath"]
        self.below: str = mount.get("subPath") or ""
        self.read_only = bool(mount.get("readOnly"))
        self.fd = -1
        self.is_folder = False

    def open(self, hidden: str = "", folder: int = -1) -> None:
        """A volume in the folder `hidden` is opened from there: it is open as `folder`. Raises MountFailed."""
        what = f'mounting "{host_path(self.volume, self.below)}" to "{self.target}"'
        try:
            if hidden and (self.volume == hidden or _below(self.volume, hidden)):
                self.fd = open_volume(_inside(hidden, self.volume), self.below, folder)
            else:
                self.fd = open_volume(self.volume, self.below)
        except OSError as error:
            raise MountFailed(f"{what}: {os.strerror(error.errno or 0).lower()}") from error
        except SubPathRefused as error:
            raise MountFailed(f"{what}: {error}") from error
        self.is_folder = stat.S_ISDIR(os.fstat(self.fd).st_mode)


class SubPathRefused(Exception):
    """A subPath does not lead to a place in its volume."""


def _inside(folder: str, path: str) -> str:
    """The path from the folder on."""
    return path[len(folder) :].strip("/") or "."


def open_volume(volume: str, below: str, folder: int | None = None) -> int:
    """Open a volume, or what lies at the path `below` in it, with O_PATH; missing folders are made in it.

    Symbolic links are followed while they stay in the volume, so a pod that mounts it cannot lead us out of it:
    each step opens one name of the folder that is open and follows no link, whatever is renamed meanwhile. Raises
    OSError and SubPathRefused.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    path = [os.open(volume, os.O_PATH | os.O_CLOEXEC, dir_fd=folder)]  # all that is open, from the volume down
    names = below.split("/")[::-1]
    links = 0
    try:
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if len(path) == 1:
                    raise SubPathRefused(f'subPath "{below}" follows a symbolic link that leads out of the volume')
                os.close(path.pop())
                continue
            try:
                fd = os.open(name, flags, dir_fd=path[-1])
            except FileNotFoundError:
                try:
                    os.mkdir(name, dir_fd=path[-1])
                except FileExistsError:
                    pass  # another container was faster
                fd = os.open(name, flags, dir_fd=path[-1])
            path.append(fd)
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                target = os.readlink("", dir_fd=fd)
                os.close(path.pop())
                links += 1
                if links > LINKS_MAX:
                    raise SubPathRefused(f'subPath "{below}" follows more than {LINKS_MAX} symbolic links')
                if target.startswith("/"):
                    raise SubPathRefused(
                        f'subPath "{below}" follows the absolute symbolic link "{name}": links in a volume must be'
                        " relative and stay in it"
                    )
                names.extend(reversed(target.split("/")))
        return path.pop()
    finally:
        for fd in path:
            os.close(fd)


def host_path(volume: str, below: str) -> str:
    return f"{volume}/{below}" if below else volume


def _below(path: str, folder: str) -> bool:
    folder = os.path.normpath(folder)
    return path != folder and (folder == "/" or path.startswith(folder + "/"))


def _make_point(path: str, folder: bool) -> None:
    if folder:
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _bind_volume(one: Point, root: str) -> None:
    target = root + one.target
    if not os.path.lexists(target):  # inside another volume
        _make_point(target, one.is_folder)
    _bind(one.fd, target, host_path(one.volume, one.below))
    if one.read_only:
        # of a place in another volume, the pod may change the path meanwhile
        top = os.open(target, os.O_PATH | os.O_CLOEXEC)
        if not os.path.samestat(os.fstat(top), os.fstat(one.fd)):
            raise MountFailed(f'the mount point "{one.target}" was replaced while its volume was mounted')
        kept = os.fstatvfs(top).f_flag
        flags = kept & (2 | 4 | 8 | 1024 | 2048) | (MS_RELATIME if kept & ST_RELATIME else 0)
        _mount("none", str(top), None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def _bind(fd: int, target: str, shown: str) -> None:
    """Bind what is open, with all below it; `shown` names it in errors.

    The current folder must be /proc/self/fd: it is there even when a volume lies over /proc.
    """
    try:
        _mount(str(fd), target, None, MS_BIND | MS_REC)
    except OSError as error:
        raise OSError(error.errno, f'mounting "{shown}" to "{target}": {os.strerror(error.errno or 0)}') from error


def _build_root(root: str, missing: list[Point]) -> None:
    """Fill a tmpfs at `root` with binds of all that is in /, and with folders for the missing mount points."""
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m,nr_inodes=65536")
    _mount(None, root, None, MS_UNBINDABLE)  # so that binding the folder it lies in does not bind it too
    _fill_level(root, "/", [one.target for one in missing])
    for one in missing:
        _make_point(root + one.target, one.is_folder)


def _fill_level(root: str, level: str, missing: list[str]) -> None:
    prefix = level if level == "/" else level + "/"
    for name in os.listdir(level):
        path = prefix + name
        new = root + path
        if os.path.islink(path):
            os.symlink(os.readlink(path), new)
        elif os.path.isdir(path):
            os.mkdir(new)
            if any(_below(point, path) for point in missing):
                _fill_level(root, path, missing)
            else:
                _mount(path, new, None, MS_BIND | MS_REC)
        else:
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o644))
            _mount(path, new, None, MS_BIND | MS_REC)


def _pivot(root: str) -> None:
    libc = _libc()
    os.chdir(root)
    number = PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(errno.EPERM, f"pivot_root is not known on {os.uname().machine}")
    if libc.syscall(number, b".", b".") != 0:
        raise _os_error("pivot_root")
    if libc.umount2(b".", MNT_DETACH) != 0:
        raise _os_error("umount2")
    os.chdir("/")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    import ctypes

    def raw(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    if _libc().mount(raw(source), raw(target), raw(kind), ctypes.c_ulong(flags), raw(data)) != 0:
        raise _os_error(f'mounting "{source or kind or "none"}" to "{target}"')


# ------------------------------------------------------------------------------------------------------ the fence


class FenceRefused(Exception):
    """The kernel does not let this user hide a folder from a process."""


def open_hidden(hidden: str, inode: list[int] | None) -> int:
    """Open the folder that is to be hidden, so that what lies in it is opened and hidden under no other path.

    `inode`: its device and number, where they are known: a pod may have renamed a folder above it and made another
    one at its path. Raises OSError.
    """
    folder = os.open(hidden, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(folder)
    if inode and inode != [status.st_dev, status.st_ino]:
        raise OSError(errno.ESTALE, f'"{hidden}" is another folder than when the cluster was started')
    return folder


def cover(hidden: str, folder: int, kept: str = "", made: str = "") -> None:
    """Lay an empty, read-only file system over a folder, but for the folder `kept` below it if that exists.

    The folder is open as `folder`. `made`: a folder below it that is made anew, empty.

    A Landlock domain (`enter_domain`) must follow: it keeps the process from taking the file system away, and from
    the back door: a process outside of the domain, whose /proc/PID/root shows the folder as it is, cannot be
    looked into. Raises OSError.

    https://docs.kernel.org/userspace-api/landlock.html (ptrace restrictions, changes of the mount topology)
    """
    try:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        own = os.open(_inside(hidden, kept), flags, dir_fd=folder) if _below(kept, hidden) else -1
    except FileNotFoundError:
        own = -1
    _mount("tmpfs", f"/proc/self/fd/{folder}", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k,nr_inodes=64")
    if made:
        os.makedirs(made, exist_ok=True)
    if own >= 0:
        os.makedirs(kept, exist_ok=True)
        os.chdir("/proc/self/fd")  # see `_bind`
        _bind(own, kept, kept)
        os.close(own)
    _mount("none", hidden, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def leave_mounts() -> None:
    """Give this process a mount namespace of its own, in a user namespace where that is needed. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    libc = _libc()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
            raise _os_error("unshare")
        _write_proc("setgroups", "deny")
        _write_proc("uid_map", f"{user} {user} 1")
        _write_proc("gid_map", f"{group} {group} 1")
    _mount(None, "/", None, MS_REC | MS_PRIVATE)


def enter_domain() -> bool:
    """Put this process into a Landlock domain of its own; False when the kernel has none, or it is turned off.

    A domain of Linux before 5.19 is not taken either: it forbids to move or link files from one folder to another,
    as every domain does without a rule that allows it.

    The domain forbids one kind of access to files, as it must: making block devices, by which root could read the
    disk itself. What the process executes next is also without the capabilities to look behind a fence, should it
    be root's. Needs CAP_SYS_ADMIN in its user namespace, which whoever has just made one has. Raises OSError.
    """
    import ctypes

    libc = _libc()
    for number in WAYS_BEHIND.values():
        # fails for who has none, and for one the kernel does not know
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    if abi < LANDLOCK_ABI_OF_REFER:
        if abi > 0 or ctypes.get_errno() in (errno.ENOSYS, errno.EOPNOTSUPP):
            return False
        raise _os_error("landlock_create_ruleset")
    handled = ctypes.c_uint64(LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_REFER)
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        raise _os_error("landlock_create_ruleset")
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # struct landlock_path_beneath_attr, which is packed
        everywhere = ctypes.create_string_buffer(struct.pack("=Qi", LANDLOCK_ACCESS_FS_REFER, root), 12)
        if libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, everywhere, 0) != 0:
            raise _os_error("landlock_add_rule")
        if libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0) != 0:
            raise _os_error("landlock_restrict_self")
    finally:
        os.close(root)
        os.close(ruleset)
    return True


def try_fence(folder: str) -> int:
    """For a process of its own: print whether pods can be fenced from a folder: fully, partly, or why not.

    Exit code 1: that is not known. Only what the kernel refuses tells; a folder that cannot be opened or something
    that ran short may be a pod's work.
    """
    try:
        os.close(os.open(folder, os.O_PATH | os.O_DIRECTORY))
    except OSError as error:
        print(error)
        return 1
    try:
        leave_mounts()
        cover(folder, open_hidden(folder, None))
        print("fully" if enter_domain() else "partly")
    except OSError as error:
        print(error)
        is_shortage = error.errno in (errno.ENOSPC, errno.EUSERS)
        return 0 if error.errno in REFUSALS or (is_shortage and not namespaces_allowed()) else 1
    return 0


def namespaces_allowed() -> bool:
    """Whether this machine's settings allow the namespaces of a fence; True when they do not tell."""
    for name in ("max_mnt_namespaces", "max_user_namespaces"):
        try:
            with open(f"/proc/sys/user/{name}", "rb") as file:
                if int(file.read()) == 0:
                    return False
        except (OSError, ValueError):
            continue
    return True


def _write_proc(name: str, text: str) -> None:
    fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def translate(text: str, mounts: list[dict[str, Any]]) -> str:
    """Replace mount paths by host paths where a path begins with one: for machines without namespaces.

    "/data" is replaced in "/data", "/data/x", "--in=/data:/y", "cat '/data/x'"; not in "/database", "/my/data".
    """
    table = {
        os.path.normpath(one["mountPath"]): host_path(one["hostPath"], one.get("subPath") or "") for one in mounts
    }
    if not table:
        return text
    longest = sorted(table, key=len, reverse=True)
    pattern = r"(?<![\w./~-])(" + "|".join(re.escape(one) for one in longest) + r")(?=$|[^\w.~-]|\.(?:\W|$))"
    return re.sub(pattern, lambda found: str(table[found[1]]), text)


# ---------------------------------------------------------------------------------------------- containers


class StartError(Exception):
    """A container's process could not be started; the text is the message for its status."""


class Container:
    """One container of the pod and its current attempt."""

    def __init__(self, spec: dict[str, Any], role: str) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.role = role  # init, sidecar or app
        self.attempt = -1
        self.pid = 0
        self.reason_pending = ""  # why it is being killed, when it is the shim that kills
        self.message_pending = ""
        self.started_wall = 0.0
        self.watch = Watch(spec.get("memoryLimitBytes"))
        self.log: Log | None = None
        self.pipes: dict[int, bytes] = {}
        self.kill_at: float | None = None  # monotonic moment of SIGKILL after an order to restart
        self.restart_seen = 0  # mtime of the last such order
        self.backoff = 0.0  # seconds the next failure waits; 0: none so far
        self.start_at: float | None = 0.0 if role == "app" else None  # monotonic; None: not to be started
        self.done = False  # will not run again
        self.failed = False
        self.report: dict[str, Any] = {
            "name": self.name,
            "role": role,
            "restartCount": 0,
            "pid": 0,
            "peakMemoryBytes": 0,
            "memoryBytes": 0,
            "state": {"waiting": {"reason": "PodInitializing"}},
            "lastState": {},
        }

    @property
    def running(self) -> bool:
        return self.pid != 0


class Shim:
    """Runs the pod to its end. All times that must survive a suspended laptop are wall-clock."""

    def __init__(self, folder: str, lock: int, tell: int) -> None:
        self._folder = folder
        self._lock = lock
        self._tell = tell
        with open("spec.json", "rb") as file:
            self._spec: dict[str, Any] = json.load(file)
        spec = self._spec
        self._policy: str = spec.get("restartPolicy") or "Always"
        self._grace = float(spec.get("terminationGracePeriodSeconds", 30))
        self._inits = [
            Container(one, "sidecar" if one.get("restartPolicy") == "Always" else "init")
            for one in spec.get("initContainers") or []
        ]
        self._apps = [Container(one, "app") for one in spec["containers"]]
        self._all = self._inits + self._apps
        self._by_pid: dict[int, Container] = {}
        self._tree = Tree(os.getpid())
        self._poll = select.poll()
        self._seq = 0
        self._dirty = True
        self._unsaved_memory_since: float | None = None
        self._mounts = "none"
        self._mounts_error = ""
        self._fence_error = str(spec.get("fenceError") or "")
        self._pod: dict[str, Any] = {"phase": "Pending", "startedAt": stamp(), "finishedAt": None}
        self._deadline = spec.get("deadlineEpoch")
        self._stop_at: float | None = None  # monotonic moment of SIGKILL; None: not stopping
        self._stop_mtime = 0
        self._stop_look = 0.0
        self._stop_reason = ""
        self._stop_message = ""
        self._stop_why = ""
        self._terms: set[str] = set()
        self._retry_save = 0.0

    # -- the loop

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_poke)
        self._poll.register(wake, select.POLLIN)
        self._save()
        if self._retry_save:
            raise OSError("the first state could not be written")  # it guards against a second start
        os.write(self._tell, b"k")
        os.close(self._tell)
        while not self._step():
            for fd, _ in self._wait():
                if fd == wake:
                    _drain(wake)
                else:
                    self._read(fd)
            self._reap()
            self._watch()
        self._finish()

    def _wait(self) -> list[tuple[int, int]]:
        if self._dirty:
            self._save()
        now = time.monotonic()
        wall = time.time()
        due = [now + STOP_LOOK_SECONDS]
        for one in self._all:
            if one.running:
                due.append(one.watch.due)
                if one.kill_at is not None:
                    due.append(one.kill_at)
                if one.log is not None and one.log.waits():
                    due.append(now + PARTIAL_SECONDS)
            elif one.start_at is not None:
                due.append(one.start_at)
        if self._stop_at is not None:
            due.append(self._stop_at)
        if self._deadline is not None:
            due.append(now + self._deadline - wall)
        pause = max(0.0, min(due) - now)
        return self._poll.poll(int(pause * 1000) + (1 if pause > 0 else 0))

    def _on_term(self, *_: object) -> None:
        self._stop_look = 0.0
        if self._stop_at is None and not os.path.exists("stop"):
            self._stop(self._grace, "", "", "SIGTERM")

    def _on_poke(self, *_: object) -> None:
        self._stop_look = 0.0

    # -- what to do next

    def _step(self) -> bool:
        """Start, stop and time out what is due; True when the pod has ended."""
        now = time.monotonic()
        if now >= self._stop_look:
            self._stop_look = now + STOP_LOOK_SECONDS
            self._look_for_stop()
            for one in self._all:
                self._look_for_restart(one)
        for one in self._all:
            if one.kill_at is not None and now >= one.kill_at:
                one.kill_at = now + KILL_SECONDS
                self._kill(one)
        if self._deadline is not None and time.time() >= self._deadline:
            self._deadline = None
            self._stop(
                self._grace,
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
                "deadline",
            )
        if self._stop_at is not None:
            return self._step_stopping(now)
        ready = self._step_inits(now)
        if self._pod.get("outcome"):
            return self._step_ending(now)
        if ready:
            for one in self._apps:
                self._start_if_due(one, now)
            if all(one.done and not one.running for one in self._apps):
                failed = any(one.failed for one in self._apps)
                self._pod["outcome"] = "Failed" if failed else "Succeeded"
                return self._step_ending(now)
        return False

    def _step_inits(self, now: float) -> bool:
        """Run init containers in order; True once all are done (sidecars: started)."""
        for one in self._inits:
            if one.role == "sidecar":
                if one.attempt < 0 and one.start_at is None:
                    one.start_at = now
                self._start_if_due(one, now)
                if one.attempt < 0 or (not one.running and one.report["restartCount"] == 0 and one.failed):
                    return False
                continue
            if one.done:
                if one.failed:
                    self._pod["outcome"] = "Failed"
                    return False
                continue
            if not one.running and one.attempt < 0 and one.start_at is None:
                one.start_at = now
            self._start_if_due(one, now)
            return False
        return True

    def _step_ending(self, now: float) -> bool:
        """The outcome is known; end what still runs (sidecars, other containers' leftovers)."""
        left = [one for one in self._all if one.running]
        if not left:
            return True
        self._stop(self._grace, "", "", "ended")
        return self._step_stopping(now)

    def _step_stopping(self, now: float) -> bool:
        for one in self._all:
            one.start_at = None
        running = [one for one in self._all if one.running]
        if not running:
            return True
        mains = [one for one in running if one.role != "sidecar"]
        for one in mains or running:
            if one.name not in self._terms:
                self._terms.add(one.name)
                ask_to_end(one.pid)
        assert self._stop_at is not None
        if now >= self._stop_at:
            for one in running:
                self._kill(one)
            self._stop_at = now + KILL_SECONDS
        return False

    def _look_for_stop(self) -> None:
        """Read the stop file: {"graceSeconds", "reason", "message"}; a later one may only shorten the time.

        A pod whose folder was removed under it is out of everybody's sight: it ends at once.
        """
        if self._is_removed():
            self._stop(0.0, "", "", "folder removed")
            return
        try:
            mtime = os.stat("stop").st_mtime_ns
            if mtime == self._stop_mtime:
                return
            with open("stop", "rb") as file:
                order = json.load(file)
        except (OSError, ValueError):
            return
        self._stop_mtime = mtime
        self._stop(float(order["graceSeconds"]), order.get("reason", ""), order.get("message", ""), "asked")

    def _is_removed(self) -> bool:
        return not os.path.exists("spec.json")

    def _look_for_restart(self, one: Container) -> None:
        """Read `restart.<container>`: {"attempt", "graceSeconds"}: end that attempt; the policy decides on."""
        try:
            path = f"restart.{one.name}"
            mtime = os.stat(path).st_mtime_ns
            if mtime == one.restart_seen:
                return
            with open(path, "rb") as file:
                order = json.load(file)
        except (OSError, ValueError):
            return
        one.restart_seen = mtime
        if one.running and one.attempt == order["attempt"] and one.kill_at is None:
            one.kill_at = time.monotonic() + float(order["graceSeconds"])
            ask_to_end(one.pid)

    def _stop(self, grace: float, reason: str, message: str, why: str) -> None:
        at = time.monotonic() + max(0.0, grace)
        if self._stop_at is None:
            self._stop_reason, self._stop_message, self._stop_why = reason, message, why
            self._stop_at = at
            self._pod["stopping"] = why
            self._dirty = True
        else:
            if why == "asked" and self._stop_why == "ended":
                self._stop_why = why
            self._stop_at = min(self._stop_at, at)

    # -- one container

    def _start_if_due(self, one: Container, now: float) -> None:
        if one.running or one.start_at is None or now < one.start_at:
            return
        one.start_at = None
        one.attempt += 1
        if one.attempt > 0:
            one.report["restartCount"] += 1
            terminated = one.report["state"].get("terminated") or one.report.get("ended")
            if terminated:
                one.report["lastState"] = {"terminated": terminated}
        one.reason_pending = one.message_pending = ""
        one.watch = Watch(one.spec.get("memoryLimitBytes"))
        path = os.path.join(self._folder, "logs", one.name, f"{one.attempt}.log")
        one.report["attempt"] = one.attempt
        one.report["containerID"] = f"{self._spec['uid']}/{one.name}/{one.attempt}"
        try:
            one.log = Log(
                path,
                int(self._spec.get("logMaxBytes") or LOG_MAX_BYTES),
                int(self._spec.get("logMaxFiles") or LOG_MAX_FILES),
            )
            self._spawn(one)
        except StartError as error:
            self._ended(one, START_ERROR, 0, "StartError", str(error), started=False)
            return
        except OSError as error:
            self._ended(one, START_ERROR, 0, "StartError", f"cannot start: {error}", started=False)
            return
        one.started_wall = time.time()
        one.report["pid"] = one.pid
        one.report["state"] = {"running": {"startedAt": stamp(one.started_wall)}}
        one.report.pop("ended", None)
        if self._pod["phase"] == "Pending" and one.role == "app":
            self._pod["phase"] = "Running"
        self._by_pid[one.pid] = one
        one.watch.due = time.monotonic() + 0.01
        self._dirty = True

    def _spawn(self, one: Container) -> None:
        """Fork and exec; raises StartError with containerd's words.

        A container that must not see a folder starts behind a fence or not at all. For the others a refused
        namespace falls back to translated paths, for the rest of the pod's life.
        """
        mounts = one.spec.get("mounts") or []
        hidden = str(one.spec.get("hidden") or "")
        mode = "none"
        if mounts:
            mode = str(self._spec.get("mountMode") or "namespace")
            if self._mounts == "translated" and not hidden:
                mode = "translated"
        kind, text = self._fork(one, mode, hidden)
        if kind == "unfenced":
            raise StartError(
                f'the folder "{hidden}" of the cluster cannot be hidden from the container, so it is not started:'
                f" {text}; start the cluster again if the settings of this machine have changed"
            )
        if kind == "refused":
            self._mounts_error = text
            mode = "translated"
            kind, text = self._fork(one, mode, hidden)
        if mounts and self._mounts != "translated":
            self._mounts = mode
        if kind:
            raise StartError(text)

    def _fork(self, one: Container, mode: str, hidden: str) -> tuple[str, str]:
        spec = one.spec
        argv: list[str] = list(spec["argv"])
        env: dict[str, str] = dict(spec["env"])
        workdir: str = spec["workingDir"]
        mounts: list[dict[str, Any]] = spec.get("mounts") or []
        if mode == "translated":
            argv = [translate(text, mounts) for text in argv]
            env = {name: translate(text, mounts) for name, text in env.items()}
            workdir = translate(workdir, mounts)
        env[UID_MARK] = self._spec["uid"]
        env[CONTAINER_MARK] = one.name
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        tell_read, tell_write = os.pipe2(os.O_CLOEXEC)
        scratch = ""
        if mode == "namespace":
            scratch = os.path.join(self._folder, "root", one.name)
            if not hidden:
                os.makedirs(scratch, exist_ok=True)
        shim = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)
                os.dup2(out_write, 1)
                os.dup2(err_write, 2)
                os.umask(0o022)
                if mode == "translated":
                    for mount in mounts:
                        Point(mount).open()  # its subPath is made as with namespaces
                if mode != "namespace":
                    mounts = []
                kept = os.path.join(self._folder, "work", one.name)
                inode = self._spec.get("hiddenInode")
                _exec(argv, env, workdir, mounts, scratch, spec, shim, hidden, kept, inode)
            except FenceRefused as error:
                os.write(tell_write, b"unfenced\0" + str(error).encode())
            except MountRefused as error:
                os.write(tell_write, b"refused\0" + str(error).encode())
            except (MountFailed, StartError) as error:
                os.write(tell_write, b"start\0" + str(error).encode())
            except BaseException as error:
                os.write(tell_write, b"start\0" + repr(error).encode())
            finally:
                os._exit(START_ERROR)
        for fd in (out_write, err_write, tell_write):
            os.close(fd)
        answer = b""
        while chunk := os.read(tell_read, 65536):
            answer += chunk
        os.close(tell_read)
        if answer:
            os.waitpid(pid, 0)
            os.close(out_read)
            os.close(err_read)
            kind, _, text = answer.partition(b"\0")
            return kind.decode(), text.decode("utf-8", "replace")
        for fd, stream in ((out_read, b"stdout"), (err_read, b"stderr")):
            os.set_blocking(fd, False)
            one.pipes[fd] = stream
            self._poll.register(fd, select.POLLIN)
        one.pid = pid
        return "", ""

    def _read(self, fd: int, chunks: int = 4) -> bool:
        """Move what a container wrote into its log; True when there is nothing more to come now."""
        for one in self._all:
            stream = one.pipes.get(fd)
            if stream is None:
                continue
            for _ in range(chunks):
                try:
                    data = os.read(fd, 65536)
                except BlockingIOError:
                    return True
                except InterruptedError:
                    continue
                if not data:
                    self._close_pipe(one, fd)
                    return True
                if one.log is not None:
                    one.log.feed(stream, data)
            return False
        return True

    def _close_pipe(self, one: Container, fd: int) -> None:
        self._poll.unregister(fd)
        os.close(fd)
        del one.pipes[fd]

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            one = self._by_pid.pop(pid, None)
            if one is None:
                self._tree.gone(pid)
                continue
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            code = 128 + number if number else os.WEXITSTATUS(status)
            self._collect(one)
            reason, message = "Completed" if code == 0 else "Error", ""
            if one.reason_pending and number == signal.SIGKILL:
                reason, message = one.reason_pending, one.message_pending
            self._ended(one, code, number, reason, message, started=True)

    def _collect(self, one: Container) -> None:
        """The main process ended: end the rest of its tree, take the last of its output."""
        main = one.pid
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            if not may_have_children(besides=self._by_pid.keys()):
                for pid in self._tree.of(one.name):
                    self._tree.gone(pid)
                break
            self._tree.look(
                {pid: other.name for pid, other in self._by_pid.items()} | {main: one.name}, force=True
            )
            left = [pid for pid in self._tree.of(one.name) if pid != main and _alive(pid)]
            if not left:
                break
            for pid in left:
                send(pid, signal.SIGKILL)
            self._reap_orphans(left)
            time.sleep(0.001)
        self._tree.gone(main)
        for fd in list(one.pipes):
            while fd in one.pipes and not self._read(fd):
                pass
            if fd in one.pipes:  # somebody outside the container's tree holds the other end
                self._close_pipe(one, fd)
        if one.log is not None:
            one.log.flush()

    def _mains(self) -> dict[int, str]:
        return {pid: one.name for pid, one in self._by_pid.items()}

    def _reap_orphans(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    self._tree.gone(pid)
            except ChildProcessError:
                pass

    def _ended(self, one: Container, code: int, number: int, reason: str, message: str, *, started: bool) -> None:
        now = time.time()
        if code and not message and one.spec.get("messageFromLogs") and one.log is not None:
            message = one.log.tail(2048, 80)
        if one.log is not None:
            one.log.close()
            one.log = None
        terminated: dict[str, Any] = {
            "startedAt": stamp(one.started_wall) if started else "1970-01-01T00:00:00Z",
            "finishedAt": stamp(now),
            "exitCode": code,
            "signal": number,
            "reason": reason,
            "message": message,
            "containerID": one.report.get("containerID"),
            "peakMemoryBytes": one.watch.peak_bytes,
        }
        one.pid = 0
        one.kill_at = None
        one.report["pid"] = 0
        one.report["memoryBytes"] = 0
        one.report["peakMemoryBytes"] = max(one.report["peakMemoryBytes"], one.watch.peak_bytes)
        one.report["state"] = {"terminated": terminated}
        one.failed = code != 0
        self._dirty = True
        policy = "Always" if one.role == "sidecar" else self._policy
        if one.role == "init" and policy == "Always":
            policy = "OnFailure"
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        if not again or self._stop_at is not None:
            one.done = True
            return
        base = float(self._spec.get("backoffSeconds") or BACKOFF_SECONDS)
        if started and now - one.started_wall > 2 * BACKOFF_MAX_SECONDS:
            one.backoff = 0.0
        wait = one.backoff
        one.backoff = min(BACKOFF_MAX_SECONDS, 2 * one.backoff) if one.backoff else base
        one.start_at = time.monotonic() + wait
        if wait:
            where = f"{self._spec['name']}_{self._spec['namespace']}({self._spec['uid']})"
            one.report["ended"] = terminated
            one.report["lastState"] = {"terminated": terminated}
            one.report["state"] = {
                "waiting": {
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off {_go_duration(wait)} restarting failed container={one.name} pod={where}",
                }
            }

    def _kill(self, one: Container) -> None:
        """SIGKILL the whole tree; the main process is reaped by the loop."""
        self._tree.look(self._mains(), force=True)
        if one.pid:
            send(one.pid, signal.SIGKILL)
        for pid in self._tree.of(one.name):
            send(pid, signal.SIGKILL)

    def _watch(self) -> None:
        now = time.monotonic()
        due = [one for one in self._all if one.running and one.watch.due <= now]
        for one in self._all:
            if one.log is not None and one.log.waits():
                one.log.flush(older_than=PARTIAL_SECONDS)
        if due:
            self._tree.look(self._mains())
        for one in due:
            exceeded = one.watch.look(self._tree, self._tree.of(one.name))
            report = one.report
            before = report["memoryBytes"]
            report["memoryBytes"] = one.watch.now_bytes
            grown = one.watch.peak_bytes > 1.02 * report["peakMemoryBytes"]
            report["peakMemoryBytes"] = max(report["peakMemoryBytes"], one.watch.peak_bytes)
            if grown or abs(before - one.watch.now_bytes) > 0.02 * max(before, 1 << 20):
                self._unsaved_memory_since = self._unsaved_memory_since or now
            if exceeded and not one.reason_pending:
                one.reason_pending = "OOMKilled"
                limit = _mebibytes(one.watch.limit or 0)
                peak = _mebibytes(one.watch.now_bytes)
                one.message_pending = f"memory limit {limit} exceeded; peak {peak}"
                self._kill(one)
        if self._unsaved_memory_since is not None and now - self._unsaved_memory_since >= REPORT_SECONDS:
            self._save(durable=False)

    # -- the report

    def _finish(self) -> None:
        """Nothing of ours may live on, then the outcome is written: in that order."""
        kill_descendants(os.getpid())
        if "outcome" not in self._pod:
            ended = [(one.report["state"].get("terminated") or {}).get("exitCode") for one in self._apps]
            self._pod["outcome"] = "Succeeded" if all(code == 0 for code in ended) else "Failed"
        if self._stop_reason:
            self._pod["outcome"] = "Failed"
            self._pod["reason"] = self._stop_reason
            self._pod["message"] = self._stop_message
        self._pod["phase"] = self._pod["outcome"]
        self._pod["finishedAt"] = stamp()
        for one in self._all:
            waiting = one.report["state"].get("waiting")
            last = one.report.get("ended")
            if waiting and last:
                one.report["state"] = {"terminated": last}
        self._save()
        while self._retry_save and not self._is_removed():  # a full disk: the outcome is worth waiting for
            time.sleep(1.0)
            self._save()

    def _save(self, *, durable: bool = True) -> None:
        self._seq += 1
        self._dirty = False
        self._unsaved_memory_since = None
        state = {
            "version": VERSION,
            "seq": self._seq,
            "uid": self._spec["uid"],
            "shimPid": os.getpid(),
            "writtenAt": stamp(),
            "mounts": self._mounts,
            "mountsError": self._mounts_error,
            "fenceError": self._fence_error,
            "pod": self._pod,
            "containers": [one.report for one in self._all],
        }
        try:
            fd = os.open("state.json.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                data = json.dumps(state).encode()
                while data:
                    data = data[os.write(fd, data) :]
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.rename("state.json.tmp", "state.json")
            self._retry_save = 0.0
        except OSError as error:
            print(stamp(), "state not written:", error, file=sys.stderr, flush=True)
            self._dirty = True
            self._retry_save = time.monotonic()
        self._poke()

    def _poke(self) -> None:
        """Tell the agent, if it listens. The folder is opened because socket paths end at 107 bytes."""
        path = self._spec.get("notifySocket")
        if not path:
            return
        import _socket

        try:
            folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
            try:
                where = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
                sock.sendto(self._spec["uid"].encode(), where)
            finally:
                sock.close()
        except OSError:
            pass  # nobody listens: the agent looks at the file itself when it is back
        finally:
            os.close(folder)


def _exec(
    argv: list[str],
    env: dict[str, str],
    workdir: str,
    mounts: list[dict[str, Any]],
    scratch: str,
    spec: dict[str, Any],
    shim: int,
    hidden: str,
    kept: str,
    inode: list[int] | None,
) -> None:
    """In the forked child: become the container's main process, or raise. For the folders see `enter_mounts`."""
    import_no_more()
    os.setsid()
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGPIPE,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGCHLD,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        _write_proc("oom_score_adj", str(spec.get("oomScoreAdj", 500)))
    except OSError:
        pass  # already higher than this user may lower
    if mounts or hidden:
        enter_mounts(mounts, workdir, env.get("HOME", ""), scratch, hidden=hidden, kept=kept, inode=inode)
    if hidden:
        try:
            enter_domain()
        except OSError as error:
            raise FenceRefused(str(error)) from error
    try:
        os.chdir(workdir)
    except OSError as error:
        text = os.strerror(error.errno or 0).lower()
        raise StartError(f'chdir to cwd ("{workdir}") set in config.json failed: {text}') from error
    env["PWD"] = workdir
    path = _find(argv[0], env.get("PATH", ""))
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # last: changed credentials would clear it
    if os.getppid() != shim:
        os._exit(START_ERROR)
    try:
        os.execve(path, argv, env)
    except OSError as error:
        raise StartError(f"exec {path}: {os.strerror(error.errno or 0).lower()}") from error
    except ValueError as error:
        raise StartError(f'exec: "{argv[0]}": {error}') from error


def _find(program: str, path: str) -> str:
    """Go's exec.LookPath, with its messages."""
    if "/" in program:
        if not os.path.exists(program):
            raise StartError(f'exec: "{program}": stat {program}: no such file or directory')
        if os.path.isdir(program) or not os.access(program, os.X_OK):
            raise StartError(f'exec: "{program}": permission denied')
        return program
    for folder in path.split(":"):
        found = os.path.join(folder or ".", program)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    raise StartError(f'exec: "{program}": executable file not found in $PATH')


def _alive(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and found[3] not in "ZX"


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass


def _mebibytes(count: int) -> str:
    for suffix, unit in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if count >= unit:
            if count % unit == 0:
                return f"{count // unit}{suffix}"
            if suffix == "Gi":
                continue  # 1.5Gi says less than 1536Mi
            return f"{-(-count // unit)}{suffix}"
    return str(count)


def _go_duration(seconds: float) -> str:
    """As Go prints durations: 10s, 1m20s, 5m0s; below a second with decimals."""
    if seconds < 1 or seconds != int(seconds):
        return f"{seconds:g}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
