"""The supervisor of `moor up` with real processes: what dies or hangs is replaced, and a note may fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.killing import is_alive

CHILD = """
import argparse, asyncio, os, signal
from moorage_kube.parent import answer_parent, end_with_parent, tell_parent

async def run(options):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    answer_parent(options.alive_fd)
    if options.ready_fd is not None:
        tell_parent(options.ready_fd, "child ready")
    with open(os.path.join(options.data, "starts"), "a") as file:
        file.write(f"{os.getpid()}\\n")
    await stop.wait()

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--fds")
parser.add_argument("--alive-fd", type=int)
parser.add_argument("--ready-fd", type=int)
end_with_parent()
asyncio.run(run(parser.parse_args()))
"""
SUPERVISE = """
import pathlib, sys
from moorage.cli.supervisor import supervise
ready = int(sys.argv[2]) if len(sys.argv) > 2 else None
supervise(pathlib.Path(sys.argv[1]), {}, ready, children={"child": "child"}, hang_seconds=5.0)
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    for part in ("run", "log"):
        (tmp_path / part).mkdir()
    return tmp_path


@pytest.fixture
def supervisor(folder: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, stderr: str = "supervisor.log", fds: tuple[int, ...] = ()):
            env = os.environ | {"PYTHONPATH": str(folder)}
            with (folder / stderr).open("wb") as errors:
                argv = [sys.executable, "-c", SUPERVISE, str(folder), *arguments]
                process = subprocess.Popen(argv, env=env, stderr=errors, pass_fds=fds, cwd="/")
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            return process

        yield start


def child(folder: Path, number: int) -> int:
    """The process of the child's start of that number, once there is one."""

    def starts() -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (folder / "starts").read_text().splitlines()[number - 1 :]
        return []

    return int(wait_until(f"start {number} of the child", starts)[0])


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param("run/child.pid", id="the number of a child"),
        pytest.param("run/supervisor.pid", id="its own number"),
        pytest.param("log/child.log", id="the log of a child"),
    ],
)
def test_a_disk_that_takes_no_note_ends_no_supervisor(folder: Path, supervisor: Start, taken: str) -> None:
    (folder / taken).symlink_to("/dev/full")
    process = supervisor()
    os.kill(child(folder, 1), signal.SIGKILL)
    assert is_alive(child(folder, 2))
    assert process.poll() is None


def test_a_supervisor_whose_own_log_is_full_replaces_a_child(folder: Path, supervisor: Start) -> None:
    (folder / "errors").symlink_to("/dev/full")
    (folder / "run" / "child.pid").symlink_to("/dev/full")
    process = supervisor(stderr="errors")
    os.kill(child(folder, 1), signal.SIGKILL)
    assert is_alive(child(folder, 2))
    assert process.poll() is None


def test_what_could_not_be_noted_is_reported_once_and_noted_later(folder: Path, supervisor: Start) -> None:
    pid = folder / "run" / "child.pid"
    pid.mkdir()
    supervisor()
    os.kill(child(folder, 1), signal.SIGKILL)
    second = child(folder, 2)
    pid.rmdir()
    wait_until("the note", lambda: pid.is_file() and pid.read_text() == f"{second}\n")
    assert (folder / "supervisor.log").read_text().count("pid file cannot be written") == 1


def test_a_child_that_hangs_is_replaced(folder: Path, supervisor: Start) -> None:
    supervisor()
    first = child(folder, 1)
    os.kill(first, signal.SIGSTOP)
    second = child(folder, 2)
    assert not is_alive(first)
    assert is_alive(second)
    assert "child has not answered for 5 s: it is replaced" in (folder / "supervisor.log").read_text()


def test_whoever_waits_for_a_start_is_told_that_the_next_one_is_ready(folder: Path, supervisor: Start) -> None:
    read, write = os.pipe()
    supervisor(str(write), fds=(write,))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.readline() == b"child ready\n"
        os.kill(child(folder, 1), signal.SIGKILL)
        assert [pipe.readline(), pipe.readline()] == [b"child ended with exit code -9\n", b"child ready\n"]
