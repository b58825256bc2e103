"""`moor install`, `upgrade` and `uninstall` on a real API server with real controllers, and no service of ours up.

Needs etcd, kube-apiserver and kube-controller-manager in KUBEBUILDER_ASSETS.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage.model.dataset import DATASETS
from moorage.model.machine import NODE_POOLS
from moorage.model.manifests import CLUSTERROLES
from moorage_kube.errors import NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, CRDS, NAMESPACES, NODES, PODS, PRIORITYCLASSES, STORAGECLASSES
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster, control_plane
from moorage_testing.installing import DEFAULT_CLASS

ASSETS = os.environ.get("KUBEBUILDER_ASSETS")
IMAGE = "registry.example.org/moorage:0.1.0"

MADE_BY_THE_CLUSTER = ("events", "apiservices")

pytestmark = pytest.mark.skipif(
    not ASSETS or not (Path(ASSETS) / "kube-controller-manager").exists(),
    reason="KUBEBUILDER_ASSETS names no folder with etcd, kube-apiserver and kube-controller-manager",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("plane")
    with control_plane(Path(str(ASSETS)), home) as plane:
        plane.start_controllers()
        offers = frozenset({"api", "controllers"})
        cluster = Cluster(kind="envtest", offers=offers, kubeconfig=plane.kubeconfig, home=home)
        create(cluster, STORAGECLASSES, DEFAULT_CLASS | {"provisioner": "none"})
        yield cluster


def create(cluster: Cluster, resource: Any, obj: dict[str, Any]) -> None:
    async def work() -> None:
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            await api.create(resource, head | obj)

    asyncio.run(work())


def get(cluster: Cluster, resource: Any, name: str, namespace: str | None = None) -> dict[str, Any] | None:
    async def work() -> dict[str, Any] | None:
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            with contextlib.suppress(NotFound):
                return await api.get(resource, name, namespace)
        return None

    return asyncio.run(work())


def left_of_ours(cluster: Cluster) -> set[tuple[str, str]]:
    """Kind and name of everything on the cluster that bears our label, our group or our name."""

    async def work() -> set[tuple[str, str]]:
        names = set()
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            for resource in await api.discover():
                with contextlib.suppress(Exception):  # what cannot be listed, such as reviews
                    for obj in (await api.list(resource)).items:
                        meta = obj["metadata"]
                        label = (meta.get("labels") or {}).get("app.kubernetes.io/part-of")
                        is_named = "moorage" in f"{meta['name']} {meta.get('namespace', '')}"
                        if (label == "moorage" or is_named) and resource.plural not in MADE_BY_THE_CLUSTER:
                            names.add((resource.kind, meta["name"]))
        return names

    return asyncio.run(work())


def users_things(cluster: Cluster) -> None:
    """What users have, held by finalizers and gates that nobody of ours lifts."""
    labels = {"moorage.dev/machine-group": "a100", "moorage.dev/machine-mode": "ready"}
    notes = {"moorage.dev/machine-node-pool": "a100"}
    create(cluster, NODES, {"metadata": {"name": "node-1", "annotations": notes, "labels": labels}})
    types = [{"name": "one"}]
    entry = {"name": "node-1", "mode": "ready", "taint": False, "machineType": types}
    spec: dict[str, Any] = {"machineGroupName": "a100", "nodePool": [entry], "machineTypeStock": types}
    create(cluster, NODE_POOLS, {"metadata": {"name": "a100", "finalizers": ["moorage.dev/nodes"]}, "spec": spec})
    meta = {"name": "digits", "namespace": "default", "finalizers": ["moorage.dev/dataset", "example.org/mine"]}
    spec = {"source": {"url": "https://example.org/digits.tar"}, "size": "1Gi"}
    create(cluster, DATASETS, {"metadata": meta, "spec": spec})
    gates = [{"name": "moorage.dev/machine"}, {"name": "example.org/mine"}]
    container = {"name": "main", "image": "busybox"}
    meta = {"name": "guest", "namespace": "default"}
    create(cluster, PODS, {"metadata": meta, "spec": {"containers": [container], "schedulingGates": gates}})


def test_the_whole_life_of_an_installation_whose_services_are_down(cluster: Cluster) -> None:
    words = ("install", "--image", IMAGE, "--no-wait", "--scheduler", "second")
    planned = cluster.moor(*words, "--dry-run")
    assert re.search(r"^[1-9]\d* to create, 0 to change, 0 to remove", planned.stdout, re.MULTILINE), (
        planned.stdout
    )
    installed = cluster.moor(*words)
    assert "objects: " in installed.stderr
    assert installed.stdout.startswith("user: admin\npassword: ")
    users_things(cluster)

    # again, and an upgrade: nothing changes
    assert "nothing changes" in cluster.moor("install", "--no-wait").stderr
    assert "nothing changes" in cluster.moor("upgrade", "--no-wait").stderr
    assert cluster.moor("upgrade", "--dry-run").stdout.startswith("0 to create, 0 to change, 0 to remove")

    # what an admin sets by hand stays, or is named
    cluster.moor("install", "--no-wait", "--public-url", "https://a.example.org", "--ingress-class", "nginx")
    info = get(cluster, CONFIGMAPS, "moorage", "moorage-system")
    assert info is not None
    assert info["data"]["publicUrl"] == "https://a.example.org"

    # removed, with data kept
    removed = cluster.moor("uninstall", "--yes", "--timeout", "3m")
    assert "DATA" not in removed.stderr
    assert {kind for kind, _ in left_of_ours(cluster)} <= {
        "CustomResourceDefinition", "Namespace", "PersistentVolumeClaim", "Secret", "ConfigMap", "ServiceAccount",
        "ClusterRoleBinding",
    }  # fmt: skip
    assert get(cluster, CLUSTERROLES, "moorage-operator") is None
    assert get(cluster, PRIORITYCLASSES, "moorage-guest") is None
    guest = get(cluster, PODS, "guest", "default")
    assert guest is not None
    assert guest["spec"]["schedulingGates"] == [{"name": "example.org/mine"}]
    dataset = get(cluster, DATASETS, "digits", "default")
    assert dataset is not None
    assert dataset["metadata"]["finalizers"] == ["example.org/mine"]

    # brought back with its values, and removed with its data
    back = cluster.moor("install", "--no-wait")
    assert back.stdout == ""  # the first user is there already
    info = get(cluster, CONFIGMAPS, "moorage", "moorage-system")
    assert info is not None
    assert info["data"]["publicUrl"] == "https://a.example.org"
    held = cluster.moor("uninstall", "--delete-data", "--yes", "--timeout", "3s", check=False)
    assert "is still being deleted" in held.stderr  # somebody else's finalizer is on the dataset
    release(cluster)
    wait_until("nothing of ours is left", lambda: left_of_ours(cluster) == set())
    for resource, name in ((NAMESPACES, "moorage-system"), (CRDS, "datasets.moorage.dev")):
        assert get(cluster, resource, name) is None
    node = get(cluster, NODES, "node-1")
    assert node is not None
    assert not any(
        "moorage" in key for key in (*node["metadata"].get("labels", {}), *node["metadata"].get("annotations", {}))
    )
    assert cluster.moor("uninstall", "--yes", check=False).stderr.startswith("error: Moorage is not installed")


def release(cluster: Cluster) -> None:
    async def work() -> None:
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            await api.patch(DATASETS, "digits", {"metadata": {"finalizers": None}}, "default")

    asyncio.run(work())
