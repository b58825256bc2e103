"""The demo: its folder, its printed commands, its programs, and the next steps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from moorage.cli.demo.runner import PROGRAMS, WIDTH, Place, command_lines, environment
from moorage.cli.demo.script import next_steps
from moorage_kube.errors import AlreadyRunning, DataFolderError


@pytest.mark.parametrize(
    ("words", "line"),
    [
        pytest.param(["drain", "node-1"], "$ moor drain node-1", id="a short command"),
        pytest.param(
            ["map", "--", "draw.py", "{item}"], "$ moor map -- draw.py {item}", id="{item} without quotes"
        ),
    ],
)
def test_a_command_is_printed_on_one_line(words, line):
    assert command_lines(words) == [line]


def test_a_long_command_is_broken_before_options_and_is_the_same_to_a_shell():
    words = ["run", "--name", "a b", *(word for number in range(20) for word in ("--env", f"N{number}=1"))]
    lines = command_lines(words)
    assert max(map(len, lines)) <= WIDTH
    typed = "\n".join(lines).removeprefix("$ moor ")
    shell = subprocess.run(["sh", "-c", f"printf '%s\\n' {typed}"], capture_output=True, text=True, check=True)
    assert shell.stdout.splitlines() == words


def test_a_second_demo_in_the_same_folder_is_refused_while_the_first_runs(tmp_path):
    place = Place(tmp_path / "d")
    with place.held():
        with pytest.raises(AlreadyRunning, match="a demo is running in"), Place(tmp_path / "d").held():
            pass
        with Place(tmp_path / "other").held():
            pass
    with place.held():
        pass


def test_a_folder_with_other_files_is_never_used(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataFolderError, match="holds other files"), Place(tmp_path).held():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_each_demo_starts_with_the_programs_alone_and_removes_only_what_it_made(tmp_path):
    place = Place(tmp_path / "d")
    with place.held():
        place.prepare()
        (place.files / "left-over").touch()
        (place.folder / "mine").touch()
        place.prepare()
        programs = sorted(path.name for path in PROGRAMS.glob("*.py"))
        assert sorted(path.name for path in place.files.iterdir()) == programs
        place.remove()
    assert [path.name for path in place.folder.iterdir()] == ["mine"]


def test_the_typed_commands_find_the_demos_cluster_and_no_other(tmp_path, monkeypatch):
    for name in ("KUBECONFIG", "MOORAGE_SERVER", "MOORAGE_TOKEN", "MOORAGE_DATA"):
        monkeypatch.setenv(name, "elsewhere")
    place = Place(tmp_path)
    env = environment(place)
    chosen = {key: value for key, value in env.items() if key.startswith(("MOORAGE_", "KUBE"))}
    assert chosen == {"MOORAGE_DATA": str(place.cluster), "MOORAGE_KUBECONFIG": str(place.kubeconfig)}


def test_the_next_steps_name_the_demos_folders_and_end_with_its_removal(tmp_path):
    place = Place(tmp_path / "a b")
    steps = [line for line in next_steps(place, option=" --folder here") if not line.startswith(". ")]
    assert steps[:2] == [f"cd '{place.files}'", f"export MOORAGE_KUBECONFIG='{place.kubeconfig}'"]
    assert steps[-1].split("  #")[0].rstrip() == "moor demo --down --folder here"
    assert 5 <= len(steps[2:]) <= 8


def run(program: str, *words: str, cwd, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(PROGRAMS / program), *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_a_training_that_was_stopped_ends_with_the_network_of_one_that_was_not(tmp_path):
    folders = {name: tmp_path / name for name in ("stopped", "whole")}
    for folder in folders.values():
        folder.mkdir()
    run("train.py", "--epochs", "1", cwd=tmp_path, MOORAGE_CHECKPOINT_DIR=str(folders["stopped"]))
    ends = {
        name: run("train.py", "--epochs", "2", cwd=tmp_path, MOORAGE_CHECKPOINT_DIR=str(folder))
        for name, folder in folders.items()
    }
    assert "resumed from the checkpoint after epoch 1" in ends["stopped"].stdout
    last = {name: end.stdout.splitlines()[-1] for name, end in ends.items()}
    assert last["stopped"] == last["whole"]
    assert (folders["stopped"] / "digits-0.json").read_text() == (folders["whole"] / "digits-0.json").read_text()


@pytest.mark.processes
def test_some_pictures_fail_once_and_then_arrive(tmp_path):
    result = tmp_path / "result"
    first = run("draw.py", "57", str(tmp_path), cwd=tmp_path)
    assert (first.returncode, first.stderr) == (1, "picture 57 did not arrive: connection reset\n")
    second = run("draw.py", "57", str(tmp_path), cwd=tmp_path, MOORAGE_RESULT=str(result))
    assert (second.returncode, second.stdout) == (0, "picture 57 shows a 7\n")
    assert json.loads(result.read_text())["digit"] == 7
    assert (tmp_path / "057-7.pgm").read_text().startswith("P2\n8 8\n255\n")
