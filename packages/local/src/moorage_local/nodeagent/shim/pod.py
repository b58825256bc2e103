"""Runs a pod: starts, watches, stops and ends its containers, and reports each change."""

from __future__ import annotations

import json
import os
import select
import signal
import time

from .container import Container
from .hooks import POST_START, PRE_STOP, start_hook
from .kernel import PR_SET_CHILD_SUBREAPER, drain, prctl
from .logs import Log, complain, stamp
from .mainprocess import START_ERROR, fork
from .memory import Watch
from .messages import make_message
from .processes import KILL_SECONDS, Tree, ask_to_end, is_alive, kill_descendants, may_have_children, send
from .programs import StartError
from .report import VERSION, notify, write_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


BACKOFF_SECONDS = 10.0  # kubelet: second failure waits 10 s, then twice as long each time, up to
BACKOFF_MAX_SECONDS = 300.0  # this; forgotten after a run of twice this long
LOG_MAX_BYTES = 10 * 1024 * 1024  # kubelet's containerLogMaxSize
LOG_MAX_FILES = 5  # kubelet's containerLogMaxFiles
PARTIAL_SECONDS = 1.0  # an unfinished line (a progress bar) is written out after this long
REPORT_SECONDS = 1.0  # at most one state in this time if only memory figures changed
CUT = "cut"  # state of a preStop hook that was killed
AFTER_HOOK_SECONDS = 2.0  # kubelet: SIGTERM comes at least this long before SIGKILL
STOP_LOOK_SECONDS = 1.0  # how often the stop file is looked for, should its signal have been missed


