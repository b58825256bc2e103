"""A notebook as a run: the command made of it, and what it does in the pod."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from moorage.cli.runnotebook import check_source, notebook_command
from moorage.worker.notebook import inject
from moorage_kube.errors import UsageError


def a_notebook(folder, *sources, kernel="python3", tags=()):
    cells = [
        {"cell_type": "code", "execution_count": None, "id": f"c{at}", "outputs": [], "source": text,
         "metadata": {"tags": list(tags) if at == 0 else []}}
        for at, text in enumerate(sources)
    ]  # fmt: skip
    meta = {"kernelspec": {"name": kernel, "display_name": "x", "language": "python"}}
    path = folder / "work.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}))
    return path


def run(command, folder, *, isolated=False, **env):
    words = [sys.executable, *(["-S"] if isolated else []), *command[1:]]
    return subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)} | env,
    )


@pytest.mark.processes
def test_the_notebook_is_run_with_its_parameters_and_kept_with_its_outputs(tmp_path):
    a_notebook(tmp_path, "n = 1", "print('n is', n); n * 2", tags=["parameters"])
    kept = tmp_path / "checkpoint"
    done = run(notebook_command(["work.ipynb", "-p", "n=21"]), tmp_path, MOORAGE_CHECKPOINT_DIR=str(kept))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "n is 21\n42\n"
    made = json.loads((kept / "work.out.ipynb").read_text())
    assert [cell["metadata"].get("tags") for cell in made["cells"]][1] == ["injected-parameters"]
    assert (
        made["cells"][2]["outputs"][0]["text"] == "n is 21\n"
        or "n is 21\n" in made["cells"][2]["outputs"][0]["text"]
    )


@pytest.mark.processes
def test_a_cell_that_raises_fails_the_run_and_keeps_what_was_reached(tmp_path):
    a_notebook(tmp_path, "print('before')", "1 / 0", "print('never')")
    done = run(notebook_command(["work.ipynb", "-o", "out/here.ipynb"]), tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "never" not in done.stdout
    assert re.findall(r"\[cell .*\]", done.stderr) == ["[cell 1 of 3 done]", "[cell 2 of 3 failed]"]
    made = json.loads((tmp_path / "out" / "here.ipynb").read_text())
    assert made["cells"][0]["outputs"]


@pytest.mark.processes
def test_an_image_without_jupyter_says_what_it_lacks(tmp_path):
    a_notebook(tmp_path, "1")
    done = run(notebook_command(["work.ipynb"]), tmp_path, isolated=True)
    assert done.returncode == 2
    assert "this image cannot run notebooks" in done.stderr
    assert "pip install" in done.stderr


@pytest.mark.processes
def test_a_kernel_that_is_not_there_is_said(tmp_path):
    a_notebook(tmp_path, "1", kernel="no-such-kernel")
    done = run(notebook_command(["work.ipynb"]), tmp_path)
    assert done.returncode == 2
    assert "no-such-kernel" in done.stderr


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        (["-p", "n=3"], {"n": 3}),
        (["-p", "rate=1e-3", "-p", "name=ada"], {"rate": 1e-3, "name": "ada"}),
        (["-p", "flags=[true, null]"], {"flags": [True, None]}),
        (["-p", "text=a=b"], {"text": "a=b"}),
        (["-p", 'word="3"'], {"word": "3"}),
    ],
)
def test_parameters_are_json_where_they_can_be(words, parameters):
    assert json.loads(notebook_command(["x.ipynb", *words])[-1]) == parameters


@pytest.mark.parametrize(
    "words", [["-p"], ["-p", "n"], ["-p", "a b=1"], ["-p", "__import__('os')=1"], ["--x"], ["y"]]
)
def test_what_is_no_parameter_is_refused(words):
    with pytest.raises(UsageError):
        notebook_command(["x.ipynb", *words])


def test_a_file_that_is_no_notebook_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="notebook .* not found"):
        check_source(["none.ipynb"])
    (tmp_path / "bad.ipynb").write_text("{}")
    with pytest.raises(UsageError, match="no cells"):
        check_source(["bad.ipynb"])


def test_parameters_of_a_former_run_are_replaced():
    notebook = {"cells": [{"metadata": {"tags": ["parameters"]}}, {"metadata": {"tags": ["injected-parameters"]}}]}
    inject(notebook, {"n": 1}, lambda text, metadata: {"source": text, "metadata": metadata})
    assert [cell["metadata"]["tags"] for cell in notebook["cells"]] == [["parameters"], ["injected-parameters"]]
    assert notebook["cells"][1]["source"].endswith("n = 1")


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("alpha = 1\nbeta: float = 0.5", ["-p", "alpha=2", "-p", "beta=1"]),
        ("alpha, beta = 1, 2", ["-p", "beta=1"]),
        ("if True:\n    alpha = 1", ["-p", "alpha=1"]),
        ("%load_ext autoreload\nalpha = 1", ["-p", "gamma=1"]),  # IPython's: its names are not known
        ("alpha <- 1", ["-o", "out.ipynb"]),
    ],
)
def test_parameters_of_the_cell_are_accepted(tmp_path, monkeypatch, cell, words):
    a_notebook(tmp_path, cell, tags=["parameters"])
    monkeypatch.chdir(tmp_path)
    check_source(["work.ipynb", *words])


@pytest.mark.parametrize(
    ("cell", "parameter", "hint"),
    [
        ("alpha = 1\nbeta = 2", "alhpa=2", "did you mean alpha? parameters of work.ipynb: alpha, beta"),
        ("alpha = 1\nbeta = 2", "gamma=2", "parameters of work.ipynb: alpha, beta"),
        ("# nothing yet", "gamma=2", "its cell tagged 'parameters' is empty"),
    ],
)
def test_a_parameter_that_the_cell_does_not_assign_is_refused(tmp_path, monkeypatch, cell, parameter, hint):
    a_notebook(tmp_path, cell, tags=["parameters"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="unknown parameter .* of work.ipynb") as raised:
        check_source(["work.ipynb", "-p", parameter])
    assert raised.value.hint == hint


def test_parameters_need_a_tagged_cell(tmp_path, monkeypatch):
    a_notebook(tmp_path, "alpha = 1")
    monkeypatch.chdir(tmp_path)
    check_source(["work.ipynb"])
    with pytest.raises(UsageError, match="no cell tagged 'parameters', so -p alpha sets nothing"):
        check_source(["work.ipynb", "-p", "alpha=2"])
