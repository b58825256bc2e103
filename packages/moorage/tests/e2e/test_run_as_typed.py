"""`moor run` and its companions, as typed, on a cluster that really runs the command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.testing import waiting
from moorage_testing.cluster import Cluster, find_kubectl

pytestmark = pytest.mark.cluster("scheduler", "controllers", "kubelet")

PATIENCE = 180.0  # seconds; only bounds a hang
until = partial(waiting.read_until, patience=PATIENCE)


@pytest.fixture
def name(cluster: Cluster, unique: str) -> Iterator[str]:
    """A run's name; what bears it is gone after the test."""
    yield unique
    cluster.moor("cancel", "--delete", unique, check=False)


def state_of(cluster: Cluster, name: str) -> dict[str, Any]:
    return json.loads(cluster.moor("show", name, "-o", "json").stdout)


def wait_for(cluster: Cluster, name: str, state: str) -> dict[str, Any]:
    return until(lambda: state_of(cluster, name), lambda run: run["state"] == state)


def delete_pod(cluster: Cluster, pod: str) -> None:
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("kubectl is not on PATH")
    subprocess.run([kubectl, "--kubeconfig", cluster.kubeconfig, "delete", "pod", pod, "--wait=false"], check=True)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-u", "-c", code]


def test_following_prints_the_output_and_ends_with_the_commands_code(cluster, name, tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['MOORAGE_RUN']); sys.exit(7)"
    done = cluster.moor(
        "run", "--follow", "--memory", "256Mi", "--name", name, *python(code), check=False, cwd=tmp_path
    )
    assert done.returncode == 7
    run = state_of(cluster, name)
    assert run["outputs"].startswith(f"{tmp_path}/.moorage/{name}.")
    assert done.stdout == f"{run['outputs']} {name}\n"
    assert f"{name}: Failed (exit code 7)" in done.stderr
    assert (run["state"], run["exitCode"]) == ("Failed", 7)
    assert run["history"][0]["pods"][0]["exitCode"] == 7


def test_a_run_gets_its_gpus_and_is_seen_by_everybody(cluster, name):
    code = "import os, time; print(len(os.environ['CUDA_VISIBLE_DEVICES'].split(','))); time.sleep(600)"
    cluster.moor("run", "--gpus", "2", "--gpu-type", "a100", "--time", "1h", "--name", name, *python(code))
    run = wait_for(cluster, name, "Running")
    assert (run["gpus"], run["gpuType"]) == (2, "a100")
    assert 0 < run["timeLeftSeconds"] <= 3600
    until(lambda: cluster.moor("logs", name).stdout, lambda out: out == "2\n")
    until(
        lambda: json.loads(cluster.moor("gpus", "-o", "json").stdout),
        lambda listed: sum(gpu.get("run") == name for gpu in listed) == 2,
    )
    assert name in cluster.moor("jobs", "--active", "-o", "name").stdout.split()


def test_a_run_that_waits_is_told_who_holds_what_it_needs(cluster, name):
    sleep = python("import time; time.sleep(600)")
    holders = [f"{name}-a", f"{name}-b"]
    try:
        for holder in holders:
            cluster.moor("run", "--gpus", "2", "--time", "1h", "--name", holder, *sleep)
            wait_for(cluster, holder, "Running")
        cluster.moor("run", "--gpus", "2", "--name", name, *sleep)
        said = until(lambda: cluster.moor("explain", name).stdout, lambda out: all(one in out for one in holders))
        assert "2 GPUs" in said
        assert state_of(cluster, name)["state"] == "Waiting"
        cluster.moor("cancel", holders[0])
        wait_for(cluster, name, "Running")
    finally:
        cluster.moor("cancel", "--delete", *holders, check=False)


