"""How `moor up` takes the data folder and waits for the start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moorage.cli.datafolder import Config, DataFolder
from moorage.cli.main import main
from moorage.cli.up import GIVE_UP_SECONDS, SLOW_SECONDS, stopping_line, wait_ready
from moorage_kube.databasefile import Mark, write_mark


class Start:
    """A pipe on which children write at their times, and a clock that moves meanwhile."""

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
def wait_for(tmp_path: Path) -> Iterator[Callable[..., str | None]]:
    """Wait for a start whose children print these texts at these times."""
    made: list[Start] = []

    def wait(*says: tuple[float, str]) -> str | None:
        made.append(Start(*says))
        return made[-1].wait(tmp_path / "log")

    yield wait
    for start in made:
        start.close()


def test_a_start_of_minutes_is_waited_for_with_notes(wait_for, tmp_path, capsys):
    assert wait_for((100.0, "admission ready\nlocalcluster ready\n"), (280.0, "services ready\n")) is None
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 280 // SLOW_SECONDS
    waiting = "admission and localcluster and services"
    assert notes[0].startswith(f"note: {waiting} are still starting after {SLOW_SECONDS:g} s")
    assert str(tmp_path / "log") in notes[0]
    assert "Ctrl-C" in notes[0]
    assert notes[-1].startswith("note: services is still starting")


def test_a_quick_start_says_nothing(wait_for, tmp_path, capsys):
    assert wait_for((1.0, "localcluster ready\nadmission ready\nservices re"), (3.0, "ady\n")) is None
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
def test_a_start_that_fails_has_a_reason(wait_for, says, problem):
    assert wait_for(*says) == problem


def test_a_child_that_dies_while_starting_may_be_started_again(wait_for, tmp_path, capsys):
    ends = [
        (float(at), f"{name} ended with exit code -9\n") for at in (1, 2) for name in ("services", "localcluster")
    ]
    assert wait_for(*ends, (3.0, "localcluster ready\n"), (4.0, "services ready\nadmission ready\n")) is None
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


def test_a_second_start_while_the_folder_is_held_changes_nothing(tmp_path, capsys):
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    write_mark(folder.path / "cluster.db", Mark("an-id", 1))
    with folder.locked():
        assert main(["up", "--data", str(folder.path)]) == 1
    assert "is running already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("processes", "want"),
    [
        (["services", "localcluster"], "services, local cluster with its pods"),
        ([], "supervisor"),
    ],
)
def test_a_stop_names_the_processes_that_it_waits_for(processes, want):
    assert stopping_line(processes, 87.6) == f"stopping: waiting for {want}; at most 88 s more"
