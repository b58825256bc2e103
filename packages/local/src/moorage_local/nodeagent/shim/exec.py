"""Run a command next to a container's main process: exec probes and `kubectl exec`."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import sys

from .kernel import PR_SET_PDEATHSIG, import_no_more, libc_of, os_error, prctl
from .landlock import enter_domain
from .processes import read_stat
from .programs import StartError, find_program


def enter(folder: str, pid: int, command: list[str], *, is_privileged: bool, parent: int = 0) -> int:
    """Become `command` as if started by the process `pid`; return 126 or 127 if that fails, as shells do.

    `pid` must be the main process of a container of the pod in `folder`. This is checked, because the pod's report
    may be wrong. The command is fenced like the container, unless that `is_privileged`.
    With `parent`, end when that process does, and take standard input as the controlling terminal if it is one.
    """
    import termios

    os.umask(0o022)  # as for the container's own processes; the agent's may differ
    libc = libc_of()
    try:
        # read the environment, folder and namespaces of the process
        process = os.pidfd_open(pid)
        if not _is_main(pid, folder):
            raise StartError(f"process {pid} is not the main process of a container of this pod")
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [part.partition(b"=") for part in file.read().split(b"\0") if part]
        env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        workdir = os.readlink(f"/proc/{pid}/cwd")
        is_apart = os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        namespaces = []
        for kind in ("user", "mnt"):
            if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
                namespaces.append((kind, os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)))
        if select.select([process], [], [], 0)[0]:  # its number may be another's by now
            raise ProcessLookupError(errno.ESRCH, "the container has ended")
        # join its namespaces and its folder
        import_no_more()
        for kind, fd in namespaces:
            if libc.setns(fd, 0) != 0:
                raise os_error(f"setns {kind}")
        try:
            os.chdir(env.get("PWD") or workdir)  # where the container began, wherever its process is now
        except OSError:
            os.chdir(workdir)
        # end with the agent's helper, and take the terminal
        if parent:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                return 126
            if os.isatty(0):
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                env.setdefault("TERM", "xterm")
        path = find_program(command[0], env.get("PATH", ""))
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
    """Whether a process is a container's main process: its parent, the shim, has locked the pod's folder.

    The shim itself does not count, although its parent, the guard, has the lock, too. Raises OSError.
    """
    status = read_stat(pid)
    lock = os.path.join(os.path.realpath(folder), "lock")
    return status is not None and not _has_open(pid, lock) and _has_open(status[0], lock)


def _has_open(pid: int, path: str) -> bool:
    """Whether a process has this file open, also if the file has been removed since. Raises OSError."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}") in (path, f"{path} (deleted)"):
                return True
        except FileNotFoundError:
            continue  # closed meanwhile
    return False
