"""The script around a step's command, under every shell that this machine has."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from moorage.decide.interruptions import STOPPED
from moorage_workflows.executor import pack
from moorage_workflows.executor.fetching import prepare
from moorage_workflows.executor.order import Order, Output, Parameter

PATIENCE_SECONDS = 180


@dataclass(frozen=True)
class Step:
    """A step's folder, and the shell that runs the script in it."""

    folder: Path
    shell: tuple[str, ...]

    def prepare(self, order: Order) -> None:
        prepare(self.folder, order)

    def command(self, *words: str) -> list[str]:
        return [*self.shell, str(self.folder / "wrapper.sh"), str(self.folder), *words]

    def run(self, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=PATIENCE_SECONDS, **more
        )  # type: ignore[call-overload, no-any-return]

    def kept(self, name: str) -> str:
        return (self.folder / "out" / name).read_text()

    def names(self) -> set[str]:
        return set(os.listdir(self.folder / "out"))


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that knows SIGHUP, also where the suite was started by `nohup`; it is ended with the test."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def step(shell: tuple[str, ...], tmp_path: Path) -> Step:
    return Step(tmp_path / "step", shell)


def sh(text: str) -> Sequence[str]:
    return ("/bin/sh", "-c", text)


RESULT = Order(workflow="w", pod="p", keeps_result=True)
PLAIN = Order(workflow="w", pod="p", artifacts=(Output(name="a", path="/nowhere"),))


def test_the_output_goes_where_it_went_and_into_the_result(step: Step) -> None:
    step.prepare(RESULT)
    done = step.run(*sh("echo one; echo two >&2; printf three"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\nthree", "two\n")
    assert (step.kept("result"), step.kept("done")) == ("one\nthree", "0\n")
    assert not [name for name in step.names() if name.endswith(".pipe")]


def test_the_log_has_both_streams(step: Step) -> None:
    step.prepare(Order(workflow="w", pod="p", keeps_logs=True, keeps_result=True))
    done = step.run(*sh("echo one; echo two >&2"))
    assert (done.stdout, done.stderr) == ("one\n", "two\n")
    assert sorted(step.kept("log").splitlines()) == ["one", "two"]
    assert step.kept("result") == "one\n"


def test_of_a_long_output_the_end_is_the_result(step: Step) -> None:
    step.prepare(RESULT)
    done = step.run(*sh("i=0; while [ $i -lt 40000 ]; do echo line-$i; i=$((i+1)); done"))
    assert done.stdout.endswith("line-39999\n")
    assert step.kept("result") == done.stdout[-262145:]


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_commands_own(step: Step, code: int) -> None:
    step.prepare(PLAIN)
    assert step.run(*sh(f"exit {code}")).returncode == code
    assert step.kept("done") == f"{code}\n"


def test_a_command_that_was_killed_ends_as_in_a_shell(step: Step) -> None:
    step.prepare(PLAIN)
    assert step.run(*sh("kill -9 $$")).returncode == 137


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("no-such-program", "x"), id="on no path"),
        pytest.param(("/no/such/program",), id="no such file"),
        pytest.param((__file__,), id="not executable"),
        pytest.param(("/etc",), id="a folder"),
        pytest.param(("",), id="empty"),
        pytest.param((), id="none"),
    ],
)
def test_a_command_that_does_not_exist_ends_with_64(step: Step, command: tuple[str, ...]) -> None:
    step.prepare(RESULT)
    done = step.run(*command)
    assert done.returncode == 64
    assert "executable file not found" in done.stderr
    assert (step.kept("done"), step.kept("result")) == ("64\n", "")


def test_programs_are_those_of_the_path_not_those_of_the_shell(step: Step, tmp_path: Path) -> None:
    mine = tmp_path / "bin with space"
    mine.mkdir()
    (mine / "ls").write_text("#!/bin/sh\necho mine \"$1\" '*'\n")
    (mine / "ls").chmod(0o755)
    step.prepare(RESULT)
    done = step.run("ls", "a  b", env={"PATH": f"/nowhere:{mine}:{os.environ['PATH']}"})
    assert done.stdout == "mine a  b *\n"


def test_arguments_and_standard_input_arrive_as_they_are(step: Step) -> None:
    step.prepare(RESULT)
    words = ["-n", "", "a b", "'\"$x`", "*", "\\", "new\nline", "--"]
    done = step.run(*sh('for word; do echo "<$word>"; done; cat'), "sh", *words, input="typed")
    assert done.stdout == "".join(f"<{word}>\n" for word in words) + "typed"


