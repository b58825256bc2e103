"""Wraps a run's command: puts its code into place, forwards signals, reports checkpoints.

    python3 runner.py [--unpack FILE | --copy CODE | --git URL --ref REF] [--into DIR]
        [--report URL --token-file FILE] [--peak-file FILE] -- COMMAND [ARG...]

It ends with the command's own exit code, or 128 + n when signal n ended it; 127 when the command does not
exist, 126 when it cannot be run, as in a shell. A command that ends after it was asked to stop (SIGTERM)
was interrupted, with any exit code: the runner ends with 85 then, or with 0 if the command made
$MOORAGE_DONE_FILE. With --report, the time of the newest file under $MOORAGE_CHECKPOINT_DIR is posted to URL,
and the commit of --git. An absent, slow or faulty server does not affect the command. With --peak-file, the
most memory that the container used is written to FILE, which the kubelet reads at the end.

Standard library only, one file, Python 3.8 and newer: it is mounted into images that we do not know.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

CHECKPOINT_ENV = "MOORAGE_CHECKPOINT_DIR"
DONE_FILE_ENV = "MOORAGE_DONE_FILE"
TOKEN_ENV = "GIT_TOKEN"
COMMIT_FILE = ".moorage-commit"  # in the checkpoint folder; a name that is never a checkpoint
STOPPED = 85  # asked to stop, and not finished; as moorage.decide.interruptions
CHECK_SECONDS = 5.0  # between two looks at the checkpoint folder
REPEAT_SECONDS = 60.0  # between two reports when nothing is new, so that "last looked" stays true
BACKOFF_SECONDS = (5.0, 300.0)  # first and longest pause after a report that failed; it doubles
POST_SECONDS = 5.0  # patience with the server
LAST_POST_SECONDS = 2.0  # the same after the command's end: the pod's grace period is running
CGROUP = "/sys/fs/cgroup"  # a container sees its own here
MEMORY_SECONDS = 1.0  # between two looks at the memory in use; a look is two small files
PEAK_GROWTH = 1.02  # a smaller growth is not worth a write
PEAK_LINE = "moorage: peak-memory-bytes=%d\n"  # read by moorage.decide.runs.terminationmessage
LAST_WORDS_BYTES = 4096  # a kubelet takes no more of the file
SCAN_ENTRIES = 20000  # looked at in one scan at most: about 0.1 s
SCRATCH_SUFFIXES = (".tmp", ".temp", ".part", ".partial", ".swp", ".lock", "~")
STOPS = ("SIGTERM", "SIGINT", "SIGQUIT")  # an image may name another signal than SIGTERM
FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")


def is_scratch(name: str) -> bool:
    """Whether a name is that of a file still being written: .x, x.tmp, x~, tmp…"""
    lowered = name.lower()
    return lowered.startswith((".", "tmp")) or lowered.endswith(SCRATCH_SUFFIXES) or name == "lost+found"


def newest_file(folder: str, limit: int = SCAN_ENTRIES) -> float | None:
    """Modification time (seconds since the epoch) of the newest finished file under a folder; None when none.

    Links are not followed. The most recently changed folders are read first, so that the newest file is found
    even where the tree has more than `limit` entries and the scan stops.
    """
    newest: float | None = None
    waiting = [(0.0, folder)]
    seen = 0
    while waiting and seen < limit:
        waiting.sort()
        _, here = waiting.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    seen += 1
                    if seen > limit:
                        break
                    if is_scratch(entry.name):
                        continue
                    try:
                        changed = entry.stat(follow_symlinks=False).st_mtime
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append((changed, entry.path))
                        elif entry.is_file(follow_symlinks=False) and (newest is None or changed > newest):
                            newest = changed
                    except OSError:
                        continue  # deleted between the listing and the read
        except OSError:
            continue
    return newest


def rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Reporter:
    """Decides when to report, and does it through `post(body, timeout)`, which raises on any failure."""

    def __init__(self, folder: str, post: Callable[[dict[str, Any], float], object]) -> None:
        self.folder = folder
        self.post = post
        self.reported: float | None = None  # the newest file time the server knows
        self.reported_at: float | None = None  # monotonic time of the last good report
        self.not_before = 0.0  # monotonic: no report before this
        self.pause = BACKOFF_SECONDS[0]

    def step(self, monotonic: float, now: float, timeout: float = POST_SECONDS, last: bool = False) -> bool:
        """Look, and report when there is something to say; returns whether a report arrived."""
        newest = newest_file(self.folder)
        if newest is not None:
            newest = min(newest, now)  # a file from the future would never grow old
        due = self.reported_at is None or monotonic - self.reported_at >= REPEAT_SECONDS
        if newest == self.reported and not due and not last:
            return False
        if monotonic < self.not_before and not last:
            return False
        body = {"newest": None if newest is None else rfc3339(newest), "checked": rfc3339(now)}
        try:
            self.post(body, timeout)
        except Exception:  # the command continues after any error on the way to the server
            self.not_before = monotonic + self.pause
            self.pause = min(self.pause * 2, BACKOFF_SECONDS[1])
            return False
        self.reported, self.reported_at = newest, monotonic
        self.pause, self.not_before = BACKOFF_SECONDS[0], 0.0
        return True

    def run(self, stopped: threading.Event) -> None:
        """Go on until `stopped` (an Event) is set."""
        while not stopped.wait(CHECK_SECONDS):
            self.step(time.monotonic(), time.time())


def memory_used(cgroup: str) -> int | None:
    """Bytes in use by the container as kubelets count them (working set); None if unknown.

    File pages without recent use are not counted: the kernel frees them before it kills. `memory.peak` and
    `memory.max_usage_in_bytes` count them, so a program that reads much would seem to need the whole limit.
    """
    for folder, used, inactive in (
        (cgroup, "memory.current", "inactive_file "),
        (os.path.join(cgroup, "memory"), "memory.usage_in_bytes", "total_inactive_file "),
    ):
        try:
            with open(os.path.join(folder, used), encoding="ascii") as file:
                total = int(file.read())
            with open(os.path.join(folder, "memory.stat"), encoding="ascii") as file:
                cached = next((int(line.split()[1]) for line in file if line.startswith(inactive)), 0)
        except (OSError, ValueError, IndexError):
            continue
        return max(0, total - cached)
    return None


class MemoryWatch:
    """Writes the highest use of memory to the container's termination message.

    It writes while the command runs, because a container that is killed for its memory has no time at the end. The
    file is the kubelet's: it is never created, and text that the command writes there stays.
    """

    def __init__(self, path: str, cgroup: str = CGROUP) -> None:
        self.path = path
        self.cgroup = cgroup
        self.peak = 0
        self.line = b""  # as it is in the file

    def look(self) -> None:
        """Look once, and write when the peak has grown."""
        before = self.peak
        self.peak = max(self.peak, memory_used(self.cgroup) or 0)
        if self.peak > before * PEAK_GROWTH or not self.line:
            self.write()

    def write(self, last: bool = False) -> None:
        """Write the line to the file; if the command wrote text there, only at the end, where there is room."""
        line = (PEAK_LINE % self.peak).encode()
        if not self.peak:
            return
        try:
            with open(self.path, "r+b", buffering=0) as file:
                there = file.read(LAST_WORDS_BYTES + 1)
                if there in (b"", self.line):
                    file.seek(0)
                    file.write(line)  # the number grows, so the line before is covered
                    self.line = line
                elif last and len(there) + 1 + len(line) <= LAST_WORDS_BYTES:
                    file.write(line if there.endswith(b"\n") else b"\n" + line)
        except OSError:
            pass  # no kubelet reads it

    def run(self, stopped: threading.Event) -> None:
        """Go on until `stopped` is set."""
        self.look()
        while not stopped.wait(MEMORY_SECONDS):
            self.look()

    def finish(self) -> None:
        """After the command's end: the largest of its processes may have had more between two looks."""
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # Linux counts kibibytes
        self.peak = max(self.peak, memory_used(self.cgroup) or 0, largest)
        self.write(last=True)


