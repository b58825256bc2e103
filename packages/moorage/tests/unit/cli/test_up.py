"""How `moor up` takes the data folder and waits for the start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moorage.cli.datafolder import Config, DataFolder
from moorage.cli.main import main
from moorage.cli.up import GIVE_UP_SECONDS, SLOW_SECONDS, stopping_line, wait_ready
from moorage_kube.databasefile import Mark, write_mark


class Start:
    """A pipe on which children say what they say at their times, and a clock that moves while nothing is said."""

    def __init__(self, *says: tuple[float, str]) -> None:
        self.now = 0.0
        self._says = list(says)
        self.read, self.write = os.pipe()

    def monotonic(self) -> float:
        return self.now

    def is_readable(self, fd: int, seconds: float) -> bool:
        assert fd == self.read
        if not self._says or self._says[0][0] > self.now + seconds:
            self.now += seconds
            return False
        at, line = self._says.pop(0)
        self.now = max(self.now, at)
        os.write(self.write, line.encode())
        return True

    def wait(self, log: Path) -> str | None:
        return wait_ready(self.read, log, monotonic=self.monotonic, is_readable=self.is_readable)

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


@pytest.fixture
def starts() -> Iterator[list[Start]]:
    made: list[Start] = []
    yield made
    for start in made:
        start.close()


def test_a_start_that_takes_minutes_is_waited_for_and_told_of(
    starts: list[Start], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts.append(Start((100.0, "admission ready\nlocalcluster ready\n"), (280.0, "services ready\n")))
    assert starts[0].wait(tmp_path / "log") is None
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 280 // SLOW_SECONDS
    waiting = "admission and localcluster and services"
    assert notes[0].startswith(f"note: {waiting} are still starting after {SLOW_SECONDS:g} s")
    assert str(tmp_path / "log") in notes[0]
    assert "Ctrl-C" in notes[0]
    assert notes[-1].startswith("note: services is still starting")


def test_a_quick_start_says_nothing(
    starts: list[Start], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts.append(Start((1.0, "localcluster ready\nadmission ready\nservices re"), (3.0, "ady\n")))
    assert starts[0].wait(tmp_path) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        pytest.param(
            [], f"admission and localcluster and services not ready after {GIVE_UP_SECONDS:g} s", id="a hang"
        ),
        pytest.param([(50.0, "services no room\n")], "services: no room", id="an error"),
        pytest.param(
            [(50.0, "services ended with exit code 1\n")] * 3, "services: ended with exit code 1", id="three ends"
        ),
    ],
)
def test_a_start_that_fails_says_why(
    starts: list[Start], tmp_path: Path, says: list[tuple[float, str]], problem: str
) -> None:
    starts.append(Start(*says))
    assert starts[0].wait(tmp_path) == problem


def test_a_child_that_dies_while_starting_may_be_started_again(
    starts: list[Start], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [
        (float(at), f"{name} ended with exit code -9\n") for at in (1, 2) for name in ("services", "localcluster")
    ]
    starts.append(Start(*ends, (3.0, "localcluster ready\n"), (4.0, "services ready\nadmission ready\n")))
    assert starts[0].wait(tmp_path) is None
    assert capsys.readouterr().err.count("ended with exit code -9 while starting; it is started again") == 4


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_folder_is_looked_at_and_cleared_under_its_lock(tmp_path: Path, command: str) -> None:
    """A second `moor up` must not end what the first has just started."""
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    folder.save_config(Config(nodes=[{"name": "n"}], user="ada"))
    write_mark(folder.path / "cluster.db", Mark("an-id", 1))  # a cluster has run here, and its store is gone
    pipe = folder.run / "services.pid"
    os.mkfifo(pipe)  # the first thing that is read of what a supervisor left
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(main, [command, "--data", str(folder.path)])
        with pipe.open("w"):  # somebody reads
            assert folder.is_running()
        code = ours.result(timeout=180)
    assert code == (1 if command == "up" else 0)
    assert not folder.is_running()


def test_a_second_start_while_the_folder_is_held_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    write_mark(folder.path / "cluster.db", Mark("an-id", 1))
    with folder.locked():
        assert main(["up", "--data", str(folder.path)]) == 1
    assert "is running already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("processes", "want"),
    [
        (
            ["services", "localcluster"],
            "stopping: waiting for services, local cluster with its pods; at most 88 s more",
        ),
        ([], "stopping: waiting for supervisor; at most 88 s more"),
    ],
)
def test_a_stop_tells_what_it_waits_for(processes, want):
    assert stopping_line(processes, 87.6) == want