def test_a_run_uses_its_code_as_it_was_submitted(cluster, name, tmp_path):
    script = (
        "import pathlib, time\n"
        "outputs = pathlib.Path('outputs')\n"
        "again = outputs.exists()\n"
        "outputs.open('a').write('{version}\\n')\n"
        "if not again: time.sleep(600)\n"
        "print(outputs.read_text())\n"
    )
    (tmp_path / "train.py").write_text(script.format(version="old"))
    command = ("--memory", "64Mi", "--", sys.executable, "train.py")
    sleep = python("import time; time.sleep(600)")
    holders, others = [f"{name}-a", f"{name}-b"], [f"{name}-again", f"{name}-live"]
    try:
        # it waits while the file is edited
        for holder in holders:
            cluster.moor("run", "--gpus", "2", "--name", holder, *sleep)
            wait_for(cluster, holder, "Running")
        cluster.moor("run", "--gpus", "2", "--name", name, *command, cwd=tmp_path)
        (tmp_path / "train.py").write_text(script.format(version="new"))
        assert state_of(cluster, name)["state"] == "Waiting"
        cluster.moor("cancel", holders[0])
        outputs = Path(state_of(cluster, name)["outputs"]) / "outputs"
        until(lambda: outputs.exists() and outputs.read_text(), lambda text: text == "old\n")
        # its second attempt continues in its folder
        pod = state_of(cluster, name)["history"][0]["pods"][0]["name"]
        delete_pod(cluster, pod)
        wait_for(cluster, name, "Succeeded")
        assert cluster.moor("logs", "--no-prefix", name).stdout.endswith("old\nold\n\n")
        # a new run of it begins in a new copy; only a live run is in the folder itself
        cluster.moor("rerun", name, "--name", others[0], "--gpus", "0", cwd=tmp_path)
        again = Path(state_of(cluster, others[0])["outputs"]) / "outputs"
        until(lambda: again.exists() and again.read_text(), lambda text: text == "old\n")
        assert not (tmp_path / "outputs").exists()
        cluster.moor("run", "--live", "--name", others[1], *command, cwd=tmp_path)
        live = tmp_path / "outputs"
        until(lambda: live.exists() and live.read_text(), lambda text: text == "new\n")
        assert sorted(path.name for path in tmp_path.iterdir()) == [".moorage", "outputs", "train.py"]
    finally:
        cluster.moor("cancel", "--delete", *holders, *others, check=False)


def test_a_run_that_grows_beyond_its_limit_dies_alone_and_its_peak_is_told(cluster, name):
    code = "data = []\nwhile True: data.append(bytearray(8 << 20))"
    done = cluster.moor(
        "run", "--follow", "--memory", "128Mi", "--retries", "3", "--name", name, *python(code), check=False
    )
    assert done.returncode == 137
    run = state_of(cluster, name)
    assert run["state"] == "OOMKilled"
    assert run["attempts"] == 1
    [pod] = run["history"][0]["pods"]  # not retried, whatever --retries says
    assert (pod["reason"], pod["memoryLimitBytes"]) == ("OOMKilled", 128 * 2**20)
    text = cluster.moor("show", name).stdout
    assert "it grew beyond the limit of 128Mi" in text
    if cluster.kind == "local":
        assert pod["peakMemoryBytes"] > 100 * 2**20


def test_a_drained_run_goes_on_elsewhere_from_its_checkpoint(cluster, name):
    code = (
        "import os, pathlib, signal, sys, time\n"
        "at = pathlib.Path(os.environ['MOORAGE_CHECKPOINT_DIR']) / 'step.txt'\n"
        "step = int(at.read_text()) if at.exists() else 0\n"
        "last = step + 5 if step else 10**9\n"  # undisturbed, it would go on until the test gives up
        "told = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: told.append(1))\n"
        "print('begin', step)\n"
        "while step < last:\n"
        "    step += 1; at.write_text(str(step)); time.sleep(0.2)\n"
        "    if told: print('saved', step); sys.exit(0)\n"
        "print('end', step)\n"
    )
    cluster.moor("run", "--memory", "256Mi", "--gpus", "1", "--checkpoint", name, "--name", name, *python(code))
    first = wait_for(cluster, name, "Running")
    until(lambda: state_of(cluster, name), lambda run: run["checkpointAt"])
    node = first["node"]
    try:
        done = cluster.moor("drain", node, "--timeout", "3m", "--force")
        assert done.stdout == f"{node} drained\n"
        again = until(lambda: state_of(cluster, name), lambda run: run["restarts"] == 1 and run["node"])
        assert again["node"] != node
        followed = cluster.moor("logs", "-f", name, "--no-prefix")
        said = [
            line.split() for line in followed.stdout.splitlines() if not line.startswith("moorage: interrupted: ")
        ]
        reached = {word: int(step) for word, step in said}  # the last of each
        assert reached["begin"] > 0
        assert reached["end"] == reached["begin"] + 5
        assert reached.get("saved", reached["begin"]) == reached["begin"]
        run = state_of(cluster, name)
        assert (run["state"], run["restarts"]) == ("Succeeded", 1)
    finally:
        cluster.moor("uncordon", node)
        cluster.moor("cancel", "--delete", name, check=False)
        until(
            lambda: cluster.moor("volume", "delete", name, "--yes", check=False).returncode, lambda code: code == 0
        )


