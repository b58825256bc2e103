"""`moor install` on the cluster that the environment chose. Nothing is written: other tests use its services."""

from __future__ import annotations

import pytest
import yaml

from moorage_testing.cluster import Cluster

IMAGE = "registry.example.org/moorage:0.1.0"

pytestmark = pytest.mark.cluster("api")


def test_a_local_cluster_has_its_services_already(cluster: Cluster) -> None:
    if cluster.kind != "local":
        pytest.skip("this cluster is no local one")
    for command in ("install", "upgrade"):
        refused = cluster.moor(command, "--image", IMAGE, check=False)
        assert refused.returncode == 1
        assert refused.stderr.startswith("error: this is a local cluster: `moor up` has installed Moorage on it")


def test_the_manifests_of_an_installation_are_those_of_its_values(cluster: Cluster) -> None:
    if cluster.kind == "local":
        pytest.skip("a local cluster is refused")
    printed = cluster.moor("install", "--image", IMAGE, "--dry-run", "-o", "yaml").stdout
    images = {
        container["image"]
        for obj in yaml.safe_load(printed)["items"]
        if obj["kind"] == "Deployment"
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    assert IMAGE in images
