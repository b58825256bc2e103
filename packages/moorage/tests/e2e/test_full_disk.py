"""A full disk: one clear error each, nothing half-made, and work goes on when there is room again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from moorage.cli.datafolder import DataFolder
from moorage.cli.supervisor import CHILDREN
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster, local_cluster

SPEAKS = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    print("word " * 50)
    time.sleep(0.02)
"""


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 256 MiB; needs the right to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    filler = folder / "filler"
    for size in (65536, 1):
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * size)
    return filler


def state(cluster: Cluster, run: str) -> str:
    """The state of a run; empty while the API does not answer."""
    shown = cluster.moor("show", run, "-o", "json", check=False)
    return json.loads(shown.stdout)["state"] if shown.returncode == 0 else ""


def refusal(cluster: Cluster, disk: Path, submit: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """A run that is refused; None if the cluster had removed a file, so that there was room for the run."""
    fill(disk)
    done = cluster.moor("run", "--name", "during", *submit, check=False)
    if done.returncode == 0:
        cluster.moor("cancel", "during", "--delete")
        return None
    return done


def running_items(cluster: Cluster, name: str) -> int:
    return int(json.loads(cluster.moor("map", "status", name, "-o", "json").stdout)["counts"]["leased"])


def test_moor_up_refuses_a_disk_without_room(small_disk):
    with (small_disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 224 << 20)
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli.main", "up", "--data", str(small_disk / "d"), "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "MiB are free" in done.stderr
    assert "hint:" in done.stderr
    assert [path for path in (small_disk / "d").iterdir()] == []


@pytest.mark.xdist_group("up")
def test_a_disk_that_fills_up_refuses_writes_and_loses_nothing(small_disk):
    with local_cluster(small_disk / "d") as cluster:
        submit = ("--cpu", "1", "--memory", "64Mi", "--", "python3", "-c", "print('done')")
        cluster.moor("run", "--name", "before", "--follow", *submit)
        cluster.moor("run", "--name", "sleeps", *submit[:-3], "sleep", "1000")
        wait_until("a run to start", lambda: state(cluster, "sleeps") == "Running")
        for name in ("ends", "goes"):
            cluster.moor("map", "create", name, "--range", "0:3", "--cpu", "100m", *submit[2:-3], "sleep", "1000")
        for name in ("ends", "goes"):  # pods that start would write, with the reserved space
            wait_until("an item to run", lambda name=name: running_items(cluster, name))
        refused = wait_until("a run to be refused", lambda: refusal(cluster, small_disk, submit))
        assert refused.returncode == 1
        assert "the disk is full" in refused.stderr
        assert len([line for line in refused.stderr.splitlines() if line.startswith("error:")]) == 1
        fill(small_disk)  # again, where the cluster has removed a file meanwhile
        before = {path.name for path in (small_disk / "d").iterdir()} | {"copies"}  # made by the control plane
        backup = small_disk.parent / "a.backup"
        for target in (backup, small_disk / "a.backup"):
            refused = cluster.moor("backup", "--data", str(small_disk / "d"), str(target), check=False)
            assert refused.returncode == 1
            assert "error: the control plane of" in refused.stderr
            assert "free some space" in refused.stderr
            assert not target.exists()
            assert not list(target.parent.glob(".a.backup*"))
        assert {path.name for path in (small_disk / "d").iterdir()} | {"copies"} == before
        fill(small_disk)
        assert state(cluster, "before") == "Succeeded"
        cluster.moor("cancel", "sleeps")
        cluster.moor("map", "cancel", "ends")
        cluster.moor("map", "delete", "goes")
        wait_until("its pod to be deleted", lambda: len([*small_disk.glob("d/nodes/*/*/spec.json")]) == 1)
        wait_until("the node to be under pressure", lambda: "DiskPressure" in cluster.moor("nodes").stdout)
        assert "node-1: Ready, DiskPressure" in cluster.moor("status", "--data", str(small_disk / "d")).stdout
        (small_disk / "filler").unlink()

        def accepted() -> bool:
            return cluster.moor("run", "--name", "after", *submit, check=False).returncode == 0

        wait_until("a run to be accepted", accepted)
        cluster.moor("backup", "--data", str(small_disk / "d"), str(backup))
        wait_until(
            "the run to end",
            lambda: state(cluster, "after") == "Succeeded",
        )
        assert set(cluster.moor("jobs", "-o", "name").stdout.split()) == {"before", "sleeps", "after"}


@pytest.mark.xdist_group("up")
def test_a_control_plane_killed_on_a_full_disk_comes_back(small_disk, tmp_path):
    """Nothing that is only noted ends the supervisor, or the shim of a pod whose log finds no room."""
    with local_cluster(small_disk / "d") as cluster:
        folder = DataFolder(cluster.home)
        go = tmp_path / "go"
        words = ("--cpu", "1", "--memory", "64Mi", "--", "python3", "-u", "-c", SPEAKS, str(go))
        cluster.moor("run", "--name", "speaks", *words)
        wait_until("its first words", lambda: "word" in cluster.moor("logs", "speaks", check=False).stdout)
        supervisor = folder.pid("supervisor")
        filler = fill(small_disk)
        for name in CHILDREN:
            before = wait_until(f"{name} to run", lambda name=name: folder.pid(name))
            os.kill(before, signal.SIGKILL)
            wait_until(f"another {name}", lambda name=name, before=before: folder.pid(name) not in (None, before))
            fill(small_disk)
        assert folder.pid("supervisor") == supervisor
        filler.unlink()
        assert "is damaged" not in (small_disk / "d" / "log" / "localcluster.log").read_text()
        wait_until("the API to answer", lambda: state(cluster, "speaks"))
        go.touch()
        wait_until("the run to end", lambda: state(cluster, "speaks") == "Succeeded")
        assert json.loads(cluster.moor("show", "speaks", "-o", "json").stdout)["restarts"] == 0