def test_ctrl_c_detaches_and_the_run_goes_on_until_it_is_cancelled(cluster, name):
    words = ["run", "--follow", "--memory", "64Mi", "--name", name]
    code = "import time; print('going'); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-m", "moorage.cli.main", *words, *python(code)],
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"Follow it again: moor logs -f {name}" in err
    assert "Traceback" not in err
    wait_for(cluster, name, "Running")
    assert cluster.moor("cancel", name).stdout == f"{name} cancelled\n"
    until(
        lambda: state_of(cluster, name),
        lambda run: (
            run["state"] == "Cancelled" and all(pod["gone"] for one in run["history"] for pod in one["pods"])
        ),
    )


@pytest.mark.parametrize("keeps", [True, False], ids=["with a checkpoint", "without"])
def test_a_run_that_leaves_well_when_its_pod_is_deleted_is_started_again(cluster, name, tmp_path, keeps):
    begun = tmp_path / "begun"
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"begun = pathlib.Path({str(begun)!r})\n"
        "if begun.exists(): print('finished'); sys.exit(0)\n"
        "begun.touch(); time.sleep(600)\n"
    )
    options = ("--checkpoint", name) if keeps else ()
    cluster.moor("run", "--memory", "64Mi", "--name", name, *options, *python(code))
    until(begun.exists, bool)
    pod = state_of(cluster, name)["history"][0]["pods"][0]["name"]
    delete_pod(cluster, pod)
    run = wait_for(cluster, name, "Succeeded")
    assert (run["restarts"], run["exitCode"]) == (1, 0)
    assert cluster.moor("logs", "--no-prefix", name).stdout.endswith("finished\n")


def test_cancelling_gives_the_command_its_grace_period(cluster, name, tmp_path):
    mark = tmp_path / "saved"
    code = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(mark)!r}).write_text('yes'), sys.exit(0)))\n"
        "print('ready')\n"
        "time.sleep(600)\n"
    )
    cluster.moor("run", "--memory", "64Mi", "--name", name, *python(code))
    until(lambda: cluster.moor("logs", name).stdout, lambda out: out == "ready\n")
    cluster.moor("cancel", name)
    until(mark.exists, bool)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--gpus", "1", "--gpu-type", "h100"], "GPU type 'h100' not found on any node"),
        (["--gpus", "64"], "64 GPUs asked for; the largest node with GPUs has 2"),
        (["--memory", "much"], "invalid memory 'much'"),
        (["--volume", "nothing:/data"], "volume 'nothing' not found"),
        (["--image", "python:3.12"], "cannot pull image"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_is_made(cluster, unique, options, says):
    done = cluster.moor("run", "--name", unique, *options, "--", "true", check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert unique not in cluster.moor("jobs", "-o", "name").stdout.split()


def test_a_name_that_is_taken_is_refused(cluster, name):
    cluster.moor("run", "--memory", "64Mi", "--name", name, "--", "true")
    done = cluster.moor("run", "--memory", "64Mi", "--name", name, "--", "true", check=False)
    assert done.returncode == 2
    assert f"the name '{name}' is taken" in done.stderr


def test_a_dry_run_says_where_it_would_land_and_creates_nothing(cluster, unique):
    words = ("run", "--dry-run", "--gpus", "1", "--checkpoint", unique, "--name", unique, "--", "true")
    done = until(  # runs of the test before may still be leaving
        lambda: cluster.moor(*words), lambda done: "would start now, on node-" in done.stderr
    )
    assert "kind: Job" in done.stdout
    assert unique not in cluster.moor("jobs", "-o", "name").stdout.split()
    assert unique not in cluster.moor("volume", "list", "-o", "name").stdout.split()


def test_a_volume_keeps_what_one_run_wrote_for_the_next(cluster, name, tmp_path):
    cluster.moor("volume", "create", name, "--size", "1Gi")
    try:
        mount = ["--memory", "128Mi", "--volume", f"{name}:/data"]
        write = "import pathlib; pathlib.Path('/data/x').write_text('kept')"
        read = "import pathlib; print(pathlib.Path('/data/x').read_text())"
        cluster.moor("run", "--follow", "--name", f"{name}-w", *mount, *python(write))
        done = cluster.moor("run", "--follow", "--name", name, *mount, *python(read))
        assert done.stdout == "kept\n"
    finally:
        cluster.moor("cancel", "--delete", f"{name}-w", name, check=False)
        until(
            lambda: cluster.moor("volume", "delete", name, "--yes", check=False).returncode, lambda code: code == 0
        )


def test_the_package_of_the_caller_is_importable_in_the_run(cluster, name, tmp_path: Path):
    (tmp_path / "mine.py").write_text("WORD = 'found'\n")
    done = cluster.moor(
        "run",
        "--follow",
        "--memory",
        "128Mi",
        "--name",
        name,
        *python("import mine; print(mine.WORD)"),
        cwd=tmp_path,
    )
    assert done.stdout == "found\n"
