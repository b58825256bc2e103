"""`moor run -f` and `moor rerun`: the options of a file, and those of a run that was."""

from __future__ import annotations

import pytest

from moorage_kube.resources import JOBS

FILE = """\
name: train
command: sh -c 'echo $WHO'
memory: 64Mi
time: 1h
env: {WHO: ada, N: 3}
"""


@pytest.fixture
def cluster(moor, monkeypatch, tmp_path):
    """A cluster that runs commands on this machine; typed in a folder of its own."""
    moor.node("node-1")
    monkeypatch.chdir(tmp_path)
    return moor


def job(moor, name):
    return moor.api.objects["jobs", "default", name]


def container(moor, name):
    return job(moor, name)["spec"]["template"]["spec"]["containers"][0]


def env_of(moor, name):
    return {env["name"]: env["value"] for env in container(moor, name)["env"] if env["name"] in ("WHO", "N")}


def test_a_file_holds_the_options_and_those_typed_win(cluster, tmp_path):
    (tmp_path / "train.yaml").write_text(FILE)
    done = cluster("run", "-f", "train.yaml", "--memory", "128Mi", "--env", "WHO=grace")
    assert (done.code, done.out) == (0, "train\n")
    main = container(cluster, "train")
    assert main["command"][-3:] == ["sh", "-c", "echo $WHO"]
    assert main["resources"]["limits"]["memory"] == "128Mi"
    assert env_of(cluster, "train") == {"WHO": "grace", "N": "3"}
    assert job(cluster, "train")["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 3600


def test_a_run_is_run_again_with_its_options_and_other_ones(cluster, tmp_path):
    (tmp_path / "train.yaml").write_text(FILE)
    cluster("run", "-f", "train.yaml")
    done = cluster("rerun", "train", "--name", "again", "--memory", "128Mi", "--env", "N=4")
    assert (done.code, done.out) == (0, "again\n")
    assert container(cluster, "again")["command"][-3:] == ["sh", "-c", "echo $WHO"]
    assert container(cluster, "again")["resources"]["limits"]["memory"] == "128Mi"
    assert env_of(cluster, "again") == {"WHO": "ada", "N": "4"}
    done = cluster("rerun", "again", "--name", "third", "--", "sh", "-c", "true")
    assert done.code == 0
    assert container(cluster, "third")["command"][-3:] == ["sh", "-c", "true"]
    assert env_of(cluster, "third") == {"WHO": "ada", "N": "4"}
    unnamed = cluster("rerun", "train")
    assert unnamed.code == 0
    assert unnamed.out.strip() not in ("train", "again", "third", "")


def test_labels_of_a_file_are_kept_by_a_rerun_and_those_typed_win(cluster, tmp_path):
    (tmp_path / "train.yaml").write_text(FILE + "labels: {project: vision, stage: dev}\n")
    assert cluster("run", "-f", "train.yaml", "--label", "stage=test").code == 0
    assert cluster("rerun", "train", "--name", "again", "--label", "seed=2").code == 0
    ours = {"project": "vision", "stage": "test"}
    for name, labels in (("train", ours), ("again", ours | {"seed": "2"})):
        made = job(cluster, name)
        for stored in (made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]):
            assert {key: value for key, value in stored.items() if "/" not in key} == labels


def test_a_rerun_uses_the_commit_of_a_run_and_says_so(cluster):
    url = "https://h/a"
    cluster("run", "--name", "train", "--git", f"{url}@main", "--", "./x")
    job(cluster, "train")["metadata"]["annotations"]["moorage.dev/git"] = f"{url}@0123abc"
    done = cluster("rerun", "train", "--name", "again")
    assert (done.code, "".join(container(cluster, "again")["command"][4:7])) == (0, "--ref0123abc--into"), done.err
    assert (
        f"uses the commit of run train: {url}@0123abc; for the newest: moor rerun train --git {url}@main"
        in done.err
    )
    newest = cluster("rerun", "train", "--name", "newest", "--git", f"{url}@main")
    assert (container(cluster, "newest")["command"][5], "the commit" in newest.err) == ("main", False)
    assert "the commit" not in cluster("rerun", "again").err


def test_another_command_does_not_continue_a_checkpoint_silently(cluster):
    words = ("--memory", "64Mi", "--name", "train", "--", "python3", "train.py")
    assert cluster("run", "--checkpoint", "digits", *words).code == 0
    done = cluster("rerun", "train", "--", "python3", "train.py", "--epochs", "90")
    assert (
        "note: the command is another one, and continues on the checkpoint volume digits of run train;"
        " to start from the beginning: moor rerun train --checkpoint NEW-NAME -- COMMAND\n"
    ) in done.err
    for again in (["rerun", "train"], ["rerun", "train", "--checkpoint", "new", "--", "true"]):
        assert "the command is another one" not in cluster(*again).err


def test_a_run_without_saved_options_cannot_be_run_again(cluster):
    cluster("run", "--name", "train", "--memory", "64Mi", "--", "true")
    old = job(cluster, "train")
    del old["metadata"]["annotations"]["moorage.dev/options"]
    cluster.api.put(JOBS, old)
    done = cluster("rerun", "train")
    assert (done.code, done.err) == (
        2,
        "error: run train cannot be run again: its options were not saved\n"
        "hint: see its command with moor show train, and type it after moor run\n",
    )
    missing = cluster("rerun", "nope")
    assert missing.err.startswith("error: run 'nope' not found in namespace default\n")


def test_the_faults_of_a_file_are_all_named(cluster, tmp_path):
    (tmp_path / "bad.yaml").write_text("gpu: 1\nretries: many\n")
    done = cluster("run", "-f", "bad.yaml", "--", "true")
    assert (done.code, done.err) == (
        2,
        "error: bad.yaml: unknown field 'gpu'\nhint: did you mean gpus?\n"
        "error: bad.yaml: retries: invalid value 'many': use a whole number\n",
    )
    (tmp_path / "empty.yaml").write_text("gpus: 0\n")
    done = cluster("run", "-f", "empty.yaml")
    error = "error: no command given\nhint: write `command` in empty.yaml, or type it\n"
    assert (done.code, done.err) == (2, error)
    done = cluster("run", "-f", "nope.yaml")
    assert (done.code, done.err) == (2, "error: cannot read nope.yaml: No such file or directory\n")