class Shim:
    """Runs the pod to its end. Times that must be correct after a laptop was suspended are wall-clock times."""

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
            Container(container, "sidecar" if container.get("restartPolicy") == "Always" else "init")
            for container in spec.get("initContainers") or []
        ]
        self._apps = [Container(container, "app") for container in spec["containers"]]
        self._all = self._inits + self._apps
        self._by_pid: dict[int, Container] = {}
        self._hooks: dict[int, Container] = {}  # by the process id of the hook
        self._tree = Tree(os.getpid())
        self._poll = select.poll()
        self._seq = 0
        self._dirty = True
        self._unsaved_memory_since: float | None = None
        self._mounts = "none"
        self._mounts_error = ""
        self._private_error = ""
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
                    drain(wake)
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
        for container in self._all:
            if container.running:
                due.append(container.watch.due)
                if container.kill_at is not None:
                    due.append(container.kill_at)
                if container.log is not None and container.log.waits():
                    due.append(now + PARTIAL_SECONDS)
            elif container.start_at is not None:
                due.append(container.start_at)
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

    # -- the next step

    def _step(self) -> bool:
        """Start, stop and time out containers that are due; True when the pod has ended."""
        now = time.monotonic()
        if now >= self._stop_look:
            self._stop_look = now + STOP_LOOK_SECONDS
            self._look_for_stop()
            for container in self._all:
                self._look_for_restart(container)
        # a preStop hook may take the whole time; then the container still gets SIGTERM
        for container in self._all:
            if container.kill_at is not None and now >= container.kill_at:
                if container.hook_kind == PRE_STOP:
                    self._cut_hook(container)
                    container.kill_at = now + AFTER_HOOK_SECONDS
                    continue
                container.kill_at = now + KILL_SECONDS
                self._kill(container)
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
            for container in self._apps:
                if container.attempt < 0 and container.start_at is None:
                    container.start_at = now
                self._start_if_due(container, now)
                if container.hook_kind == POST_START:
                    break  # the next container starts after the hook
            if all(container.done and not container.running for container in self._apps):
                failed = any(container.failed for container in self._apps)
                self._pod["outcome"] = "Failed" if failed else "Succeeded"
                return self._step_ending(now)
        return False

    def _step_inits(self, now: float) -> bool:
        """Run init containers in order. Return True after all have finished; sidecars must only have started."""
        for container in self._inits:
            if container.role == "sidecar":
                if container.attempt < 0 and container.start_at is None:
                    container.start_at = now
                self._start_if_due(container, now)
                if container.hook_kind == POST_START:
                    return False
                if container.attempt < 0 or (
                    not container.running and container.report["restartCount"] == 0 and container.failed
                ):
                    return False
                continue
            if container.done:
                if container.failed:
                    self._pod["outcome"] = "Failed"
                    return False
                continue
            if not container.running and container.attempt < 0 and container.start_at is None:
                container.start_at = now
            self._start_if_due(container, now)
            return False
        return True

    def _step_ending(self, now: float) -> bool:
        """End the running containers once the outcome is known (sidecars, other containers' leftovers)."""
        left = [container for container in self._all if container.running]
        if not left:
            return True
        self._stop(self._grace, "", "", "ended")
        return self._step_stopping(now)

    def _step_stopping(self, now: float) -> bool:
        for container in self._all:
            container.start_at = None
        running = [container for container in self._all if container.running]
        if not running:
            return True
        mains = [container for container in running if container.role != "sidecar"]
        assert self._stop_at is not None
        for container in mains or running:
            if container.name not in self._terms:
                self._terms.add(container.name)
                self._ask_to_end(container, hooks=now < self._stop_at)
        if now >= self._stop_at:
            hooked = [container for container in running if container.hook_kind == PRE_STOP]
            for container in hooked:
                self._cut_hook(container)
            if hooked:
                self._stop_at = now + AFTER_HOOK_SECONDS
                return False
            for container in running:
                self._kill(container)
            self._stop_at = now + KILL_SECONDS
        return False

    def _look_for_stop(self) -> None:
        """Read the stop file: {"graceSeconds", "reason", "message"}; a later one may only shorten the time.

        A pod without its folder is not visible to the agent any more: it ends at once.
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

    def _look_for_restart(self, container: Container) -> None:
        """Read `restart.<container>`, {"attempt", "graceSeconds"}, and end that attempt.

        The restart policy decides the next step.
        """
        try:
            path = f"restart.{container.name}"
            mtime = os.stat(path).st_mtime_ns
            if mtime == container.restart_seen:
                return
            with open(path, "rb") as file:
                order = json.load(file)
        except (OSError, ValueError):
            return
        container.restart_seen = mtime
        if container.running and container.attempt == order["attempt"] and container.kill_at is None:
            container.kill_at = time.monotonic() + float(order["graceSeconds"])
            self._ask_to_end(container)

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

    def _start_if_due(self, container: Container, now: float) -> None:
        if container.running or container.start_at is None or now < container.start_at:
            return
        container.start_at = None
        container.attempt += 1
        if container.attempt > 0:
            container.report["restartCount"] += 1
            terminated = container.report["state"].get("terminated") or container.report.get("ended")
            if terminated:
                container.report["lastState"] = {"terminated": terminated}
        container.reason_pending = container.message_pending = ""
        container.watch = Watch(container.spec.get("memoryLimitBytes"))
        path = os.path.join(self._folder, "logs", container.name, f"{container.attempt}.log")
        container.report["attempt"] = container.attempt
        container.report["containerID"] = f"{self._spec['uid']}/{container.name}/{container.attempt}"
        try:
            container.log = Log(
                path,
                int(self._spec.get("logMaxBytes") or LOG_MAX_BYTES),
                int(self._spec.get("logMaxFiles") or LOG_MAX_FILES),
            )
            if container.spec.get("messagePath"):
                container.message = make_message(container.spec, self._folder)
            self._spawn(container)
        except StartError as error:
            self._ended(container, START_ERROR, 0, "StartError", str(error), started=False)
            return
        except OSError as error:
            self._ended(container, START_ERROR, 0, "StartError", f"cannot start: {error}", started=False)
            return
        # it counts as running after its postStart hook
        container.started_wall = time.time()
        container.report["pid"] = container.pid
        container.report.pop("ended", None)
        container.report["state"] = {"waiting": {"reason": "ContainerCreating"}}
        if not self._start_hook(container, POST_START):
            self._report_running(container)
        if self._pod["phase"] == "Pending" and container.role == "app":
            self._pod["phase"] = "Running"
        self._by_pid[container.pid] = container
        container.watch.due = time.monotonic() + 0.01
        self._dirty = True

    def _report_running(self, container: Container) -> None:
        container.report["state"] = {"running": {"startedAt": stamp(container.started_wall)}}
        self._dirty = True

    # -- its hooks

    def _start_hook(self, container: Container, kind: str) -> bool:
        """Start a hook if the container has one; False without it, or when it could not be started."""
        hook = (container.spec.get("hooks") or {}).get(kind)
        if not hook:
            return False
        try:
            is_privileged = not container.spec.get("hidden")
            pid = start_hook(hook, self._folder, container.pid, is_privileged=is_privileged)
        except OSError as error:
            self._report_hook(container, kind, str(error))
            return False
        container.hook_kind, container.hook_pid = kind, pid
        self._hooks[pid] = container
        return True

    def _hook_ended(self, container: Container, code: int) -> None:
        kind, container.hook_kind, container.hook_pid = container.hook_kind, "", 0
        if code and kind != CUT:
            self._report_hook(container, kind, f"exit code {code}")
        if not container.running:
            return
        if kind != POST_START:
            ask_to_end(container.pid)
            self._leave_time(container)
        elif code == 0:
            self._report_running(container)
        elif self._stop_at is None:
            container.kill_at = time.monotonic() + self._grace
            self._ask_to_end(container)

    def _leave_time(self, container: Container) -> None:
        """After a preStop hook, leave the container the least time between SIGTERM and SIGKILL."""
        least = time.monotonic() + AFTER_HOOK_SECONDS
        if container.kill_at is not None:
            container.kill_at = max(container.kill_at, least)
        if self._stop_at is not None:
            self._stop_at = max(self._stop_at, least)

    def _report_hook(self, container: Container, kind: str, why: str) -> None:
        container.report["hookFailed"] = f"{kind}: {why}"
        self._dirty = True

    def _cut_hook(self, container: Container) -> None:
        """End a preStop hook that took the whole grace period; SIGTERM follows when it has ended."""
        send(container.hook_pid, signal.SIGKILL)
        container.hook_kind = CUT
        self._report_hook(container, PRE_STOP, "it did not end within the grace period")

    def _ask_to_end(self, container: Container, *, hooks: bool = True) -> None:
        """Run the preStop hook, if there is one, and send SIGTERM after it."""
        if container.hook_kind == PRE_STOP and container.asked == container.attempt:
            return
        is_first, container.asked = container.asked != container.attempt, container.attempt
        if not (hooks and is_first and not container.hook_pid and self._start_hook(container, PRE_STOP)):
            ask_to_end(container.pid)

    def _spawn(self, container: Container) -> None:
        """Fork and exec a container. Raises StartError with containerd's message.

        A container from which a folder must be hidden starts behind a fence or not at all. For other
        containers, if the kernel refuses a namespace, translated paths are used for the rest of the pod's
        life. If it refuses a private root, this and all later starts use the root of this machine.
        """
        mounts = container.spec.get("mounts") or []
        hidden = str(container.spec.get("hidden") or "")
        mode = "none"
        if mounts:
            mode = str(self._spec.get("mountMode") or "namespace")
            if self._mounts == "translated" and not hidden:
                mode = "translated"
        kind, text = "", ""
        is_private = bool(self._spec.get("privateRoot")) and not self._private_error and mode != "translated"
        if is_private:
            kind, text = fork(container, "private", hidden, self._spec, self._folder)
            if kind == "shared":
                self._private_error = text
                is_private = False
        if not is_private:
            kind, text = fork(container, mode, hidden, self._spec, self._folder)
        if kind == "unfenced":
            raise StartError(
                f'the folder "{hidden}" of the cluster cannot be hidden from the container, so it is not started:'
                f" {text}; start the cluster again if the settings of this machine have changed"
            )
        if kind == "refused":
            self._mounts_error = text
            mode = "translated"
            kind, text = fork(container, mode, hidden, self._spec, self._folder)
        if mounts and self._mounts != "translated":
            self._mounts = mode
        if kind:
            raise StartError(text)
        for fd in container.pipes:
            self._poll.register(fd, select.POLLIN)

    def _read(self, fd: int, chunks: int = 4) -> bool:
        """Move the output of a container into its log; True when there is nothing more to come now."""
        for container in self._all:
            stream = container.pipes.get(fd)
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
                    self._close_pipe(container, fd)
                    return True
                if container.log is not None:
                    container.log.feed(stream, data)
            return False
        return True

    def _close_pipe(self, container: Container, fd: int) -> None:
        self._poll.unregister(fd)
        os.close(fd)
        del container.pipes[fd]

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            hooked = self._hooks.pop(pid, None)
            if hooked is not None:
                self._tree.gone(pid)
                self._hook_ended(hooked, abs(os.waitstatus_to_exitcode(status)))
                continue
            container = self._by_pid.pop(pid, None)
            if container is None:
                self._tree.gone(pid)
                continue
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            code = 128 + number if number else os.WEXITSTATUS(status)
            self._collect(container)
            reason, message = "Completed" if code == 0 else "Error", ""
            if container.reason_pending and number == signal.SIGKILL:
                reason, message = container.reason_pending, container.message_pending
            self._ended(container, code, number, reason, message, started=True)

    def _collect(self, container: Container) -> None:
        """After the end of the main process, end the rest of its tree and read the remaining output."""
        main = container.pid
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            if not may_have_children(besides=self._by_pid.keys()):
                for pid in self._tree.of(container.name):
                    self._tree.gone(pid)
                break
            self._tree.look(self._mains() | {main: container.name}, force=True)
            left = [pid for pid in self._tree.of(container.name) if pid != main and is_alive(pid)]
            if not left:
                break
            for pid in left:
                send(pid, signal.SIGKILL)
            self._reap_orphans(left)
            time.sleep(0.001)
        self._tree.gone(main)
        self._hooks.pop(container.hook_pid, None)  # it ends with its container
        container.hook_kind, container.hook_pid = "", 0
        for fd in list(container.pipes):
            while fd in container.pipes and not self._read(fd):
                pass
            if fd in container.pipes:  # a process outside the container's tree holds the other end
                self._close_pipe(container, fd)
        if container.log is not None:
            container.log.flush()

    def _mains(self) -> dict[int, str]:
        return {pid: container.name for pid, container in (*self._by_pid.items(), *self._hooks.items())}

    def _reap_orphans(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    self._tree.gone(pid)
            except ChildProcessError:
                pass

    def _ended(
        self, container: Container, code: int, number: int, reason: str, message: str, *, started: bool
    ) -> None:
        # the log is complete: it may explain the end
        now = time.time()
        if not message and started and container.message is not None:
            message = container.message.read()
        if code and not message and container.spec.get("messageFromLogs") and container.log is not None:
            message = container.log.tail(2048, 80)
        if container.log is not None:
            container.log.close()
            container.log = None
        # report the end
        terminated: dict[str, Any] = {
            "startedAt": stamp(container.started_wall) if started else "1970-01-01T00:00:00Z",
            "finishedAt": stamp(now),
            "exitCode": code,
            "signal": number,
            "reason": reason,
            "message": message,
            "containerID": container.report.get("containerID"),
            "peakMemoryBytes": container.watch.peak_bytes,
        }
        container.pid = 0
        container.kill_at = None
        container.report["pid"] = 0
        container.report["memoryBytes"] = 0
        container.report["peakMemoryBytes"] = max(container.report["peakMemoryBytes"], container.watch.peak_bytes)
        container.report["state"] = {"terminated": terminated}
        container.failed = code != 0
        self._dirty = True
        # is it started again?
        policy = "Always" if container.role == "sidecar" else self._policy
        if container.role == "init" and policy == "Always":
            policy = "OnFailure"
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        if not again or self._stop_at is not None:
            container.done = True
            return
        # when: at once, then after a wait that doubles
        base = float(self._spec.get("backoffSeconds") or BACKOFF_SECONDS)
        if started and now - container.started_wall > 2 * BACKOFF_MAX_SECONDS:
            container.backoff = 0.0
        wait = container.backoff
        container.backoff = min(BACKOFF_MAX_SECONDS, 2 * container.backoff) if container.backoff else base
        container.start_at = time.monotonic() + wait
        if wait:
            where = f"{self._spec['name']}_{self._spec['namespace']}({self._spec['uid']})"
            container.report["ended"] = terminated
            container.report["lastState"] = {"terminated": terminated}
            container.report["state"] = {
                "waiting": {
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off {_go_duration(wait)} restarting failed"
                    f" container={container.name} pod={where}",
                }
            }

    def _kill(self, container: Container) -> None:
        """Send SIGKILL to the whole tree; the loop reaps the main process."""
        self._tree.look(self._mains(), force=True)
        if container.pid:
            send(container.pid, signal.SIGKILL)
        for pid in self._tree.of(container.name):
            send(pid, signal.SIGKILL)

    def _watch(self) -> None:
        now = time.monotonic()
        due = [container for container in self._all if container.running and container.watch.due <= now]
        for container in self._all:
            if container.log is not None and container.log.waits():
                container.log.flush(older_than=PARTIAL_SECONDS)
        if due:
            self._tree.look(self._mains())
        for container in due:
            exceeded = container.watch.look(self._tree, self._tree.of(container.name))
            report = container.report
            before = report["memoryBytes"]
            report["memoryBytes"] = container.watch.now_bytes
            grown = container.watch.peak_bytes > 1.02 * report["peakMemoryBytes"]
            report["peakMemoryBytes"] = max(report["peakMemoryBytes"], container.watch.peak_bytes)
            if grown or abs(before - container.watch.now_bytes) > 0.02 * max(before, 1 << 20):
                self._unsaved_memory_since = self._unsaved_memory_since or now
            if exceeded and not container.reason_pending:
                container.reason_pending = "OOMKilled"
                limit = _mebibytes(container.watch.limit or 0)
                peak = _mebibytes(container.watch.now_bytes)
                container.message_pending = f"memory limit {limit} exceeded; peak {peak}"
                self._kill(container)
        if self._unsaved_memory_since is not None and now - self._unsaved_memory_since >= REPORT_SECONDS:
            self._save(durable=False)

    # -- the report

    def _finish(self) -> None:
        """Kill all remaining processes of the pod, and only then write the outcome."""
        kill_descendants(os.getpid())
        if "outcome" not in self._pod:
            ended = [
                (container.report["state"].get("terminated") or {}).get("exitCode") for container in self._apps
            ]
            self._pod["outcome"] = "Succeeded" if all(code == 0 for code in ended) else "Failed"
        if self._stop_reason:
            self._pod["outcome"] = "Failed"
            self._pod["reason"] = self._stop_reason
            self._pod["message"] = self._stop_message
        self._pod["phase"] = self._pod["outcome"]
        self._pod["finishedAt"] = stamp()
        for container in self._all:
            waiting = container.report["state"].get("waiting")
            last = container.report.get("ended")
            if waiting and last:
                container.report["state"] = {"terminated": last}
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
            "privateError": self._private_error,
            "fenceError": self._fence_error,
            "pod": self._pod,
            "containers": [container.report for container in self._all],
        }
        try:
            write_state(state, durable=durable)
            self._retry_save = 0.0
        except OSError as error:
            complain("state not written:", error)
            self._dirty = True
            self._retry_save = time.monotonic()
        notify(self._spec)


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
    """Format a duration like Go: 10s, 1m20s, 5m0s; below a second with decimals."""
    if seconds < 1 or seconds != int(seconds):
        return f"{seconds:g}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
