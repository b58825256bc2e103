"""A local cluster's data folder: the last release's `moor up`, then this one's, then the last one's again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from releases import FIXTURES, ROOT, environment

from moorage.apimachinery.resources import Resource
from moorage.kube.client import KubeClient
from moorage.kube.config import load_connection
from moorage.model.mapjob import MAPJOBS
from moorage.model.workspace import WORKSPACES
from moorage.testing.waiting import wait_until

pytestmark = pytest.mark.xdist_group("upgrade")
THIS = ROOT / "src"
ITEMS = 30


class Folder:
    """A data folder, on which either release types commands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def moor(self, sources: Path, *args: str) -> subprocess.CompletedProcess[str]:
        env = environment(sources) | {"MOORAGE_DATA": str(self.path), "KUBECONFIG": str(self.path / "kubeconfig")}
        return subprocess.run(
            [sys.executable, "-m", "moorage.cli.main", *args],
            capture_output=True, text=True, check=False, env=env, cwd=self.path.parent,
        )  # fmt: skip

    def typed(self, sources: Path, *args: str) -> str:
        done = self.moor(sources, *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, sources: Path, *args: str) -> Any:
        return json.loads(self.typed(sources, *args, "-o", "json"))


@pytest.fixture
def folder(tmp_path: Path, last_release: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "d")
    up = ("up", "--nodes", "1", "--gpus", "1", "--port", "0", "--api-port", "0", "--ingress-port", "0")
    folder.typed(last_release / "src", *up)
    yield folder
    folder.moor(THIS, "down")


@pytest.mark.usefixtures("last_release")
def test_a_folder_of_the_last_release_goes_on_and_a_way_back_is_refused(
    folder: Folder, last_release: Path
) -> None:
    old = last_release / "src"
    folder.typed(old, "run", "--name", "trained", "--", "echo", "42")
    folder.typed(
        old, "map", "create", "m", "--range", f"0:{ITEMS}", "--parallelism", "1", "--timeout", "60s",
        "--", "sh", "-c", "sleep 0.3; echo {item} >> " + str(folder.path.parent / "done"),
    )  # fmt: skip
    hours = ("--start", "0 8 * * *", "--stop", "0 18 * * *", "--zone", "Asia/Tokyo")
    folder.typed(old, "workspace", "create", "w", "--type", "jupyterlab", *hours)
    wait_until("two items", lambda: len(folder.moor(old, "map", "results", "m").stdout.splitlines()) >= 2)
    folder.typed(old, "down", "--keep-pods")
    folder.typed(THIS, "up")
    wait_until("the map", lambda: folder.json(THIS, "map", "status", "m")["state"] == "finished")
    rows = [json.loads(line) for line in folder.typed(THIS, "map", "results", "m").splitlines()]
    assert sorted(row["item"] for row in rows) == list(range(ITEMS))
    assert {run["name"]: run["state"] for run in folder.json(THIS, "jobs")}["trained"] == "Succeeded"
    for kind, name, table, values in (
        (MAPJOBS, "m", "policy", {"timeSeconds": 60, "timeoutSeconds": 60}),
        (WORKSPACES, "w", "schedule", {"timeZone": "Asia/Tokyo", "timezone": "Asia/Tokyo"}),
    ):
        spec = wait_until(f"both names of {table}", lambda: with_both(folder, kind, name, table, values))  # noqa: B023
        assert {**spec[table], **values} == spec[table]
    folder.typed(THIS, "down", "--keep-pods")

    refused = folder.moor(old, "up")
    assert refused.returncode == 1
    assert "cluster.db has layout 2; this program reads layout 1" in refused.stderr
    folder.typed(THIS, "up")
    assert {run["name"] for run in folder.json(THIS, "jobs")} >= {"trained"}


def with_both(folder: Folder, resource: Resource, name: str, table: str, values: dict[str, Any]) -> Any:
    """The spec of an object, once its table has all these fields."""

    async def read() -> Any:
        async with KubeClient(load_connection(folder.path / "kubeconfig")) as api:
            return (await api.get(resource, name, "default"))["spec"]

    spec = asyncio.run(read())
    return spec if values.keys() <= spec[table].keys() else None


def test_the_fixtures_are_whole() -> None:
    databases = {f"{name}.db.sql" for name in ("outputs", "people", "queue", "usage")}
    names = {path.name for path in FIXTURES.iterdir()}
    assert names == {"crds", "manifests.yaml", "objects.json", "postgres.sql"} | databases
