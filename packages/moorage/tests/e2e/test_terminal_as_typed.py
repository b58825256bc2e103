"""What a person sees on a terminal: tables that fit, colours, and listings that follow the cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from moorage.cli.tables import text_width
from moorage.cli.watching import REDRAW
from moorage_testing.cluster import Cluster
from tests.terminals import Terminal, without_controls

pytestmark = pytest.mark.cluster("scheduler", "controllers", "kubelet")

MOOR = [sys.executable, "-m", "moorage.cli.main"]


@pytest.fixture
def run(cluster: Cluster, unique: str):
    """A run with a long name."""
    name = f"{unique}-with-a-very-long-name-of-its-own"
    cluster.moor("run", "--name", name, "--memory", "64Mi", "--", "sleep", "600")
    yield name
    cluster.moor("cancel", "--delete", name, check=False)


def on_terminal(cluster: Cluster, *words: str, columns: int, **env: str) -> Terminal:
    environment = cluster.environment() | {"TERM": "xterm-256color"} | env
    if env:
        del environment["NO_COLOR"]
    return Terminal([*MOOR, *words], env=environment, columns=columns)


def states_of(run: str, table: str) -> list[str]:
    return [line.split()[2] for line in without_controls(table).splitlines() if line.startswith(run)]


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("words", ["jobs", "nodes", "gpus", "gpus --by node", "machines"])
def test_no_line_of_a_table_is_wrapped(cluster, run, words, columns):
    with on_terminal(cluster, *words.split(), columns=columns) as terminal:
        assert terminal.wait() == 0
        shown = without_controls(terminal.output).splitlines()
    table = shown[
        : next(
            (at for at, line in enumerate(shown) if "GPUs are free" in line or line == "ask for one:"), len(shown)
        )
    ]
    assert max(text_width(line) for line in table) <= columns


@pytest.mark.parametrize("columns", [60, 200])
def test_the_attempts_of_a_run_fit_the_terminal(cluster, run, columns):
    with on_terminal(cluster, "show", run, columns=columns) as terminal:
        assert terminal.wait() == 0
        shown = without_controls(terminal.output).splitlines()
    table = shown[shown.index("Attempts") + 1 :][:2]
    assert table[0].startswith("  ATTEMPT   ")
    assert {"PHASE", "REASON"} <= set(table[0].split())
    assert max(text_width(line) for line in table) <= columns


def test_a_pipe_and_wide_have_the_whole_name_a_narrow_terminal_has_its_start(cluster, run):
    assert run in cluster.moor("jobs").stdout
    for output, whole in (("table", False), ("wide", True)):
        with on_terminal(cluster, "jobs", "-o", output, columns=40) as terminal:
            assert terminal.wait() == 0
            assert (run in terminal.output) is whole
            assert whole or "…" in terminal.output


def test_states_have_colour_on_a_terminal_and_none_in_a_pipe(cluster, run):
    with on_terminal(cluster, "nodes", columns=80, CLICOLOR="1") as terminal:
        assert terminal.wait() == 0
        assert "\x1b[32mReady\x1b[0m" in terminal.output
    assert "\x1b" not in cluster.moor("nodes").stdout
    assert "\x1b[32mReady\x1b[0m" in cluster.moor("nodes", env={"NO_COLOR": "", "CLICOLOR_FORCE": "1"}).stdout


def test_a_watched_list_is_redrawn_and_ctrl_c_leaves_the_last_table(cluster, run):
    with on_terminal(cluster, "jobs", "--watch", columns=200) as terminal:
        terminal.read_until(run)
        cluster.moor("cancel", run)
        while states_of(run, terminal.read_until(REDRAW)) != ["Cancelled"]:
            pass
        terminal.type("\x03")
        assert terminal.wait() == 0
        last = terminal.output.rpartition("\x1b[?1049l")[2]
    assert without_controls(last).startswith("NAME")
    assert states_of(run, last) == ["Cancelled"]


def test_a_watched_list_in_a_pipe_gets_the_changed_rows(cluster, run):
    with subprocess.Popen(
        [*MOOR, "jobs", "-w"], env=cluster.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        rows = iter(process.stdout.readline, "")
        assert next(rows).startswith("NAME")
        assert any(row.startswith(run) for row in rows)
        cluster.moor("cancel", run)
        assert any(row.startswith(run) and " Cancelled " in row for row in rows)
        cluster.moor("cancel", "--delete", run)
        assert any(row.startswith(run) and " Deleted " in row for row in rows)
        process.send_signal(2)
        assert process.wait(180) == 0


@pytest.mark.parametrize("words", ["nodes", "gpus", "machines", "workspace list"])
def test_other_lists_can_be_watched_too(cluster, words):
    with on_terminal(cluster, *words.split(), "--watch", columns=120) as terminal:
        first = {"nodes": "NAME", "gpus": "NODE", "machines": "TYPE"}
        terminal.read_until(first.get(words, "no workspaces"))
        terminal.type("\x03")
        assert terminal.wait() == 0


def test_a_copy_shows_its_progress_on_a_terminal_and_none_in_a_pipe(cluster, unique, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a").write_bytes(b"x" * 3_000_000)
    cluster.moor("volume", "create", unique, "--size", "10Mi")
    try:
        to_volume = on_terminal(
            cluster, "volume", "cp", str(tmp_path / "photos"), f"{unique}:/photos", columns=100
        )
        with to_volume as terminal:
            assert terminal.wait() == 0
            assert "100%  2.9 MiB of 2.9 MiB" in terminal.output
        back = cluster.moor("volume", "cp", f"{unique}:/photos", str(tmp_path / "back"))
        assert "%" not in back.stderr
        assert (tmp_path / "back" / "a").stat().st_size == 3_000_000
    finally:
        cluster.moor("volume", "delete", "--yes", unique)
