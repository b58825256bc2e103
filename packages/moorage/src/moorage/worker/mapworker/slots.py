"""Where items run: a process for each of them, or one that has the function loaded and takes one after another.

All of it is driven by the engine's loop: nothing here waits. One file: both kinds of slots share their states, and
the worker is loaded from a ConfigMap, standard library only.
"""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import child, memory
from .placeholders import fill

TAIL_BYTES = 16 * 1024  # of an item's output that is sent with a failure
KEPT_BYTES = 1024 * 1024  # of an item's output that is passed on
STOP_SECONDS = 3.0  # between TERM and KILL
READ_BYTES = 64 * 1024
DONE_FILE_ENV = "MOORAGE_DONE_FILE"  # an item asked to stop has finished only if it makes this file
READS = 16  # a full pipe has one such part, or as many if it was enlarged
UNUSED = 3  # processes that end before they take an item; the next such end is the item's
SHORT_SECONDS = 1.0  # after an item that took less, the next one is handed over before it has ended
SCARCE = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}

if TYPE_CHECKING:
    Report = dict[str, Any]


class Task:
    """A lease."""

    __slots__ = ("item", "lease", "value")

    def __init__(self, item: int, lease: int, value: Any) -> None:
        self.item = item
        self.lease = lease
        self.value = value

    @property
    def pair(self) -> list[int]:
        return [self.item, self.lease]


class Scarce(Exception):
    """Nothing can be started now: this machine or pod lacks processes, memory, file numbers or room on a disk."""


class Source:
    """The reading end of a pipe, and the only owner of its number.

    The number of a closed pipe is reused by the next one, of any slot. So other code holds this object, not
    the number.
    """

    __slots__ = ("_call", "_fd", "_selector", "_watched")

    def __init__(self, selector: selectors.BaseSelector, fd: int, call: Callable[[Source], None]) -> None:
        """Owns `fd`, also when this raises. `call` is called when there is something to read, or the end."""
        self._selector = selector
        self._fd = fd
        self._call = call
        self._watched = False
        try:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ, self._ready)
        except BaseException:
            self.close()
            raise
        self._watched = True

    def read(self, size: int) -> bytes | None:
        """The available bytes, `b""` at the end and when closed, None when there are none now."""
        if self._fd < 0:
            return b""
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None

    def ignore(self) -> None:
        """Call no more."""
        if self._watched:
            self._watched = False
            self._selector.unregister(self._fd)

    def close(self) -> None:
        """Once or more often."""
        self.ignore()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _ready(self, _fd: int) -> None:
        if self._watched:  # the same round of events may have closed it
            self._call(self)


