"""The map worker's slots: owners of pipes, and items without room."""

from __future__ import annotations

import os
import resource
import selectors
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.interruptions import is_interruption
from moorage.worker import runner
from moorage.worker.mapworker.engine import OWN_FILES, SLOT_FILES, slots_with_files
from moorage.worker.mapworker.slots import CommandSlot, Scarce, Slot, Source, Task


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as created:
        yield created


@pytest.fixture
def reports() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def no_more_files() -> Iterator[Callable[[], None]]:
    """Takes every number of an open file that is left, until the test ends or calls `restore`."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def take() -> None:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, before[1]))
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return

    yield take
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for fd in taken:
        os.close(fd)


def ready(selector: selectors.BaseSelector) -> None:
    for key, _ in selector.select(0):
        key.data(key.fd)


def test_a_closed_source_neither_reads_nor_closes_the_pipe_that_has_its_number_now(selector):
    reading, writing = os.pipe()
    first = Source(selector, reading, lambda _: None)
    first.close()
    os.close(writing)
    again, writing = os.pipe()
    assert again == reading, "the lowest free number is given first"
    got: list[bytes | None] = []
    second = Source(selector, again, lambda source: got.append(source.read(100)))
    os.write(writing, b"the second's")
    assert first.read(100) == b""
    first.ignore()
    first.close()
    ready(selector)
    assert got == [b"the second's"]
    second.close()
    os.close(writing)


def test_a_source_closed_by_another_in_the_same_round_of_events_is_not_called(selector):
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []
    sources: list[Source] = []

    def call(source: Source) -> None:
        called.append(sources.index(source))
        for other in sources:
            other.close()

    sources += [Source(selector, reading, call) for reading, _ in pipes]
    for _, writing in pipes:
        os.write(writing, b"x")
    ready(selector)
    assert len(called) == 1
    for _, writing in pipes:
        os.close(writing)


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "write", "read"]), st.integers(0, 5)), max_size=40))
def test_each_source_reads_what_was_written_for_it_whatever_was_closed_between(steps):
    """Against a model: a list of what was written and not yet read."""
    live: dict[int, tuple[Source, int, bytes]] = {}
    with selectors.DefaultSelector() as selector:
        for count, (step, at) in enumerate(steps):
            if step == "open" and at not in live:
                reading, writing = os.pipe()
                live[at] = (Source(selector, reading, lambda _: None), writing, b"")
            elif at in live:
                source, writing, waiting = live[at]
                if step == "close":
                    source.close()
                    os.close(writing)
                    assert source.read(1000) == b""
                    del live[at]
                elif step == "write":
                    os.write(writing, b"%d," % count)
                    live[at] = (source, writing, waiting + b"%d," % count)
                elif step == "read":
                    assert source.read(1000) == (waiting or None)
                    live[at] = (source, writing, b"")
        assert len(selector.get_map()) == len(live)
        for source, writing, _ in live.values():
            source.close()
            os.close(writing)


def a_slot(selector: selectors.BaseSelector, scratch: Path, reports: list[dict[str, Any]], *command: str) -> Slot:
    return CommandSlot(
        selector, lambda _, report: reports.append(report), lambda *_: None, 0, str(scratch), command=list(command)
    )


def until_ended(slot: Slot) -> None:
    assert slot.pid is not None
    os.waitid(os.P_PID, slot.pid, os.WEXITED | os.WNOWAIT)
    slot.kill()
    _, status, _ = os.wait4(slot.pid, 0)
    slot.exited(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), 0)


def test_an_item_that_cannot_be_started_for_want_of_files_has_not_failed(
    selector, tmp_path, reports, no_more_files
):
    slot = a_slot(selector, tmp_path, reports, "sh", "-c", "printf 1 > $MOORAGE_RESULT")
    no_more_files()
    with pytest.raises(Scarce, match="Too many open files"):
        slot.start(Task(0, 1, "x"), None)
    assert slot.task is None
    assert reports == []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft + 16, hard))
    slot.start(Task(0, 2, "x"), None)
    until_ended(slot)
    assert [(report["outcome"], report["value"], report["lease"]) for report in reports] == [("done", 1, 2)]
    assert not selector.get_map()
    assert list(tmp_path.iterdir()) == []


def test_an_item_whose_command_is_not_there_has_failed_and_leaves_nothing_open(selector, tmp_path, reports):
    slot = a_slot(selector, tmp_path, reports, "no-such-program-here")
    before = set(os.listdir("/proc/self/fd"))
    slot.start(Task(0, 1, "x"), None)
    assert reports[0]["outcome"] == "error"
    assert reports[0]["message"].startswith("cannot be started: [Errno 2]")
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not selector.get_map()
    assert list(tmp_path.iterdir()) == []


def test_an_item_that_removes_the_scratch_folder_takes_no_other_with_it(selector, tmp_path, reports):
    slot = a_slot(selector, tmp_path / "scratch", reports, "sh", "-c", "printf 2 > $MOORAGE_RESULT")
    slot.start(Task(0, 1, "x"), None)
    until_ended(slot)
    (tmp_path / "scratch").rmdir()
    slot.start(Task(1, 1, "x"), None)
    until_ended(slot)
    assert [report["outcome"] for report in reports] == ["done", "done"]


def test_children_of_an_item_end_with_it_and_nothing_is_signalled_afterwards(selector, tmp_path, reports):
    """Afterwards the number may be another's."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    slot = a_slot(selector, tmp_path, reports, "sh", "-c", f"sleep 600 > {fifo} & exit 0")
    slot.start(Task(0, 1, "x"), None)
    until_ended(slot)
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b"", "nobody has it open any more"
    os.close(reading)
    assert slot.pid is None
    slot.kill()
    slot.stop("preempted")
    assert [report["outcome"] for report in reports] == ["done"]


