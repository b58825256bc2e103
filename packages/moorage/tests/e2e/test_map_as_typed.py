"""`moor map` as typed and `moorage.map` as called, on a cluster that really runs the workers."""

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
SMALL = ("--cpu", "250m", "--memory", "256Mi")
SQUARE = """
import json, os, sys
n = int(sys.argv[1])
print("squaring", n)
if os.path.exists(f"bad-{n}"):
    sys.exit(3)
json.dump({"n": n, "square": n * n}, open(os.environ["MOORAGE_RESULT"], "w"))
"""


@pytest.fixture
def name(cluster: Cluster, unique: str) -> Iterator[str]:
    """A map's name; it is gone after the test."""
    yield unique
    cluster.moor("map", "delete", unique, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "square.py").write_text(SQUARE)
    return tmp_path


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    return json.loads(cluster.moor("map", "status", name, "-o", "json").stdout)


def square(name: str, *options: str) -> tuple[str, ...]:
    return ("map", "create", name, *SMALL, *options, "--", sys.executable, "square.py", "{item}")


def test_an_item_that_leaves_well_when_its_worker_is_drained_is_run_again(cluster, name, tmp_path):
    (tmp_path / "item.sh").write_text(
        "if [ -e begun ]; then echo 7 > $MOORAGE_RESULT; exit 0; fi\n"
        "trap 'exit 0' TERM; touch begun; sleep 600 & wait\n"
    )
    (tmp_path / "items.txt").write_text("1\n")
    options = ("-f", "items.txt", "--parallelism", "1", "--gpus", "1")  # of several nodes with GPUs one is drained
    cluster.moor("map", "create", name, *SMALL, *options, "--", "sh", "item.sh", "{item}", cwd=tmp_path)
    until((tmp_path / "begun").exists, bool)
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("kubectl is not on PATH")
    listing = [kubectl, "--kubeconfig", cluster.kubeconfig, "get", "pods", "-o", "json"]
    pods = json.loads(subprocess.run(listing, check=True, capture_output=True).stdout)["items"]
    [node] = {pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["name"].startswith(name)}
    try:
        cluster.moor("drain", node, "--timeout", "3m", "--force")
        done = until(lambda: status(cluster, name), lambda answer: answer["counts"]["done"] == 1)
        assert done["counts"]["dead"] == 0
    finally:
        cluster.moor("uncordon", node)
    cluster.moor("map", "results", name, "-o", "results.csv", cwd=tmp_path)
    assert "7" in (tmp_path / "results.csv").read_text()


def test_every_item_of_a_file_gets_its_result_and_failures_are_run_again(cluster, name, folder):
    (folder / "numbers.txt").write_text("".join(f"{n}\n" for n in range(40)))
    (folder / "bad-13").touch()
    made = square(name, "-f", "numbers.txt", "--parallelism", "2", "--retries", "0", "--wait")
    done = cluster.moor(*made, cwd=folder, check=False)
    assert (done.returncode, done.stdout) == (1, f"{name}\n")
    assert "39 of 40 done, 1 failed" in done.stderr
    listed = json.loads(cluster.moor("map", "items", "--failed", name, "-o", "json").stdout)
    assert [(one["item"], one["value"]) for one in listed] == [(13, "13")]
    assert "exit code 3" in listed[0]["failure"]["message"]
    assert cluster.moor("map", "logs", name, "13").stdout == "squaring 13\n"

    missing = cluster.moor("map", "results", name, "-o", "squares.csv", cwd=folder, check=False)
    assert missing.returncode == 1
    assert "1 of 40 are missing: 1 failed" in missing.stderr

    (folder / "bad-13").unlink()
    assert cluster.moor("map", "retry", name).stdout == f"{name}: 1 item will be run again\n"
    until(lambda: status(cluster, name), lambda one: one["state"] == "finished" and not one["counts"]["dead"])
    cluster.moor("map", "results", name, "-o", "squares.csv", cwd=folder)
    rows = (folder / "squares.csv").read_text().splitlines()
    assert rows == ["item,input,n,square", *(f"{n},{n},{n},{n * n}" for n in range(40))]
    printed = cluster.moor("map", "logs", name).stdout.splitlines()
    assert {f"[{n}] squaring {n}" for n in range(40)} <= set(printed)
    text = cluster.moor("map", "status", name).stdout
    assert "40: 40 done, 0 failed" in text
    assert name in cluster.moor("map", "list", "-o", "name").stdout.split()


def test_an_open_map_takes_more_items_and_ends_when_it_is_closed(cluster, name, folder):
    cluster.moor(*square(name, "--range", "0:3", "--open"), cwd=folder)
    until(lambda: status(cluster, name), lambda one: one["counts"]["done"] == 3)
    assert status(cluster, name)["state"] == "running"
    more = cluster.moor("map", "add", name, "--range", "3:5", "--close")
    assert f"{name} has 5 items; the list is complete" in more.stderr
    until(lambda: status(cluster, name), lambda one: one["state"] == "finished")
    found = [json.loads(line)["value"] for line in cluster.moor("map", "results", name).stdout.splitlines()]
    assert found == [{"n": n, "square": n * n} for n in range(5)]