class Output:
    """The output of an item: sent on line by line, cut at KEPT_BYTES; its end is stored."""

    def __init__(self, task: Task, keep: Callable[[int, int, str], None]) -> None:
        self._task = task
        self._keep = keep
        self._passed = 0
        self._cut = False
        self._rest = b""
        self.tail = b""

    def add(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        room = KEPT_BYTES - self._passed
        if room <= 0:
            if not self._cut:
                self._cut = True
                self._pass(b"[more than %d bytes: the rest is not shown]\n" % KEPT_BYTES)
            return
        data = self._rest + data[:room]
        self._passed += len(data) - len(self._rest)
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < READ_BYTES:
            self._rest = data
            return
        self._rest = data[cut:] if cut else b""
        self._pass(data[:cut] if cut else data)

    def close(self) -> None:
        if self._rest:
            self._pass(self._rest + b"\n")
            self._rest = b""

    def _pass(self, data: bytes) -> None:
        self._keep(self._task.item, self._task.lease, base64.b64encode(data).decode())
        mark = b"[%d] " % self._task.item
        lines = b"".join(mark + line + b"\n" for line in data.splitlines())
        try:
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
        except OSError:
            pass  # no reader


class Slot:
    """One place for one item at a time. `done(slot, report)` is called when an item has ended."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        done: Callable[[Slot, Report], None],
        keep: Callable[[int, int, str], None],
        memory_bytes: int,
        scratch: str,
    ) -> None:
        self._selector = selector
        self._done = done
        self._keep = keep
        self._memory = memory_bytes
        self._scratch = scratch
        self._done_file = os.path.join(scratch, f"done-{id(self)}")
        self.task: Task | None = None
        self.ahead: Task | None = None  # handed to the process already, begins when `task` has ended
        self._output: Output | None = None
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._began = 0.0
        self._timeout: float | None = None
        self._deadline: float | None = None
        self._kill_at: float | None = None
        self._verdict: str | None = None  # why we stopped it: timeout, oom, preempted, dropped
        self._peak = 0
        self._oom_kills: int | None = None

    # -- for the engine

    def warm(self) -> None:
        """Make ready before there is an item; this process has one thread then."""

    def start(self, task: Task, timeout: float | None) -> None:
        """Raises Scarce: `task` has not begun, and nothing is wrong with it."""
        self._timeout = timeout
        self._now_runs(task)
        try:
            self._begin(task)
        except ValueError as error:  # the command does not fit the item: it never does
            self._finish({"outcome": "invalid", "message": f"cannot be started: {error}"})
        except OSError as error:
            if error.errno in SCARCE:
                self._forget()
                raise Scarce(f"{error.strerror}") from error
            self._finish({"outcome": "error", "message": f"cannot be started: {error}"})

    def follow(self, _next: Task) -> bool:
        """Send the item that begins when `task` has ended; False: not possible now."""
        return False

    def recall(self) -> Task | None:
        """Take `ahead` back, unless it has begun."""
        return None

    def settle(self) -> None:
        """Take note of an end that the process has reported already."""

    def stop(self, verdict: str) -> None:
        """End the item early: TERM now, KILL a little later."""
        if self.task is None or self._verdict is not None or self._is_over():
            return
        self._verdict = verdict
        self._kill_at = time.monotonic() + (0.0 if verdict == "oom" else STOP_SECONDS)
        self._signal(signal.SIGKILL if verdict == "oom" else signal.SIGTERM)

    def _is_over(self) -> bool:
        """Whether the process has ended by itself, and was not reaped yet."""
        if self._process is None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def look(self, now: float) -> None:
        """Keep to time-outs and memory."""
        if self.task is None:
            return
        if self._deadline is not None and now >= self._deadline:
            self.stop("timeout")
        if self._process is not None:
            used = memory.resident(self._process.pid)
            self._peak = max(self._peak, used)
            if self._memory and used > self._memory:
                self.stop("oom")
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._kill_at = now + STOP_SECONDS

    def next_time(self) -> float | None:
        deadline = self._deadline if self._verdict is None else None
        times = [at for at in (deadline, self._kill_at) if at is not None]
        return min(times, default=None)

    @property
    def pid(self) -> int | None:
        """Of its process, which leads a group of the same number."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """End the process and the remaining processes of its group.

        Only until the process is reaped: afterwards its number may be that of another process.
        """
        self._signal(signal.SIGKILL)

    def exited(self, status: int, peak: int) -> None:
        """Take note that the process has ended and was reaped."""
        if self._process is not None:
            self._process.returncode = status
        self._ended(status, peak)

    # -- for the two kinds

    def _now_runs(self, task: Task) -> None:
        self.task = task
        self._output = Output(task, self._keep)
        self._began = time.monotonic()
        self._deadline = None if self._timeout is None else self._began + self._timeout
        self._kill_at = self._verdict = None
        self._peak = 0
        self._oom_kills = memory.kills_for_memory()
        try:
            os.unlink(self._done_file)  # of the item before
        except OSError:
            pass  # it made none

    def _forget(self) -> None:
        """There is no item any more."""
        self.task = self._output = None
        self._deadline = self._kill_at = None

    def _begin(self, task: Task) -> None:
        raise NotImplementedError

    def _ended(self, status: int, peak: int) -> None:
        raise NotImplementedError

    def _signal(self, number: int) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except OSError:
                pass  # it has ended already

    def _read(self, source: Source) -> bool:
        """Read the available output, not more than READS at once: others wait; False at the end."""
        for _ in range(READS):
            data = source.read(READ_BYTES)
            if data is None:
                return True
            if not data:
                return False
            if self._output is not None:
                self._output.add(data)
            if len(data) < READ_BYTES:
                break
        return True

    def _is_interrupted(self) -> bool:
        """Whether the item was asked to stop before it ended, and does not report that it has finished."""
        return self._verdict is not None and not (self._verdict == "preempted" and os.path.exists(self._done_file))

    def _how_it_died(self, status: int) -> Report:
        """The report for a process that did not finish its item."""
        if self._verdict == "oom":
            text = f"killed: it used more than {self._memory} bytes, the limit of an item here"
            return {"outcome": "oom", "message": text, "exit": status}
        if self._verdict == "timeout":
            return {"outcome": "timeout", "message": "stopped after its time", "exit": status}
        if self._verdict is not None:
            return {"outcome": "preempted", "exit": status}
        if status == -signal.SIGKILL and self._oom_kills is not None:
            now = memory.kills_for_memory()
            if now is not None and now > self._oom_kills:
                return {"outcome": "oom", "message": "killed by the kernel for memory", "exit": status}
        if status < 0:
            return {"outcome": "error", "message": f"killed by {_signal_name(-status)}", "exit": status}
        return {"outcome": "error", "message": f"exit code {status}", "exit": status}

    def _finish(self, report: Report) -> None:
        task, output = self.task, self._output
        assert task is not None
        assert output is not None
        output.close()
        dropped = self._verdict == "dropped"
        self._forget()
        report = dict(report, item=task.item, lease=task.lease)
        report.setdefault("seconds", round(time.monotonic() - self._began, 6))
        report.setdefault("memory", self._peak)
        if report["outcome"] not in ("done", "preempted", "returned"):
            if not report.get("message"):
                report["message"] = "failed"
            last = output.tail.rstrip().rpartition(b"\n")[2][-500:].decode("utf-8", "replace")
            if last and report["outcome"] == "error" and "exit" in report:
                report["message"] += ": " + last
            report["output"] = base64.b64encode(output.tail).decode()
        self._done(self, {} if dropped else report)


class CommandSlot(Slot):
    """A separate process for each item.

    It finds its value in the command's {item}, {item.field} and {index}, and in MOORAGE_ITEM (JSON) and
    MOORAGE_INDEX. Its result is the content of the file $MOORAGE_RESULT: JSON, else the text itself;
    {"$path": "..."} names the file of a larger one.
    """

    def __init__(self, *args: Any, command: list[str]) -> None:
        super().__init__(*args)
        self._command = command
        self._result = ""
        self._prints: Source | None = None

    def _begin(self, task: Task) -> None:
        os.makedirs(self._scratch, 0o700, exist_ok=True)  # an item before may have removed it
        fd, self._result = tempfile.mkstemp(prefix="result-", dir=self._scratch)
        os.close(fd)
        env = dict(os.environ, MOORAGE_ITEM=json.dumps(task.value), MOORAGE_INDEX=str(task.item))
        env |= {"MOORAGE_RESULT": self._result, DONE_FILE_ENV: self._done_file}
        env.pop("MOORAGE_MAP_TOKEN", None)
        writing = -1
        try:
            reading, writing = os.pipe()
            self._prints = Source(self._selector, reading, self._printed)
            self._process = subprocess.Popen(
                fill(self._command, task.item, task.value),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError):
            self._clear()
            raise
        finally:
            if writing >= 0:
                os.close(writing)

    def _printed(self, source: Source) -> None:
        if not self._read(source):
            source.close()

    def _clear(self) -> None:
        """Close its pipe and remove its file."""
        prints, self._prints = self._prints, None
        if prints is not None:
            prints.close()
        try:
            os.unlink(self._result)
        except OSError:
            pass  # the item removed it

    def _ended(self, status: int, peak: int) -> None:
        self._peak = max(self._peak, peak)
        if self._prints is not None:
            self._read(self._prints)
        self._process = None
        has_finished = not self._is_interrupted() and (not status or self._verdict is not None)
        report = self._answer() if has_finished else self._how_it_died(status)
        self._clear()
        self._finish(report)

    def _answer(self) -> Report:
        try:
            with open(self._result, "rb") as file:
                data = file.read(child.RESULT_BYTES + 1)
        except OSError as error:
            return {"outcome": "error", "message": f"its result cannot be read: {error.strerror}"}
        if len(data) > child.RESULT_BYTES:
            return {"outcome": "invalid", "message": child.TOO_LONG % f"more than {child.RESULT_BYTES}"}
        if not data.strip():
            return {"outcome": "done"}
        try:
            value = json.loads(data)
            child.check_text(json.dumps(value, allow_nan=False))
        except ValueError:
            value = data.decode("utf-8", "replace")
        if isinstance(value, dict) and set(value) == {"$path"}:
            return {"outcome": "done", "path": str(value["$path"])[:4096]}
        return {"outcome": "done", "value": value}


class FunctionSlot(Slot):
    """A process in which the function stays loaded; it is replaced when an item has killed it.

    While items are short it has the next one before the last has ended: no time passes between them.
    """

    def __init__(
        self,
        *args: Any,
        child: list[str],
        function: str,
        broken: Callable[[str], None],
        returned: Callable[[Task], None],
    ) -> None:
        """`child` starts `child.main`.

        `broken` is called when the function cannot be loaded, `returned` with items that were sent and have
        not begun.
        """
        super().__init__(*args)
        self._child = child
        self._function = function
        self._broken = broken
        self._returned = returned
        self._answers: Source | None = None
        # two of each, for items by turns
        self._turn = 1  # of the item that runs, or has run last
        self._prints: list[Source] = []
        self._sending: list[socket.socket] = []
        self._theirs: list[socket.socket] = []  # the other ends: tasks that have not begun are read back from them
        self._buffer = b""
        self._reason = ""
        self._loaded = False  # the process has said so
        self._unused = 0  # processes in a row that have loaded, and ended before they took an item
        self._short = False  # the last item was
        self._followed = False  # the item that runs was handed over while the one before did

    def warm(self) -> None:
        try:
            self._launch(forked=True)
        except OSError:
            self._process = None  # the first item will say why

    def follow(self, _next: Task) -> bool:
        if not self._short or self.task is None or self.ahead is not None or self._verdict is not None:
            return False
        try:
            self._sending[1 - self._turn].send(_packet(_next))
        except OSError:
            return False  # no room, or the process has ended: we shall hear of it
        self.ahead = _next
        return True

    def recall(self) -> Task | None:
        if self.ahead is None or not self._taken_back(1 - self._turn):
            return None
        task, self.ahead = self.ahead, None
        return task

    def _taken_back(self, turn: int) -> bool:
        """Read the item back that the process has not read; whether there was one."""
        try:
            return bool(self._theirs[turn].recv(child.PACKET_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def settle(self) -> None:
        if self._answers is not None:
            self._answered(self._answers)

    def stop(self, verdict: str) -> None:
        """Stop the item, and withdraw the item `ahead` of it; an end that was reported counts."""
        before = self.task
        if before is None or self._verdict is not None:
            return
        left = self.recall()
        if left is not None:
            self._returned(left)
        self.settle()
        if self.task is before:
            super().stop(verdict)

    def _begin(self, task: Task) -> None:
        if self._process is None:
            self._launch(forked=False)
        self._followed = False
        self._sending[1 - self._turn].send(_packet(task))
        self._turn = 1 - self._turn  # not earlier: the process takes turns by received tasks

    def _launch(self, *, forked: bool) -> None:
        given: list[int] = []  # numbers that are the process's; ours only until it has them
        try:
            for _ in range(2):
                theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._theirs.append(theirs)
                self._sending.append(ours)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, child.PACKET_BYTES)
                ours.setblocking(False)
            reading, writing = os.pipe()
            given.append(writing)
            self._answers = Source(self._selector, reading, self._answered)
            for _ in range(2):
                reading, writing = os.pipe()
                given.append(writing)
                self._prints.append(Source(self._selector, reading, self._printed))
            numbers = (*(end.fileno() for end in self._theirs), *given)
            self._process = (self._fork if forked else self._spawn)(numbers)
        except BaseException:
            self._clear()
            raise
        finally:
            for fd in given:
                os.close(fd)
        self._turn, self._buffer, self._reason = 1, b"", ""
        self._short = self._loaded = False

    def _clear(self) -> None:
        """Close all pipes to the process."""
        for source in (self._answers, *self._prints):
            if source is not None:
                source.close()
        for end in (*self._sending, *self._theirs):
            end.close()
        self._answers, self._prints, self._sending, self._theirs = None, [], [], []

    def _spawn(self, given: tuple[int, ...]) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if name != "MOORAGE_MAP_TOKEN"}
        return subprocess.Popen(
            [*self._child, "--child", *map(str, given), self._function],
            stdin=subprocess.DEVNULL,
            stdout=given[3],
            stderr=subprocess.STDOUT,
            env=dict(env, PYTHONUNBUFFERED="1", **{DONE_FILE_ENV: self._done_file}),
            pass_fds=given,
            start_new_session=True,
        )

    def _fork(self, given: tuple[int, ...]) -> Forked:
        """As `_spawn`, in a tenth of the time: Python is there already."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return Forked(pid)
        code = 1
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for fd in (1, 2):
                os.dup2(given[3], fd)
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2 and int(name) not in given:
                    try:
                        os.close(int(name))
                    except OSError:
                        pass  # the folder's own
            os.environ.pop("MOORAGE_MAP_TOKEN", None)
            os.environ["PYTHONUNBUFFERED"] = "1"
            os.environ[DONE_FILE_ENV] = self._done_file
            for at, kind in ((1, "stdout"), (2, "stderr")):
                raw = io.FileIO(at, "w", closefd=False)
                text = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)
                setattr(sys, kind, text)
                setattr(sys, f"__{kind}__", text)
            code = child.main([*map(str, given), self._function])
        finally:
            os._exit(code)

    def _printed(self, source: Source) -> None:
        if source is not self._prints[self._turn]:
            self.settle()  # the item before has ended, and its successor prints
        if source is self._prints[self._turn]:
            if not self._read(source):
                source.ignore()
        elif source.read(READ_BYTES) == b"":  # output of processes that an item left behind has no owner
            source.ignore()

    def _answered(self, source: Source) -> None:
        data = source.read(1024 * 1024)
        if data is None:
            return
        if not data:
            source.ignore()
            return
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            self._take(json.loads(line))

    def _take(self, answer: dict[str, Any]) -> None:
        if "loaded" in answer:
            if not answer["loaded"]:
                self._reason = str(answer["message"])
            else:
                self._loaded = True
                self._began = time.monotonic()  # loading is not the item's
                if self._deadline is not None and self._timeout is not None:
                    self._deadline = self._began + self._timeout
            return
        if self.task is None:
            return
        self._unused = 0
        self._read(self._prints[self._turn])
        self._peak = max(self._peak, int(answer["memory"]))
        seconds = answer["seconds"]
        self._short = seconds < SHORT_SECONDS
        if self._is_interrupted():
            report = self._how_it_died(0) | {"seconds": seconds}
        elif answer["ok"]:
            report = {"outcome": "done", "value": answer["value"], "seconds": seconds}
        else:
            outcome = "oom" if answer.get("oom") else "invalid" if answer.get("final") else "error"
            report = {"outcome": outcome, "message": answer["message"], "seconds": seconds}
        following, self.ahead = self.ahead, None
        self._finish(report)
        if following is not None:
            self._turn = 1 - self._turn
            self._followed = True
            self._now_runs(following)

    def _ended(self, status: int, peak: int) -> None:
        self.settle()
        self._read(self._prints[self._turn])
        self._process = None
        left = [self.recall()]
        if self.task is not None and self._has_not_begun():
            left.append(self.task)
            self._forget()
        self._clear()
        self.ahead = None
        for task in left:
            if task is not None:
                self._returned(task)
        if self._reason:
            self._broken(self._reason)
            return
        if self.task is not None:
            self._peak = max(self._peak, peak)
            self._finish(self._how_it_died(status or 1))

    def _has_not_begun(self) -> bool:
        """Whether the process has ended before it took `task`: an earlier item has ended it."""
        if self._verdict not in (None, "preempted"):
            return False
        if not (self._followed or (self._loaded and self._unused < UNUSED)) or not self._taken_back(self._turn):
            return False
        self._unused += 1
        return True


class Forked:
    """A process that was forked: as much of Popen as slots use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


def _packet(task: Task) -> bytes:
    try:
        return json.dumps(task.value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a character
        return json.dumps(task.value).encode()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
