"""The next step of a worker: it takes leases, runs them in its slots, reports, and stops in order when asked.

One thread runs the loop (`Engine.run`); the threads of `wire` only send. Rules by number are those of
docs/design/0005-map.md.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .child import preload
from .orders import LEAVING_SECONDS, Orders
from .slots import CommandSlot, FunctionSlot, Scarce, Slot, Task
from .wire import Exchanger, Heart, Line, OutputSender, Refused

if TYPE_CHECKING:
    from .slots import Report
    from .wire import Answer

WORK = "/api/v1/work"
OUTPUT = "/api/v1/work/output"
OUTPUT_SECONDS = 30.0  # a worker that leaves tries at most so long to send its output before its last request
HOLD_SECONDS = 20.0  # the server may keep a request for items so long
WANT = 100  # items requested at once; the server returns as many as fit
REPORT_SECONDS = 1.0  # an answer waits here so long for others to go with it
REPORT_MANY = 100  # or until there are so many
BODY_BYTES = 6 * 1024 * 1024  # of answers in one request
LOOK_SECONDS = 0.1  # between two looks at memory
SCARCE_PAUSE_SECONDS = 1.0  # after an item could not be started for lack of processes, memory, files or disk
SCARCE_SECONDS = 60.0  # nothing runs and nothing can be started for so long: the worker ends
SLOT_FILES = 7  # that a loaded function needs: two socket pairs, three pipes; a command needs one
OWN_FILES = 64  # of the worker: connections, standard streams, and pipes while a process starts
FIRST_LEASE_SECONDS = 15.0  # assumed until the server has said


class Engine:
    """One worker. `run` returns the exit code."""

    def __init__(self, orders: Orders, child: list[str]) -> None:
        self._orders = orders
        self._selector = selectors.DefaultSelector()
        self._scratch = tempfile.mkdtemp(prefix="moorage-")
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = os.pipe()
        for fd in (self._wake_in, self._wake_out):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._drain)
        self._line = Line(orders.server, orders.token)
        self._exchanger = Exchanger(self._line, WORK, self._answers, self._wake)
        self._heart = Heart(Line(orders.server, orders.token), WORK, self._heartbeat, self._hear)
        self._output = OutputSender(
            Line(orders.server, orders.token), OUTPUT, orders.session, orders.pod, self._wake
        )
        self._todo: deque[Task] = deque()
        self._slots = [self._make_slot(child) for _ in range(slots_with_files(orders.slots))]
        self._reports: list[Report] = []  # not acknowledged yet
        self._oldest = 0.0  # when the first unsent report came
        self._unsent = 0
        self._held_lock = threading.Lock()
        self._held: list[list[int]] = []
        self._lease = FIRST_LEASE_SECONDS
        self._timeout: float | None = None
        self._number = 0
        self._sent: tuple[int, int, bool, float] | None = None  # number, reports in it, wants, may be held
        self._asked_at = 0.0
        self._dry = False  # the last answer had no items
        self._leaving = False
        self._leave_by = 0.0
        self._bye_by = 0.0  # set when it leaves and runs nothing more
        self._bye_sent = False
        self._exit: int | None = None
        self._code = 0  # when it has left in order
        self._reason = ""
        self._try_again = 0.0  # nothing could be started: not before then
        self._scarce_since: float | None = None

    # -- the loop

    def run(self) -> int:
        if self._orders.function is not None:
            preload(self._orders.function)
        for slot in self._slots:  # may fork: before there are threads, and before signals are ours
            slot.warm()
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._start_leaving)
        for thread in (self._exchanger, self._heart, self._output):
            thread.start()
        next_look = 0.0
        try:
            while self._exit is None:
                self._turn()
                if self._exit is not None:
                    break
                for key, _ in self._selector.select(self._pause()):
                    key.data(key.fd)
                now = time.monotonic()
                if now >= next_look:
                    next_look = now + LOOK_SECONDS
                    for slot in self._slots:
                        slot.look(now)
                self._reap()
        finally:
            for slot in self._slots:
                slot.kill()
            self._heart.stopped.set()
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._output.drain(LEAVING_SECONDS)
        if self._reason:
            say(self._reason)
        return self._exit

    def _turn(self) -> None:
        while True:
            try:
                number, reply, refused = self._answers.get_nowait()
            except queue.Empty:
                break
            self._answered(number, reply, refused)
        while True:
            try:
                heard = self._heard.get_nowait()
            except queue.Empty:
                break
            self._drop(heard.get("lost") or [])
            self._mind(heard["state"])
        if self._orders.parent and os.getppid() != self._orders.parent:
            self._reason, self._exit = "the process that started it has ended", 0
            return
        now = time.monotonic()
        if self._leaving:
            self._hand_back()
            if now >= self._leave_by:
                for slot in self._slots:
                    slot.stop("preempted")
        else:
            self._begin()
        self._note_held()
        self._talk(now)

    def _pause(self) -> float:
        now = time.monotonic()
        times = [now + HOLD_SECONDS]
        if any(slot.task is not None for slot in self._slots):
            times.append(now + LOOK_SECONDS)
        times += [at for at in (slot.next_time() for slot in self._slots) if at is not None]
        if self._unsent:
            times.append(self._oldest + REPORT_SECONDS)
        if self._leaving:
            times += [at for at in (self._leave_by, self._bye_by) if at > now]
        elif self._todo and self._try_again > now:
            times.append(self._try_again)
        return max(0.0, min(times) - now)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            slot = next((slot for slot in self._slots if slot.pid == ended.si_pid), None)
            if slot is not None:
                slot.kill()
            _, status, used = os.wait4(ended.si_pid, 0)
            if slot is not None:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                slot.exited(code, used.ru_maxrss * 1024)

    def _wake(self) -> None:
        try:
            os.write(self._wake_out, b"x")
        except OSError:
            pass  # it is awake already, or has ended

    def _drain(self, fd: int) -> None:
        try:
            while len(os.read(fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    # -- items

    def _begin(self) -> None:
        """Give each free slot an item, and those with short ones the next."""
        if time.monotonic() < self._try_again:
            return
        for slot in self._slots:
            while slot.task is None and self._exit is None and (self._todo or self._recall()):
                task = self._todo.popleft()
                try:
                    slot.start(task, self._timeout)
                except Scarce as lack:
                    self._todo.appendleft(task)
                    self._wait_for_room(str(lack))
                    return
                self._scarce_since = None
        for slot in self._slots:
            if not self._todo:
                break
            if slot.follow(self._todo[0]):
                self._todo.popleft()

    def _wait_for_room(self, lack: str) -> None:
        """Try again later. A worker that cannot start an item for a long time returns its leases, and ends."""
        now = time.monotonic()
        self._try_again = now + SCARCE_PAUSE_SECONDS
        if self._scarce_since is None or any(slot.task is not None for slot in self._slots):
            self._scarce_since = now
        elif now >= self._scarce_since + SCARCE_SECONDS:
            self._reason, self._code = f"items cannot be started here: {lack}", 1
            self._start_leaving()

    def _recall(self) -> bool:
        """Take back one item that waits behind another, for a slot that has none; whether there was one."""
        for slot in self._slots:
            task = slot.recall()
            if task is not None:
                self._todo.append(task)
                return True
        return False

    def _make_slot(self, child: list[str]) -> Slot:
        common = (self._selector, self._ended, self._output.add, self._orders.item_memory, self._scratch)
        if self._orders.command is not None:
            return CommandSlot(*common, command=self._orders.command)
        assert self._orders.function is not None
        return FunctionSlot(
            *common,
            child=child,
            function=self._orders.function,
            broken=self._broken,
            returned=self._todo.appendleft,
        )

    def _ended(self, _slot: Slot, report: Report) -> None:
        if report:
            self._report(report)

    def _report(self, report: Report) -> None:
        if not self._unsent:
            self._oldest = time.monotonic()
        self._reports.append(report)
        self._unsent += 1

    def _broken(self, why: str) -> None:
        self._reason = why
        self._exit = 3

    def _drop(self, pairs: list[list[int]]) -> None:
        """Leases that are not ours any more: rule 5."""
        gone = {tuple(pair) for pair in pairs}
        if not gone:
            return
        for slot in self._slots:
            task = slot.recall()
            if task is not None:
                self._todo.appendleft(task)
            slot.settle()
        kept = [task for task in self._todo if tuple(task.pair) not in gone]
        self._todo.clear()
        self._todo.extend(kept)
        for slot in self._slots:
            if slot.task is not None and tuple(slot.task.pair) in gone:
                slot.stop("dropped")

    def _start_leaving(self, *_: Any) -> None:
        if not self._leaving:
            self._leaving = True
            self._leave_by = time.monotonic() + max(0.0, self._orders.grace - LEAVING_SECONDS)

    def _hand_back(self) -> None:
        while self._recall():
            pass
        while self._todo:
            task = self._todo.popleft()
            self._report({"item": task.item, "lease": task.lease, "outcome": "returned"})

    def _holds(self, unsent: int) -> list[list[int]]:
        """All leases that the worker holds, including those of the last `unsent` reports."""
        held = [task.pair for task in self._todo]
        for slot in self._slots:
            held += [task.pair for task in (slot.task, slot.ahead) if task is not None]
        held += [[report["item"], report["lease"]] for report in self._reports[len(self._reports) - unsent :]]
        return held

    def _note_held(self) -> None:
        held = self._holds(len(self._reports))
        with self._held_lock:
            self._held = held

    def _heartbeat(self) -> tuple[dict[str, Any], float]:
        with self._held_lock:
            held = list(self._held)
        return {"session": self._orders.session, "request": 0, "held": held}, self._lease / 3

    def _hear(self, reply: dict[str, Any]) -> None:
        if reply.get("lost") or reply["state"] == "cancelled":
            self._heard.put(reply)
            self._wake()

    # -- the talk

    def _talk(self, now: float) -> None:
        """Send the next request when there is something to say or to ask."""
        running = sum(1 for slot in self._slots if slot.task is not None)
        idle = len(self._slots) - running
        if self._leaving and not running and not self._todo:
            if not self._bye_sent and self._has_sent_output(now):
                self._bye_sent = True
                self._send(now, want=0, hold=0.0, bye=True)
            if self._bye_sent:
                return
        wants = not self._leaving and not self._todo and (bool(idle) or not self._dry)
        due = self._unsent and (
            self._unsent >= REPORT_MANY or now >= self._oldest + REPORT_SECONDS or (wants and bool(idle))
        )
        if self._sent is not None:
            held = self._sent[3] > 0
            if not (held and due):
                return  # one at a time: rule 1; but an answer does not wait behind a request that is held: rule 2
        if due or (wants and self._sent is None):
            self._send(now, want=WANT if wants else 0, hold=HOLD_SECONDS if wants and idle else 0.0, bye=False)

    def _has_sent_output(self, now: float) -> bool:
        """Whether all output is at the server, which takes `bye` for its end; or has waited long enough."""
        if not self._bye_by:
            left = max(0.0, self._leave_by - now) + LEAVING_SECONDS / 2
            self._bye_by = now + min(left, OUTPUT_SECONDS)
            self._output.hurry()
        return now >= self._bye_by or not self._output.waits()

    def _send(self, now: float, *, want: int, hold: float, bye: bool) -> None:
        reports: list[str] = []
        size = 0
        for report in self._reports:
            text = json.dumps(report, allow_nan=False)
            if reports and size + len(text) > BODY_BYTES:
                break
            reports.append(text)
            size += len(text)
        if len(reports) < len(self._reports) and bye:
            bye, self._bye_sent = False, False
        self._number += 1
        head = {
            "session": self._orders.session,
            "request": self._number,
            "held": self._holds(len(self._reports) - len(reports)),
            "want": want,
            "slots": len(self._slots),
            "memory": self._orders.item_memory,
            "wait": hold,
            "bye": bye,
        }
        body = json.dumps(head)[:-1] + ', "reports": [' + ", ".join(reports) + "]}"
        self._sent = (self._number, len(reports), want > 0, hold)
        self._unsent = len(self._reports) - len(reports)
        self._oldest = now
        self._exchanger.ask(self._number, body.encode(), hold)

    def _answered(self, number: int, reply: dict[str, Any] | None, refused: Refused | None) -> None:
        if self._sent is None or number != self._sent[0]:
            return  # overtaken
        _, reported, wanted, _ = self._sent
        self._sent = None
        if refused is not None:
            self._refused(refused)
            return
        assert reply is not None
        if reply["state"] == "stale":
            self._unsent = len(self._reports)
            return
        del self._reports[:reported]
        self._lease = float(reply["lease"])
        self._timeout = reply.get("timeout")
        self._drop(reply.get("lost") or [])
        items = reply.get("items") or []
        self._todo.extend(Task(item, lease, value) for item, lease, value in items)
        if wanted:
            self._dry = not items
        if self._bye_sent:
            self._exit = self._code
        else:
            self._mind(reply["state"])

    def _mind(self, state: str) -> None:
        """React to the map's state."""
        if state == "cancelled":
            self._start_leaving()
            self._leave_by = 0.0
        elif state == "finished" and not self._leaving:
            self._leaving = True
            self._leave_by = time.monotonic() + self._orders.grace

    def _refused(self, refused: Refused) -> None:
        if refused.status == 410:
            self._reason, self._exit = f"the map was deleted: {refused}", 0
        elif refused.code == "result_too_large":
            for report in self._reports:
                if len(json.dumps(report.get("value"))) > 200 * 1024:
                    report.pop("value")
                    report.update(outcome="error", message=str(refused))
            self._unsent = len(self._reports)
        elif refused.status in (401, 403):
            self._reason, self._exit = f"the server refuses this map's token: {refused}", 3
        else:
            self._reason, self._exit = f"the server does not understand this worker: {refused}", 1


def slots_with_files(slots: int) -> int:
    """Of so many slots those for which there are numbers of open files; at least one.

    Raises the soft limit for them as far as the hard limit lets, and not further: items inherit it, and some
    programs close all numbers below it before they begin.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = slots * SLOT_FILES + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return slots
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    fitting = min(slots, max(1, (allowed - OWN_FILES) // SLOT_FILES))
    if fitting < slots:
        print(
            f"moorage worker: runs {fitting} items at once, not {slots}: {slots} slots need {needed} open files,"
            f" the limit here is {allowed}",
            file=sys.stderr,
            flush=True,
        )
    return fitting


def say(text: str) -> None:
    """The last line, also where Kubernetes looks for the reason of an end."""
    sys.stdout.flush()
    print(f"moorage worker: {text}", file=sys.stderr, flush=True)
    try:
        with open("/dev/termination-log", "r+") as file:
            file.write(text[:2000])
    except OSError:
        pass  # not in a container