def test_a_paused_map_begins_nothing_until_it_is_resumed(cluster, name, folder):
    cluster.moor(*square(name, "--range", "0:3", "--open"), cwd=folder)
    cluster.moor("map", "pause", name)
    cluster.moor("map", "add", name, "--range", "3:6", "--close")
    assert status(cluster, name)["state"] == "paused"
    cluster.moor("map", "resume", name)
    found = until(lambda: status(cluster, name), lambda one: one["state"] == "finished")
    assert found["counts"]["done"] == 6


def test_a_map_is_scaled_while_it_runs_and_who_has_to_leave_is_not_lost(cluster, name, folder):
    """Each item waits for a file of its number, so the workers are all at work."""
    code = "import os, sys, time\nwhile not os.path.exists('go-' + sys.argv[1]): time.sleep(0.1)"
    cluster.moor(
        *("map", "create", name, "--cpu", "100m", "--memory", "128Mi", "--open", "--range", "0:8"),
        *("--parallelism", "1", "--", sys.executable, "-c", code, "{item}"),
        cwd=folder,
    )
    for workers in (1, 3, 2):
        assert cluster.moor("map", "scale", name, str(workers)).stdout.startswith(
            f"{name} may have {workers} worker"
        )
        until(lambda: status(cluster, name), lambda shown: shown["workers"].get("ready") == workers)  # noqa: B023
    for item in range(8):
        (folder / f"go-{item}").touch()
    until(lambda: status(cluster, name), lambda shown: shown["counts"]["done"] == 8)
    added = subprocess.run(
        [sys.executable, "-c", ADD, name],
        env=cluster.environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert added.stdout.splitlines() == ["9", "9", "9"], added.stderr
    (folder / "go-8").touch()
    shown = until(lambda: status(cluster, name), lambda shown: shown["state"] == "finished")
    assert (shown["counts"]["done"], shown["parallelism"]) == (9, 3)
    assert shown["workers"].get("lost", 0) == 0


ADD = """
import sys, moorage
with moorage.Map.attach(sys.argv[1]) as items:
    print(items.add(["8"], request="once"))
    print(items.add(["8"], request="once"))
    items.scale(3)
    print(items.add([], close=True))
"""


def test_a_deleted_map_leaves_nothing_behind(cluster, name, folder):
    cluster.moor(*square(name, "--range", "0:2", "--wait"), cwd=folder)
    assert cluster.moor("map", "delete", name).stdout == f"{name} deleted\n"
    until(lambda: cluster.moor("map", "list", "-o", "name").stdout.split(), lambda names: name not in names)
    gone = cluster.moor("map", "status", name, check=False)
    assert gone.returncode == 1
    assert f"map {name!r} not found in namespace default" in gone.stderr


def test_what_is_wrong_is_told_before_anything_is_made(cluster, name, folder):
    wrong = cluster.moor(*square(name, "-f", "none.txt", "--limit", "mysql=many"), cwd=folder, check=False)
    assert wrong.returncode == 2
    assert "invalid limit 'mysql=many'" in wrong.stderr
    wrong = cluster.moor(*square(name, "-f", "none.txt"), cwd=folder, check=False)
    assert wrong.returncode == 2
    assert "none.txt cannot be read" in wrong.stderr
    assert name not in cluster.moor("map", "list", "-o", "name").stdout.split()


def test_an_interrupted_wait_leaves_the_map_alone(cluster, name, folder):
    mark = folder / "mark"
    code = f"import pathlib, time\nwhile not pathlib.Path({str(mark)!r}).exists(): time.sleep(0.1)"
    words = [sys.executable, "-m", "moorage.cli.main", "map", "create", name, *SMALL, "--range", "0:2", "--wait"]
    typed = subprocess.Popen(
        [*words, "--", sys.executable, "-c", code],
        env=cluster.environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: cluster.moor("map", "list", "-o", "name").stdout.split(), lambda names: name in names)
    assert typed.stdout is not None
    assert typed.stdout.readline() == f"{name}\n"
    typed.send_signal(signal.SIGINT)
    _, said = typed.communicate(timeout=PATIENCE)
    assert typed.returncode == 130
    assert "detached; the map continues" in said
    mark.touch()
    until(lambda: status(cluster, name), lambda one: one["state"] == "finished")


SCRIPT = """
import json, sys
import moorage

@moorage.mapped(parallelism=2, retries=0, cpu="250m", memory="256Mi", progress=False)
def square(x):
    if x == 5:
        raise ValueError("five")
    return (x, x * x)

print(list(square.map(range(5))) == [(n, n * n) for n in range(5)])
found = list(square.map(range(8), ordered=False, on_error="return"))
print(len(found), [(one.item, one.value, one.reason) for one in found if isinstance(one, moorage.ItemError)])
with square.start(range(6), name=sys.argv[1]) as handle:
    print(handle.wait().failed, [one.item for one in handle.failures()])
again = moorage.Map.attach(sys.argv[1])
print(again.status().done)
again.delete()
"""


def test_a_function_is_mapped_from_python(cluster, name, tmp_path):
    pytest.importorskip("cloudpickle")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", name],
        env=cluster.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.stdout.splitlines() == ["True", "8 [(5, 5, 'ValueError: five')]", "1 [5]", "5"], done.stderr
    until(lambda: cluster.moor("map", "list", "-o", "name").stdout.split(), lambda names: name not in names)
