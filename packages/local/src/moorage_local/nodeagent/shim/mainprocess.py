"""Turn a fork of the shim into the main process of a container."""

from __future__ import annotations

import os
import signal

from .container import Container
from .fence import FenceRefused
from .kernel import PR_SET_PDEATHSIG, import_no_more, prctl, write_proc
from .landlock import enter_domain
from .mounts import MountRefused, enter_mounts
from .private import PrivateRefused, make_private_folders
from .processes import CONTAINER_MARK, UID_MARK
from .programs import StartError, find_program
from .volumes import MountFailed, Point, is_below, translate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


START_ERROR = 128  # exit code containerd gives a container that could not be started


def fork(container: Container, mode: str, hidden: str, pod: dict[str, Any], folder: str) -> tuple[str, str]:
    """Start a container of the pod whose order is `pod`, and set its process and its pipes.

    `mode` is how it sees its mounts: "namespace", "translated", "none", or "private" (with a private root).
    Return the error and its text, both empty when it runs.
    """
    spec = container.spec
    # the command; without namespaces the paths of mounts become paths of this machine
    argv: list[str] = list(spec["argv"])
    env: dict[str, str] = dict(spec["env"])
    workdir: str = spec["workingDir"]
    mounts: list[dict[str, Any]] = spec.get("mounts") or []
    if mode == "translated":
        argv = [translate(text, mounts) for text in argv]
        env = {name: translate(text, mounts) for name, text in env.items()}
        workdir = translate(workdir, mounts)
    # the file of the termination message is mounted into /dev, or named in the command and the environment
    message = None if container.message is None else container.message.as_mount()
    has_namespace = mode == "namespace" or (hidden and mode == "none")
    if message and not (has_namespace and os.path.dirname(message["mountPath"]) == "/dev"):
        argv = [translate(text, [message]) for text in argv]
        env = {name: translate(text, [message]) for name, text in env.items()}
        message = None
    env[UID_MARK] = pod["uid"]
    env[CONTAINER_MARK] = container.name
    private = ""
    if mode == "private":
        try:
            private = make_private_folders(folder, container.name, container.attempt)
        except OSError as error:
            return "shared", str(error)
    # pipes for its output and for errors before it runs
    out_read, out_write = os.pipe2(os.O_CLOEXEC)
    err_read, err_write = os.pipe2(os.O_CLOEXEC)
    tell_read, tell_write = os.pipe2(os.O_CLOEXEC)
    scratch = ""
    if private and not spec.get("hasWorkingDir", True):
        workdir = "/"
    if has_namespace or mode == "private":
        scratch = os.path.join(folder, "root", container.name)
        if not hidden:
            os.makedirs(scratch, exist_ok=True)
    shim = os.getpid()
    pid = os.fork()
    # the child: becomes the container, or writes why it cannot
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            source = os.devnull
            if spec.get("stdin"):  # a pipe that has this process as its writer has no end
                source = f"/proc/self/fd/{os.pipe2(os.O_CLOEXEC)[0]}"
            os.dup2(os.open(source, os.O_RDWR), 0)
            os.dup2(out_write, 1)
            os.dup2(err_write, 2)
            os.umask(0o022)
            if mode == "translated":
                for mount in mounts:
                    Point(mount).open()  # its subPath is made as with namespaces
            if mode not in ("namespace", "private"):
                mounts = []
            kept = os.path.join(folder, "work", container.name)
            inode = pod.get("hiddenInode")
            _exec(argv, env, workdir, mounts, message, scratch, spec, shim, hidden, kept, inode, private)
        except FenceRefused as error:
            os.write(tell_write, b"unfenced\0" + str(error).encode())
        except MountRefused as error:
            os.write(tell_write, b"refused\0" + str(error).encode())
        except PrivateRefused as error:
            os.write(tell_write, b"shared\0" + str(error).encode())
        except (MountFailed, StartError) as error:
            os.write(tell_write, b"start\0" + str(error).encode())
        except BaseException as error:
            os.write(tell_write, b"start\0" + repr(error).encode())
        finally:
            os._exit(START_ERROR)
    # the shim: waits until the child runs, which closes the pipe, or has failed
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
        container.pipes[fd] = stream
    container.pid = pid
    return "", ""


def leave_shim() -> None:
    """In a fork of the shim, start a new session with the default signals."""
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


def _is_hidden(path: str, hidden: str, shown: list[str]) -> bool:
    """Whether a path is inside the hidden folder, but not inside one of the `shown` folders."""
    path, hidden = os.path.realpath(path), os.path.realpath(hidden)
    if path != hidden and not is_below(path, hidden):
        return False
    places = [os.path.realpath(place) for place in shown if place]
    return not any(path == place or is_below(path, place) for place in places)


def _exec(
    argv: list[str],
    env: dict[str, str],
    workdir: str,
    mounts: list[dict[str, Any]],
    message: dict[str, Any] | None,
    scratch: str,
    spec: dict[str, Any],
    shim: int,
    hidden: str,
    kept: str,
    inode: list[int] | None,
    private: str,
) -> None:
    """In the forked child, become the container's main process, or raise. See `enter_mounts` for the folders."""
    # leave the shim's session, signals and OOM score behind
    import_no_more()
    leave_shim()
    try:
        write_proc("oom_score_adj", str(spec.get("oomScoreAdj", 500)))
    except OSError:
        pass  # already higher than this user may lower
    # its mounts, then its fence
    if mounts or hidden or private:
        home = env.get("HOME", "")
        enter_mounts(
            mounts,
            workdir,
            home,
            scratch,
            message=message,
            hidden=hidden,
            kept=kept,
            inode=inode,
            private=private,
        )
    if hidden:
        try:
            enter_domain()
        except OSError as error:
            raise FenceRefused(str(error)) from error
    mounted = [str(mount["mountPath"]) for mount in mounts]
    if hidden and _is_hidden(workdir, hidden, [kept, *mounted]):
        raise StartError(
            f'the working directory "{workdir}" lies in the data folder "{hidden}" of the cluster,'
            " which pods do not see: start the run from another folder"
        )
    try:
        if private:
            os.makedirs(workdir, exist_ok=True)  # as containerd does
        os.chdir(workdir)
    except OSError as error:
        text = os.strerror(error.errno or 0).lower()
        raise StartError(f'chdir to cwd ("{workdir}") set in config.json failed: {text}') from error
    env["PWD"] = workdir
    # the program, which ends with the shim
    path = find_program(argv[0], env.get("PATH", ""))
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # last: changed credentials would clear it
    if os.getppid() != shim:
        os._exit(START_ERROR)
    try:
        os.execve(path, argv, env)
    except OSError as error:
        raise StartError(f"exec {path}: {os.strerror(error.errno or 0).lower()}") from error
    except ValueError as error:
        raise StartError(f'exec: "{argv[0]}": {error}') from error