def poster(url: str, token_file: str) -> Callable[[dict[str, Any], float], bytes]:
    """A function that posts a JSON body with the run's token, and returns the answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is inside the cluster

    def post(body: dict[str, Any], timeout: float) -> bytes:
        with open(token_file, encoding="ascii") as file:
            token = file.read().strip()
        request = urllib.request.Request(
            url,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": "Bearer " + token},
            method="POST",
        )
        with opener.open(request, timeout=timeout) as answer:
            return bytes(answer.read(4096))

    return post


def say(message: str) -> None:
    print("moorage: " + message, file=sys.stderr, flush=True)


def unpack(archive: str, folder: str) -> None:
    """Unpack the shipped directory. It was packed by `moor run`: plain files, folders and links below it."""
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(archive, "r:gz") as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)


def git_environment(url: str) -> dict[str, str]:
    """The environment of git: it asks for nothing, and has the token of $GIT_TOKEN for the host of the URL."""
    env = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:http:ssh", **os.environ}
    env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new")
    token = env.get(TOKEN_ENV)
    if token and url.startswith("https://"):
        pair = base64.b64encode(("x-access-token:" + token.strip()).encode()).decode()
        env["GIT_CONFIG_COUNT"] = "1"
        env["GIT_CONFIG_KEY_0"] = "http." + "/".join(url.split("/")[:3]) + "/.extraHeader"
        env["GIT_CONFIG_VALUE_0"] = "Authorization: Basic " + pair
    return env


def checkout(url: str, ref: str, folder: str, settle: Callable[[str], str] = str) -> bool:
    """Clone a repository and check out a branch, tag or commit; print the commit, or the reason of a failure.

    `settle` takes the commit, and returns the one of the first attempt. A checkpoint folder has it too.
    """
    if shutil.which("git") is None:
        say("git is not in this image: choose an image that has it, such as python:3.12, but not python:3.12-slim")
        return False
    env = git_environment(url)

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", *words], env=env, stdout=subprocess.PIPE, check=False)
        return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None

    if git("clone", "--quiet", "--no-checkout", "--filter=blob:none", "--", url, folder) is None:
        say("the repository " + url + " cannot be cloned: git prints the reason above")
        return False
    # the commit of an earlier attempt, or the newest one of the reference
    pin, source = os.path.join(os.environ.get(CHECKPOINT_ENV, ""), COMMIT_FILE), url + "@" + ref
    names = ["refs/remotes/origin/" + ref, "refs/tags/" + ref, ref] if ref else ["HEAD"]
    for name in filter(None, [first_commit(pin, source), *names]):
        commit = git("-C", folder, "rev-parse", "--verify", "--quiet", name + "^{commit}")
        if commit:
            break
    else:
        say("the repository " + url + " has no branch, tag or commit " + (ref or "HEAD"))
        return False
    commit = settle(commit)
    if git("-C", folder, "checkout", "--quiet", "--detach", commit) is None:
        say("the commit " + commit + " of " + url + " cannot be checked out: git prints the reason above")
        return False
    say("commit " + commit + " of " + url)
    if os.environ.get(CHECKPOINT_ENV):
        try:
            with open(pin, "w", encoding="utf-8") as file:
                file.write(commit + " " + source)
        except OSError as error:
            say("the commit cannot be stored for later attempts: " + str(error))
    return True


def settled(commit: str, post: Callable[[dict[str, Any], float], bytes]) -> str:
    """Report the commit; return that of the first attempt, or this one where the server does not answer."""
    try:
        answer = post({"newest": None, "checked": rfc3339(time.time()), "commit": commit}, POST_SECONDS)
        return str(json.loads(answer).get("commit") or commit)
    except Exception as error:
        say("the commit is not recorded: the server cannot be reached: " + str(error))
        return commit


def first_commit(pin: str, source: str) -> str:
    """The commit that an earlier attempt stored for this repository and reference; empty if there is none."""
    try:
        with open(pin, encoding="utf-8") as file:
            commit, _, stored = file.read().partition(" ")
    except (OSError, UnicodeDecodeError):
        return ""
    return commit if stored == source else ""


def copy(code: str, folder: str) -> None:
    """Copy the stored code, unless an earlier attempt did: then the folder stays as that attempt left it."""
    if not os.path.isdir(folder):
        new = folder + ".new"
        shutil.rmtree(new, ignore_errors=True)  # of a runner that was killed
        shutil.copytree(code, new, symlinks=True)
        os.rename(new, folder)


def start(command: list[str], folder: str | None, done_file: str) -> subprocess.Popen[bytes]:
    """Start the command, or end as a shell would when it cannot be."""
    try:
        return subprocess.Popen(command, cwd=folder, env={**os.environ, DONE_FILE_ENV: done_file})
    except FileNotFoundError:
        say(f"the command {command[0]!r} does not exist here")
        sys.exit(127)
    except OSError as error:
        say(f"the command {command[0]!r} cannot be run: {error.strerror}")
        sys.exit(126)


class Signals:
    """Forwards signals to the child, from the first moment on.

    Until the child exists, handlers store them. From then on they are blocked in every thread and taken by
    `wait`: a handler would run late or never. Of two signals that come together (SIGTERM, SIGCONT) the kernel may
    give both to another thread; the main thread, the only one to run handlers, then sleeps on in waitpid.
    """

    def __init__(self) -> None:
        self.early: list[int] = []
        self.has_stopped = False  # the child was asked to stop, and had not ended
        self.numbers = {getattr(signal, name) for name in FORWARDED if hasattr(signal, name)}
        for number in self.numbers:
            signal.signal(number, self.catch)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal that is ignored by default does not stay pending

    def catch(self, number: int, _frame: object) -> None:
        self.early.append(number)

    def pass_to(self, pid: int) -> None:
        """Send the child the signals received so far. Call it after its start (it would inherit the blocking) and
        before that of any thread (which is to inherit it).
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, self.numbers | {signal.SIGCHLD})
        for number in self.early:  # complete: handlers still due have run before the call above came back
            self.send(pid, number)

    def send(self, pid: int, number: int) -> None:
        self.has_stopped = self.has_stopped or signal.Signals(number).name in STOPS
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def wait(self, pid: int) -> int:
        """The child's exit code; children that others left to us (we may be process 1) are buried on the way."""
        while True:
            code = buried(pid)
            if code is not None:
                return code
            number = signal.sigwait(self.numbers | {signal.SIGCHLD})
            if number != signal.SIGCHLD:
                code = buried(pid)  # it may have ended by itself at the same moment
                if code is not None:
                    return code
                self.send(pid, number)


