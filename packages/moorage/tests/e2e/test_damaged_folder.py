"""A data folder with damaged files, as typed: `moor up` refuses, `moor restore` brings it back, no pod ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import wait_until
from moorage_testing.forked import fork_server

pytestmark = pytest.mark.xdist_group("damaged")


def moor(*args: str, data: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"NO_COLOR": "1", "MOORAGE_DATA": str(data), "KUBECONFIG": str(data / "kubeconfig")}
    return fork_server().run(args, env=env, timeout=600)


def moor_json(*args: str, data: Path) -> Any:
    done = moor(*args, "-o", "json", data=data)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "d"
    server, api, ingress = map(str, free_ports(3))  # nobody else gets them while the cluster is down
    chosen = ("--port", server, "--api-port", api, "--ingress-port", ingress)
    started = moor("up", "--nodes", "1", *chosen, data=folder)
    assert started.returncode == 0, started.stderr
    yield folder
    assert moor("down", data=folder).returncode == 0
    assert pids_of(folder) == {}


def pids_of(data: Path) -> dict[str, int]:
    """The shims that live, by the pod's uid."""
    found = {}
    for folder in data.glob("nodes/*/*"):
        try:
            state = json.loads((folder / "state.json").read_bytes())
            words = Path(f"/proc/{state['shimPid']}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, KeyError):
            continue
        if os.fsencode(folder) in words:
            found[folder.name] = state["shimPid"]
    return found


def start_run(name: str, data: Path) -> None:
    assert moor("run", "--name", name, "--", "sleep", "100000", data=data).returncode == 0
    wait_until(f"{name} to run", lambda: state_of(name, data) == "Running")


def state_of(name: str, data: Path) -> str:
    return str(next(run["state"] for run in moor_json("jobs", data=data) if run["name"] == name))


def kill_all(data: Path) -> None:
    """`kill -9` of every process of ours but the shims."""
    status = moor_json("status", data=data)
    for pid in status["processes"].values():
        os.kill(pid, signal.SIGKILL)
    for pid in status["processes"].values():
        wait_until(f"the end of {pid}", lambda pid=pid: not Path(f"/proc/{pid}").exists())


def ports(data: Path) -> list[int]:
    """Those that were chosen."""
    found = json.loads((data / "config.json").read_text())["ports"]
    return [found[name] for name in ("server", "api", "ingress")]


def test_each_damaged_file_is_refused_by_name_and_brought_back_and_the_run_goes_on(data: Path) -> None:
    start_run("a", data)
    databases = ("queue.db", "people.db", "usage.db")
    wait_until("the server's databases", lambda: all((data / name).exists() for name in databases))
    used = ports(data)
    assert moor("down", "--keep-pods", data=data).returncode == 0
    running = pids_of(data)
    assert len(running) == 1
    for file, content in (
        ("cluster.db", b""),
        ("cluster.db", None),
        ("cluster.db", b"\0" * 70_000),
        ("queue.db", b""),
        ("people.db", None),
        ("usage.db", b"no database"),
        ("tokens.json", b"{"),
        ("config.json", b""),
        ("config.json", None),
        ("VERSION", None),
        ("pki/ca.key", None),
        ("pki/tokens.key", b""),
    ):
        if content is None:
            (data / file).unlink()
        else:
            (data / file).write_bytes(content)
        refused = moor("up", data=data)
        assert refused.returncode == 1, file
        assert f"{file} " in refused.stderr
        assert "moor restore latest" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert pids_of(data) == running, file
        restored = moor("restore", "latest", data=data)
        assert restored.returncode == 0, restored.stderr
    assert moor("up", data=data).returncode == 0
    assert ports(data) == used
    assert pids_of(data) == running
    assert state_of("a", data) == "Running"
    assert moor("restore", "latest", data=data).returncode == 1  # it runs
    assert pids_of(data) == running


def test_a_run_that_is_younger_than_the_copy_goes_on_and_ends_with_its_exit_code(data: Path) -> None:
    start_run("old", data)
    assert moor("down", "--keep-pods", data=data).returncode == 0
    kept = {copy["name"] for copy in moor_json("restore", data=data)}
    assert moor("up", data=data).returncode == 0
    start_run("young", data)
    kill_all(data)
    for copy in (data / "copies").iterdir():
        if copy.name not in kept:  # on a slow machine one may have been made since
            shutil.rmtree(copy)
    running = pids_of(data)
    assert len(running) == 2
    log = data / "cluster.db-wal"
    os.truncate(log, log.stat().st_size // 2)

    refused = moor("up", data=data)
    assert refused.returncode == 1
    assert "acknowledged" in refused.stderr
    assert pids_of(data) == running
    restored = moor("restore", "latest", data=data)
    assert restored.returncode == 0, restored.stderr
    assert "add 1 pod newer than the copy: default/young-" in restored.stderr
    assert moor("up", data=data).returncode == 0
    assert pids_of(data) == running
    assert state_of("old", data) == "Running"

    import asyncio

    from moorage_kube.remote.client import KubeClient
    from moorage_kube.resources import PODS

    async def pods() -> dict[str, Any]:
        async with KubeClient.from_kubeconfig(data / "kubeconfig") as api:
            found = (await api.list(PODS, "default")).items
        return {pod["metadata"]["uid"]: pod for pod in found}

    found = asyncio.run(pods())
    assert found.keys() == running.keys()
    assert {pod["status"]["phase"] for pod in found.values()} == {"Running"}
    (young,) = (pod for pod in found.values() if pod["metadata"]["name"].startswith("young"))
    assert "Job/young" in young["metadata"]["annotations"]["localcluster.moorage.dev/lost-owner"]
    os.kill(running[young["metadata"]["uid"]], signal.SIGKILL)
    wait_until(
        "the end of the young one",
        lambda: asyncio.run(pods())[young["metadata"]["uid"]]["status"]["phase"] == "Failed",
    )
    assert state_of("old", data) == "Running"


def test_the_pods_of_a_folder_that_cannot_be_read_are_stopped_by_down(data: Path) -> None:
    start_run("a", data)
    start_run("b", data)
    kill_all(data)
    assert len(pids_of(data)) == 2
    pods = sorted(path for path in data.glob("nodes/*/*") if path.is_dir())
    states = [json.loads((pod / "state.json").read_bytes())["shimPid"] for pod in pods]
    for name in ("cluster.db", "config.json", "tokens.json", "VERSION"):
        (data / name).write_bytes(b"")
    for name in ("admission.json", "state.json"):
        (pods[0] / name).write_bytes(b"{")
    (pods[0] / "lock").unlink()
    done = moor("down", data=data)
    assert done.returncode == 0, done.stderr
    assert "2 pods that were left running stopped" in done.stderr
    assert not [pid for pid in states if Path(f"/proc/{pid}").exists()]


def test_a_control_plane_that_cannot_read_its_store_any_more_ends_no_pod_and_down_does(data: Path) -> None:
    start_run("a", data)
    running = pids_of(data)
    status = moor_json("status", data=data)
    os.kill(status["processes"]["supervisor"], signal.SIGSTOP)
    os.kill(status["processes"]["localcluster"], signal.SIGKILL)
    (data / "cluster.db").write_bytes(b"")
    (data / "cluster.db-wal").unlink(missing_ok=True)
    os.kill(status["processes"]["supervisor"], signal.SIGCONT)
    wait_until(
        "the refusal in the log",
        lambda: "is empty" in (data / "log" / "localcluster.log").read_text(),
    )
    assert pids_of(data) == running
    assert moor("down", data=data).returncode == 0
    assert pids_of(data) == {}
