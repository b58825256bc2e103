"""The script around each container of a set: they wait for each other, and are run again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from moorage_workflows.executor.fetching import prepare
from moorage_workflows.executor.order import Order, Parameter

PATIENCE_SECONDS = 180


@dataclass(frozen=True)
class Group:
    """The folder that the containers of a set share, and the shell that runs their scripts."""

    folder: Path
    shell: tuple[str, ...]

    def command(self, name: str, script: str, *, needs: str = "", retries: int = 0, pause: str = "0") -> list[str]:
        member = [*self.shell, str(self.folder / "member.sh"), str(self.folder), name, str(retries), pause, needs]
        return [*member, "/bin/sh", "-c", script]

    def start(self, name: str, script: str, **more: object) -> subprocess.Popen[str]:
        command = self.command(name, script, **more)  # type: ignore[arg-type]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def wrapped(self, name: str, script: str, **more: object) -> subprocess.Popen[str]:
        """With outputs: the container main."""
        inner = self.command(name, script, **more)  # type: ignore[arg-type]
        command = [*self.shell, str(self.folder / "wrapper.sh"), str(self.folder), *inner]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def code(self, name: str) -> str:
        return (self.folder / "set" / name).read_text()


@pytest.fixture
def group(shell: tuple[str, ...], tmp_path: Path) -> Group:
    folder = tmp_path / "step"
    kept = (Parameter(name="p", path=str(tmp_path / "kept")),)
    prepare(folder, Order(workflow="w", pod="p", parameters=kept, members=("a", "b", "c", "main")))
    return Group(folder, shell)


def until(is_so: Callable[[], bool]) -> None:
    """Look again and again, as a shell tells nobody what it waits for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        os.sched_yield()


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def test_a_container_starts_when_all_that_it_depends_on_have_ended(group: Group, tmp_path: Path) -> None:
    log = tmp_path / "log"
    later = group.start("c", f"echo c >> {log}", needs="a,b")
    second = group.start("b", f"echo b >> {log}", needs="a")
    first = group.start("a", f"echo a >> {log}")
    assert [ends(each)[0] for each in (first, second, later)] == [0, 0, 0]
    assert log.read_text().split() == ["a", "b", "c"]
    assert [group.code(name) for name in ("a", "b", "c")] == ["0\n", "0\n", "0\n"]


def test_what_depends_on_a_failed_container_does_not_run(group: Group) -> None:
    third, second = group.start("c", "echo c", needs="b"), group.start("b", "echo b", needs="a")
    assert ends(group.start("a", "exit 3"))[0] == 3
    code, out, err = ends(second)
    assert (code, out) == (64, "")
    assert "the container a, which it depends on, ended with exit code 3" in err
    assert ends(third)[:2] == (64, "")
    assert (group.code("a"), group.code("b"), group.code("c")) == ("3\n", "64\n", "64\n")


def test_what_depends_on_a_killed_container_does_not_run(group: Group, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    subprocess.run(["mkfifo", ready], check=True)
    later = group.start("b", "echo b", needs="a")
    killed = group.start("a", f"echo up > {ready}; exec sleep 600")
    ready.read_text()  # the script has opened its pipe before
    os.killpg(killed.pid, signal.SIGKILL)  # as the kernel kills a container for its memory
    killed.communicate(timeout=PATIENCE_SECONDS)
    code, out, err = ends(later)
    assert (code, out) == (64, "")
    assert "exit code 137" in err


def test_what_was_killed_before_anybody_waited_for_it_has_failed(group: Group) -> None:
    (group.folder / "set" / "a.started").touch()
    assert ends(group.start("b", "echo b", needs="a"))[:2] == (64, "")


def test_a_command_that_fails_runs_again_as_often_as_is_said(group: Group, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    count = f"echo x >> {runs}; [ $(wc -l < {runs}) -ge 3 ]"
    assert ends(group.start("a", count, retries=5))[0] == 0
    assert runs.read_text().count("x") == 3
    assert ends(group.start("b", f"echo x >> {runs}; exit 4", retries=2, pause="0.01"))[0] == 4
    assert runs.read_text().count("x") == 6


def test_a_command_that_does_not_exist_is_not_tried_again(group: Group) -> None:
    command = group.command("a", "", retries=3)
    answer = subprocess.run([*command[:-3], "no-such-command"], capture_output=True, text=True, check=False)
    assert answer.returncode == 64
    assert answer.stderr.count("executable file not found") == 1
    assert group.code("a") == "64\n"


@pytest.mark.parametrize(
    ("on_term", "code"),
    [
        pytest.param("exit 9", 9, id="it fails"),
        pytest.param("exit 0", 85, id="it leaves with 0"),
        pytest.param('touch "$MOORAGE_DONE_FILE"; exit 0', 0, id="it says that it has finished"),
    ],
)
def test_a_signal_ends_the_command_and_no_other_try_follows(group, tmp_path, on_term, code) -> None:
    ready = tmp_path / "ready"
    subprocess.run(["mkfifo", ready], check=True)
    script = f"trap '{on_term}' TERM; echo up > {ready}; while :; do sleep 0.05; done"
    process = group.start("a", script, retries=5)
    ready.read_text()
    process.send_signal(signal.SIGTERM)
    assert ends(process)[0] == code
    assert group.code("a") == f"{code}\n"


def test_a_signal_ends_a_container_that_waits(group: Group) -> None:
    (group.folder / "set" / "a.started").touch()
    held = os.open(group.folder / "set" / "a.alive", os.O_RDWR)  # as if the container a were running
    waiting = group.start("b", "echo b", needs="a")
    until(lambda: (group.folder / "set" / "b.started").exists())
    waiting.send_signal(signal.SIGTERM)
    assert ends(waiting)[:2] == (143, "")
    os.close(held)
    assert group.code("b") == "143\n"


def test_outputs_are_kept_when_every_container_has_ended(group: Group, tmp_path: Path) -> None:
    """A path in a shared volume may be written by another container than main."""
    main = group.wrapped("main", "true")
    others = [
        group.start("a", f"sleep 0.2; echo late > {tmp_path / 'kept'}"),
        group.start("b", "exit 0", needs="main"),
        group.start("c", "exit 0"),
    ]
    assert [ends(each)[0] for each in (*others, main)] == [0, 0, 0, 0]
    assert (group.folder / "out" / "0.parameter").read_text() == "late\n"
