"""A run uses the files as they were when it was submitted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from moorage_kube.resources import JOBS

TRAIN = ("--memory", "64Mi", "--name", "train", "--", "python3", "train.py")


@pytest.fixture
def cluster(moor, monkeypatch, tmp_path):
    """A cluster that runs commands on this machine; typed in the folder of a project."""
    moor.node("node-1")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path / "project")
    return moor


def code(moor, name):
    annotations = moor.api.objects["jobs", "default", name]["metadata"]["annotations"]
    return json.loads(annotations["moorage.dev/code"]) if "moorage.dev/code" in annotations else None


def test_a_run_has_the_code_of_its_submission_and_a_rerun_has_it_too(cluster, tmp_path):
    done = cluster("run", *TRAIN)
    assert (done.code, done.out) == (0, "train\n")
    first = code(cluster, "train")
    assert f"{tmp_path}/project is copied for the run: 1 file, 8 B\n" in done.err
    assert f"the run starts in {first['outputs']}: its relative outputs are there\n" in done.err
    Path("train.py").write_text("print(2)")
    assert (Path(first["folder"]) / "train.py").read_text() == "print(1)"
    again = cluster("rerun", "train", "--name", "again")
    assert (
        "the code of that run is used again: 1 file, 8 B; to use your files as they are now: --live, or moor run\n"
        in again.err
    )
    assert code(cluster, "again")["folder"] == first["folder"]
    assert code(cluster, "again")["outputs"] != first["outputs"]
    live = cluster("rerun", "train", "--name", "live", "--live")
    assert (live.code, code(cluster, "live")) == (0, None)
    assert "volumes" not in cluster.api.objects["jobs", "default", "live"]["spec"]["template"]["spec"]


def test_a_rerun_says_that_the_code_was_deleted(cluster):
    cluster("run", *TRAIN)
    folder = code(cluster, "train")["folder"]
    shutil.rmtree(folder)
    done = cluster("rerun", "train", "--name", "again")
    assert done.code == 2
    assert done.err.endswith(
        f"error: the code of that run was deleted: {folder}\n"
        "hint: to run your files as they are now: moor run -- COMMAND\n"
    )
    assert cluster.api.named(JOBS) == ["train"]


def test_a_home_folder_is_not_copied(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "project"))
    done = cluster("run", *TRAIN)
    assert (done.code, code(cluster, "train")) == (0, None)
    assert f"the run starts in {tmp_path}/project itself, and sees later changes of its files" in done.err
    assert not Path(".moorage").exists()