def buried(pid: int) -> int | None:
    """Bury all children that have ended; the exit code of `pid` when it is among them."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1  # another caller has waited for it
        if ended == 0:
            return None
        if ended == pid:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def end_after_stop(code: int, done_file: str) -> int:
    """The exit code for a command that ended with `code` after it was asked to stop."""
    if os.path.exists(done_file):
        return 0
    if code == 0:
        say(
            "interrupted: the program was asked to stop and did not report that it had finished ($"
            + DONE_FILE_ENV
            + ")"
        )
    return STOPPED


def main(argv: list[str]) -> int:
    # options before --, the command after it
    parser = argparse.ArgumentParser(prog="runner.py")
    parser.add_argument("--unpack")
    parser.add_argument("--git")
    parser.add_argument("--ref", default="")
    parser.add_argument("--copy")
    parser.add_argument("--into")
    parser.add_argument("--report")
    parser.add_argument("--token-file")
    parser.add_argument("--peak-file")
    if "--" not in argv or argv[-1] == "--":
        parser.error("no command after --")
    cut = argv.index("--")
    options, command = parser.parse_args(argv[:cut]), argv[cut + 1 :]
    # from here on signals are for the command
    signals = Signals()
    if options.unpack:
        try:
            unpack(options.unpack, options.into)
        except (OSError, tarfile.TarError) as error:
            say(f"the shipped directory cannot be unpacked into {options.into}: {error}")
            return 1
    if options.git:
        post = poster(options.report, options.token_file) if options.report else None
        if not checkout(options.git, options.ref, options.into, lambda at: settled(at, post) if post else at):
            return 1
    if options.copy:
        try:
            copy(options.copy, options.into)
        except OSError as error:
            say(f"the code of the run cannot be copied from {options.copy} to {options.into}: {error}")
            return 1
    # a program that finishes after a stop creates this file
    done_folder = tempfile.mkdtemp(prefix="moorage-")
    done_file = os.path.join(done_folder, "done")
    child = start(command, options.into, done_file)
    signals.pass_to(child.pid)
    # threads report checkpoints and memory while the command runs
    folder = os.environ.get(CHECKPOINT_ENV)
    reporter: Reporter | None = None
    stopped = threading.Event()
    if options.report and folder:
        reporter = Reporter(folder, poster(options.report, options.token_file))
        threading.Thread(target=reporter.run, args=(stopped,), daemon=True).start()
    memory = MemoryWatch(options.peak_file) if options.peak_file else None
    if memory is not None:
        watching = threading.Thread(target=memory.run, args=(stopped,), daemon=True)
        watching.start()
    # the exit code of the command, or that of an interruption
    code = signals.wait(child.pid)
    child.returncode = code  # it is buried already; without this Popen would look for it again
    if signals.has_stopped:
        code = end_after_stop(code, done_file)
    shutil.rmtree(done_folder, ignore_errors=True)
    # the last readings, after the end of the threads
    stopped.set()
    if memory is not None:
        watching.join(MEMORY_SECONDS)
        memory.finish()
    if reporter is not None and folder:
        final = Reporter(folder, reporter.post)  # its own: the thread may be in the middle of a report
        final.step(time.monotonic(), time.time(), LAST_POST_SECONDS, last=True)
    return code


if __name__ == "__main__":
    sys.stdout.flush()
    CODE = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(CODE)  # a report that hangs in its thread must not hold the pod
