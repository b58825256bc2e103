"""`moor workflow lint`, as typed."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from moorage.cli.main import main

GOOD = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: train}
spec:
  entrypoint: main
  templates:
  - {name: main, container: {image: busybox}}
"""
WRONG = GOOD.replace("entrypoint: main", "entrypoint: mian")
DOUBTFUL = GOOD.replace("  templates:", "  arguments: {parameters: [{name: x}]}\n  templates:")
FOUND = "spec.entrypoint: there is no template 'mian'; there are: main"
DOUBT = "spec.arguments.parameters[0]: parameter 'x' has no value; give one when you submit it"


@pytest.fixture
def folder(tmp_path):
    for name, text in (("good.yaml", GOOD), ("wrong.yml", WRONG), ("doubtful.yaml", DOUBTFUL), ("notes.txt", "-")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("files", "options", "code", "lines", "summary"), [
    pytest.param(["good.yaml"], [], 0, [], "1 checked, 0 others skipped", id="nothing is wrong"),
    pytest.param(["wrong.yml"], [], 1, [f"wrong.yml:5: error template: {FOUND}"],
                 "1 checked, 0 others skipped, 1 errors", id="an error"),
    pytest.param(["doubtful.yaml"], [], 0, [f"doubtful.yaml:6: warning arguments: {DOUBT}"],
                 "1 checked, 0 others skipped, 1 warnings", id="a warning"),
    pytest.param(["doubtful.yaml"], ["--strict"], 1, [f"doubtful.yaml:6: warning arguments: {DOUBT}"],
                 "1 checked, 0 others skipped, 1 warnings", id="a warning, strictly"),
    pytest.param(["."], [], 1,
                 [f"doubtful.yaml:6: warning arguments: {DOUBT}", f"wrong.yml:5: error template: {FOUND}"],
                 "3 checked, 0 others skipped, 1 errors, 1 warnings", id="a folder"),
])  # fmt: skip
def test_findings_are_lines(folder, monkeypatch, capsys, files, options, code, lines, summary):
    monkeypatch.chdir(folder)
    assert main(["workflow", "lint", *files, *options]) == code
    captured = capsys.readouterr()
    assert captured.out.splitlines() == lines
    assert captured.err == f"{summary}\n"


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_a_document(folder, capsys, output, load):
    file = str(folder / "wrong.yml")
    assert main(["workflow", "lint", file, "-o", output]) == 1
    assert load(capsys.readouterr().out) == {
        "findings": [{
            "file": file, "line": 5, "kind": "Workflow", "name": "train", "rule": "template", "severity": "error",
            "field": "spec.entrypoint", "value": "", "message": "there is no template 'mian'; there are: main",
        }],
        "checked": 1, "skipped": 0,
    }  # fmt: skip


def test_stdin_is_read(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    assert main(["workflow", "lint", "-"]) == 1
    assert capsys.readouterr().out == f"-:5: error template: {FOUND}\n"


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path, capsys):
    assert main(["workflow", "lint", str(tmp_path / "no.yaml")]) == 2
    assert "no.yaml cannot be read" in capsys.readouterr().err