def test_parameters_and_artifacts_are_kept_by_number(step: Step, tmp_path: Path) -> None:
    work = tmp_path / "a folder"
    (work / "-tree").mkdir(parents=True)
    (work / "-tree" / "file").write_text("content")
    (work / "link").symlink_to("-tree")
    (work / "p").write_text("value\n\n")
    parameters = tuple(Parameter(name=name, path=f"{work}/{name}") for name in "pq")
    paths = {"a": "-tree", "b": "link", "c": "gone"}
    artifacts = tuple(Output(name=name, path=f"{work}/{path}") for name, path in paths.items())
    step.prepare(Order(workflow="w", pod="p", parameters=parameters, artifacts=artifacts))
    assert step.run("true").returncode == 0
    assert step.names() == {"started", "done", "0.parameter", "1.missing", "2.tar", "3.tar", "4.missing"}
    assert step.kept("0.parameter") == "value\n\n"
    for name in ("2.tar", "3.tar"):
        with tarfile.open(fileobj=io.BytesIO((step.folder / "out" / name).read_bytes())) as tar:
            assert sorted(tar.getnames()) == ["./-tree", "./-tree/file"]


def test_what_cannot_be_read_leaves_why(step: Step, tmp_path: Path) -> None:
    step.prepare(Order(workflow="w", pod="p", parameters=(Parameter(name="p", path=str(tmp_path)),)))
    assert step.run("true").returncode == 0
    assert step.kept("0.error") == "it is a folder\n"


def test_a_process_that_is_left_behind_does_not_hold_the_step(step: Step) -> None:
    step.prepare(RESULT)
    done = step.run(*sh("echo ready; sleep 60 2>&- & echo $! >&2"))
    os.kill(int(done.stderr.split()[0]), signal.SIGKILL)
    assert (done.returncode, step.kept("result")) == (0, "ready\n")


def test_a_full_volume_is_an_error_of_its_own(step: Step) -> None:
    step.prepare(PLAIN)
    (step.folder / "out" / "done").mkdir()
    (step.folder / "out" / "done" / "code").mkdir()  # so that `mv` fails
    done = step.run("true")
    assert done.returncode == 74
    assert "cannot be saved" in done.stderr


@pytest.mark.parametrize(
    ("number", "trapped"),
    [
        pytest.param(signal.SIGTERM, "TERM", id="TERM"),
        pytest.param(signal.SIGINT, "TERM", id="INT arrives as TERM"),
        pytest.param(signal.SIGUSR1, "USR1", id="USR1"),
        pytest.param(signal.SIGHUP, "HUP", id="HUP"),
    ],
)
def test_signals_go_to_the_command_and_its_outputs_are_kept(step: Step, number: int, trapped: str) -> None:
    step.prepare(RESULT)
    script = f"trap 'echo got it; exit 5' {trapped}; echo up; while :; do sleep 0.05; done"
    with started(step.command(*sh(script))) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, rest) == (5, b"got it\n")
    assert (step.kept("result"), step.kept("done")) == ("up\ngot it\n", "5\n")


@pytest.mark.parametrize(
    ("on_term", "code"),
    [
        pytest.param("exit 0", 85, id="it leaves with 0"),
        pytest.param('touch "$MOORAGE_DONE_FILE"; exit 0', 0, id="it says that it has finished"),
    ],
)
def test_a_command_that_leaves_well_when_told_has_finished_only_where_it_says_so(step, on_term, code) -> None:
    step.prepare(RESULT)
    script = f"trap '{on_term}' TERM; echo up; while :; do sleep 0.05; done"
    with started(step.command(*sh(script))) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, step.kept("done")) == (code, f"{code}\n")


def test_a_signal_that_the_command_survives_changes_nothing(step: Step) -> None:
    step.prepare(RESULT)
    script = "trap 'echo no' TERM; echo up; i=0; while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done; exit 3"
    with started(step.command(*sh(script))) as process:
        assert process.stdout.readline() == b"up\n"
        for _ in range(5):
            process.send_signal(signal.SIGTERM)
            time.sleep(0)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 3


def test_nothing_is_written_outside_of_the_folder(step: Step, tmp_path: Path) -> None:
    step.prepare(RESULT)
    before = {path for path in tmp_path.rglob("*") if step.folder not in path.parents}
    step.run(*sh("pwd"), cwd=tmp_path)
    assert {path for path in tmp_path.rglob("*") if step.folder not in path.parents} == before


def test_the_exit_code_of_a_step_that_was_told_to_stop_is_the_one_that_is_read() -> None:
    folder = Path(pack.__file__).parent
    assert f"code={STOPPED}" in (folder / "wrapper.sh").read_text()
    assert f"leave {STOPPED}" in (folder / "member.sh").read_text()
