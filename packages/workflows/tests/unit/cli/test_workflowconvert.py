"""`moor workflow convert`, as typed."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from moorage.cli.main import main

CRONJOB = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 19 * * *"
  jobTemplate:
    spec:
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          containers:
          - {name: main, image: trainer:3, command: [python, train.py]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cron.yaml"
    path.write_text(CRONJOB)
    return path


def test_the_result_goes_to_stdout_and_the_losses_to_stderr(file, capsys):
    assert main(["workflow", "convert", str(file), "--time-zone", "Asia/Tokyo"]) == 0
    captured = capsys.readouterr()
    documents = list(yaml.safe_load_all(captured.out))
    assert [document["kind"] for document in documents] == ["CronWorkflow", "ConfigMap"]
    assert documents[0]["spec"]["timezone"] == "Asia/Tokyo"
    assert "CronJob nightly: changed: spec.startingDeadlineSeconds: is not set" in captured.err
    assert captured.err.endswith("1 converted, 1 passed through\n")


def test_explain_prints_a_line_for_each_field(file, capsys):
    assert main(["workflow", "convert", str(file), "--explain"]) == 0
    out = capsys.readouterr().out
    assert "spec.schedule " in out
    assert "spec.schedules[0]" in out
    assert "ConfigMap settings: passed through" in out


def test_stdin_and_json(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CRONJOB.encode())))
    assert main(["workflow", "convert", "-", "-o", "json"]) == 0
    assert [document["kind"] for document in json.loads(capsys.readouterr().out)] == ["CronWorkflow", "ConfigMap"]


def test_a_refused_document_ends_with_1(tmp_path, capsys):
    path = tmp_path / "long.yaml"
    path.write_text(CRONJOB.replace("nightly", "n" * 53))
    assert main(["workflow", "convert", str(path)]) == 1
    assert "refused: metadata.name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        pytest.param("a: [", [], "is not valid YAML", id="not YAML"),
        pytest.param("", [], "the files have no documents", id="an empty file"),
        pytest.param(CRONJOB, ["--time-zone", "Mars/Base"], "--time-zone 'Mars/Base' must be", id="no such zone"),
    ],
)
def test_wrong_usage_ends_with_2(tmp_path, capsys, text, options, message):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert main(["workflow", "convert", str(path), *options]) == 2
    assert message in capsys.readouterr().err


def test_the_result_passes_the_lint_of_workflows(file, tmp_path, capsys):
    assert main(["workflow", "convert", str(file), "--time-zone", "Asia/Tokyo"]) == 0
    made = tmp_path / "made.yaml"
    made.write_text(capsys.readouterr().out)
    assert main(["workflow", "lint", str(made)]) == 0, capsys.readouterr().out
