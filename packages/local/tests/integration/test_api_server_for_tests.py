"""The API server that tests of others start: what the README promises of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moorage_kube.errors import ApiError
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, DEPLOYMENTS, PODS
from moorage_kube.testing import builders
from moorage_kube.testing.waiting import until
from moorage_local.nodeagent.shimspec import HOST_IMAGE
from moorage_local.testing.server import api_server

pytestmark = pytest.mark.anyio

CONFIG = {"metadata": {"name": "settings"}, "data": {"a": "1"}}
SLEEPER = builders.a_deployment(
    "web", 2, namespace="", app="web", image=HOST_IMAGE, container={"command": ["sleep", "600"]},
    pod={"terminationGracePeriodSeconds": 1},
)  # fmt: skip


async def test_objects_stay_over_a_restart_on_the_same_folder(tmp_path: Path) -> None:
    with api_server(tmp_path) as server:
        async with KubeClient.from_kubeconfig(server.kubeconfig) as api:
            await api.create(CONFIGMAPS, CONFIG, "default")
    with api_server(tmp_path) as server:
        async with KubeClient.from_kubeconfig(server.kubeconfig) as api:
            assert (await api.get(CONFIGMAPS, "settings", "default"))["data"] == {"a": "1"}


async def test_controllers_make_pods_and_nodes_run_them(tmp_path: Path) -> None:
    with api_server(tmp_path, nodes=2) as server:
        async with KubeClient.from_kubeconfig(server.kubeconfig) as api:
            await api.create(DEPLOYMENTS, SLEEPER, "default")

            async def both_run() -> bool:
                pods = (await api.list(PODS, "default")).items
                return sum(pod.get("status", {}).get("phase") == "Running" for pod in pods) == 2

            await until("both pods run", both_run)
            await api.delete(DEPLOYMENTS, "web", "default", propagation="Foreground")

            async def gone() -> bool:
                return not (await api.list(PODS, "default")).items

            await until("the pods are gone", gone)


async def test_only_the_token_of_the_kubeconfig_is_let_in(tmp_path: Path) -> None:
    with api_server(tmp_path) as server:
        config = json.loads(server.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = "another"
        server.kubeconfig.write_text(json.dumps(config))
        async with KubeClient.from_kubeconfig(server.kubeconfig) as api:
            with pytest.raises(ApiError) as caught:
                await api.list(PODS, "default")
    assert caught.value.status == 401


def test_a_control_plane_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "cluster.db").write_bytes(b"no database" * 1000)
    with pytest.raises(RuntimeError, match="did not start"), api_server(tmp_path):
        pass