@pytest.mark.parametrize(
    ("on_term", "report"),
    [
        pytest.param("exit 0", {"outcome": "preempted"}, id="it leaves with 0"),
        pytest.param("printf 7 > $MOORAGE_RESULT; exit 0", {"outcome": "preempted"}, id="half a result is none"),
        pytest.param("exit 3", {"outcome": "preempted"}, id="it leaves with another exit code"),
        pytest.param(
            "printf 7 > $MOORAGE_RESULT; touch $MOORAGE_DONE_FILE; exit 0",
            {"outcome": "done", "value": 7},
            id="it says that it has finished",
        ),
    ],
)
def test_an_item_that_leaves_when_stopped_is_done_only_by_its_done_file(
    selector, tmp_path, reports, on_term, report
):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"trap '{on_term}' TERM; : > {fifo}; while :; do sleep 1; done"
    slot = a_slot(selector, tmp_path / "scratch", reports, "sh", "-c", script)
    slot.start(Task(0, 1, "x"), None)
    fifo.read_bytes()
    slot.stop("preempted")
    until_ended(slot)
    assert {key: reports[0].get(key) for key in report} == report


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("says_so", [False, True], ids=["", "it says that it has finished"])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["by itself", "told to stop"])
def test_items_end_by_the_rule_of_runs(selector, tmp_path, reports, code, says_so, is_stopped):
    begun, done_file = tmp_path / "begun", tmp_path / "done"
    os.mkfifo(begun)
    end = f"touch $MOORAGE_DONE_FILE; exit {code}" if says_so else f"exit {code}"
    script = f"trap '{end}' TERM; : > {begun}; while :; do sleep 1; done" if is_stopped else end
    slot = a_slot(selector, tmp_path / "scratch", reports, "sh", "-c", script)
    slot.start(Task(0, 1, "x"), None)
    if is_stopped:
        begun.read_bytes()
        slot.stop("preempted")
    until_ended(slot)
    if says_so:
        done_file.touch()
    exit_code = runner.end_after_stop(code, str(done_file)) if is_stopped else code
    ended = datetime(2026, 11, 21, tzinfo=UTC)
    is_interrupted = is_interruption(
        exit_code=exit_code, ended=ended, stopped_at=ended if is_stopped else None, is_watched=True
    )
    outcome = "preempted" if is_interrupted else "error" if exit_code else "done"
    assert reports[0]["outcome"] == outcome


def test_an_item_that_has_ended_when_it_is_told_to_stop_is_done(selector, tmp_path, reports):
    slot = a_slot(selector, tmp_path, reports, "sh", "-c", "printf 7 > $MOORAGE_RESULT")
    slot.start(Task(0, 1, "x"), None)
    assert slot.pid is not None
    os.waitid(os.P_PID, slot.pid, os.WEXITED | os.WNOWAIT)
    slot.stop("preempted")
    until_ended(slot)
    assert [(report["outcome"], report["value"]) for report in reports] == [("done", 7)]


@pytest.mark.parametrize(
    ("soft", "hard", "slots", "wanted", "raised"),
    [
        pytest.param(1024, 4096, 16, 16, 1024, id="there are enough: nothing changes"),
        pytest.param(100, 4096, 16, 16, 16 * SLOT_FILES + OWN_FILES, id="raised to what is needed"),
        pytest.param(100, 120, 16, (120 - OWN_FILES) // SLOT_FILES, 120, id="fewer slots"),
        pytest.param(60, 60, 16, 1, 60, id="one at least"),
    ],
)
def test_slots_are_as_many_as_there_are_files_for(soft, hard, slots, wanted, raised):
    reading, writing = os.pipe()
    pid = os.fork()  # a hard limit does not come back
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            fitting = slots_with_files(slots)
            os.write(writing, b"%d %d" % (fitting, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as out:
        assert out.read() == b"%d %d" % (wanted, raised)
