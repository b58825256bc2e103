"""`moor backup` and `moor restore` of a local cluster, as typed: running, stopped, into another folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.forked import fork_server

pytestmark = pytest.mark.xdist_group("damaged")
ITEMS = 20


def moor(*args: str, data: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"NO_COLOR": "1", "MOORAGE_DATA": str(data), "KUBECONFIG": str(data / "kubeconfig")}
    return fork_server().run(args, env=env, timeout=600)


def typed(*args: str, data: Path) -> subprocess.CompletedProcess[str]:
    done = moor(*args, data=data)
    assert done.returncode == 0, done.stderr
    return done


def moor_json(*args: str, data: Path) -> Any:
    return json.loads(typed(*args, "-o", "json", data=data).stdout)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "d"
    typed("up", "--nodes", "1", "--port", "0", "--api-port", "0", "--ingress-port", "0", data=folder)
    yield folder
    assert moor("down", data=folder).returncode == 0


def test_a_running_cluster_is_backed_up_and_restored_with_a_map_half_done(data: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "moorage.backup", tmp_path / "other"
    typed("run", "--name", "trained", "--", "echo", "42", data=data)
    go = tmp_path / "go"  # the second half waits for it
    script = f"while [ $0 -ge {ITEMS // 2} ] && [ ! -e {go} ]; do sleep 0.1; done; echo $0"
    command = ("--", "sh", "-c", script, "{item}")
    typed("map", "create", "m", "--range", f"0:{ITEMS}", "--parallelism", "1", *command, data=data)
    typed("wait", "trained", data=data)
    wait_until("two items", lambda: len(moor("map", "results", "m", data=data).stdout.splitlines()) >= 2)
    said = typed("backup", str(file), data=data).stderr
    assert "1 map" in said
    assert "1 stored attempt" in said

    looked = moor_json("restore", "--dry-run", str(file), data=data)
    done = looked["rows"]["results"]
    assert (looked["rows"]["maps"], looked["rows"]["items"], looked["replaces"]["maps"]) == (1, ITEMS, 1)
    assert 2 <= done < ITEMS
    refused = moor("restore", str(file), data=data)
    assert (refused.returncode, "is not empty" in refused.stderr) == (1, True)
    refused = moor("restore", "--force", str(file), data=data)
    assert (refused.returncode, "moor down" in refused.stderr) == (1, True)  # it runs

    go.touch()
    wait_until("the map", lambda: moor_json("map", "status", "m", data=data)["state"] == "finished")
    typed("down", "--keep-pods", data=data)
    typed("restore", "--force", str(file), data=data)
    typed("up", data=data)
    wait_until("the map again", lambda: moor_json("map", "status", "m", data=data)["state"] == "finished")
    rows = [json.loads(line) for line in typed("map", "results", "m", data=data).stdout.splitlines()]
    assert sorted(row["item"] for row in rows) == list(range(ITEMS))
    assert typed("logs", "trained", data=data).stdout == "42\n"

    typed("restore", "--data", str(other), str(file), data=other)  # a folder that is not there yet
    assert json.loads((other / "config.json").read_bytes())["nodes"]
    typed("down", data=data)  # the ports are taken over
    typed("up", data=other)
    try:
        assert [run["name"] for run in moor_json("jobs", data=other)] == ["trained"]
    finally:
        typed("down", data=other)


def test_a_stopped_cluster_is_backed_up_and_wrong_files_are_refused(data: Path, tmp_path: Path) -> None:
    typed("down", data=data)
    file, bad = tmp_path / "a.backup", tmp_path / "bad.backup"
    typed("backup", "--data", str(data), str(file), data=data)
    assert moor_json("restore", "--dry-run", str(file), data=data)["rows"]["objects"] > 50
    bad.write_bytes(file.read_bytes()[:-100])
    before = {path: path.read_bytes() for path in data.glob("*.db")}
    for wrong, message in ((bad, "cannot be read to its end"), (tmp_path / "none.backup", "not found")):
        refused = moor("restore", "--force", str(wrong), data=data)
        assert (refused.returncode, message in refused.stderr) == (1, True), refused.stderr
    assert {path: path.read_bytes() for path in data.glob("*.db")} == before
    assert moor("restore", "--force", "latest", data=data).returncode == 2
    assert moor("backup", str(tmp_path / "none" / "x"), data=data).returncode == 2
