"""`moor doctor install` as typed, on every kind of cluster."""

from __future__ import annotations

import json

import pytest

from moorage.decide.installcheck.checks import CHECKS, Stage
from moorage_kube.resources import CRDS, NAMESPACES, NODES, Resource

ROLEBINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
pytestmark = [pytest.mark.cluster("api"), pytest.mark.anyio]


async def test_an_installation_is_checked_by_what_the_cluster_says(cluster, api):
    done = cluster.moor("doctor", "install", "-o", "json", check=False)
    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert report["installed"] is True
    assert done.returncode == (1 if report["failed"] else 0)
    version = (await api.version())["gitVersion"]
    assert checks["kubernetes-version"] == {
        "name": "kubernetes-version",
        "outcome": "found",
        "required": True,
        "message": f"the API server is {version}",
        "why": next(check.why for check in CHECKS if check.name == "kubernetes-version"),
        "fix": [],
    }
    assert checks["clock"]["outcome"] == "found", checks["clock"]
    assert checks["crds"]["outcome"] == "found", checks["crds"]
    ready = [
        node["metadata"]["name"]
        for node in (await api.list(NODES)).items
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or ())
    ]
    assert checks["nodes"]["outcome"] == ("found" if ready else "missing"), checks["nodes"]
    if cluster.kind == "local":
        assert report["failed"] == 0, [check for check in report["checks"] if check["outcome"] != "found"]
        assert {check["name"] for check in report["checks"]} >= {"webhook", "server-ready", "public-url"}
        assert checks["webhook"]["message"] == "the API server asks the webhook, and it answers"


async def test_each_check_tells_people_what_it_found(cluster):
    done = cluster.moor("doctor", "install", check=False)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Moorage 0.")
    assert lines[-1].endswith("fails") or lines[-1].endswith("fail")
    words = {line.split()[1] for line in lines[1:-1] if not line.startswith(" ")}
    assert words <= {check.name for check in CHECKS}
    assert words & {check.name for check in CHECKS if check.stage is Stage.AFTER}


async def test_who_may_not_look_is_told_what_could_not_be_read(cluster):
    """A person without rights gets a report, and no error."""
    done = cluster.moor("doctor", "install", "--as", "nobody-of-the-doctor", "-o", "json", check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["default-storage-class"]["outcome"] == "unknown"
    assert "nobody-of-the-doctor" in checks["default-storage-class"]["message"]
    assert checks["kubernetes-version"]["outcome"] == "found"


async def test_a_cluster_without_moorage_is_judged_as_it_is(cluster, api):
    """Nothing is left of the dry runs and reviews."""
    before = {
        obj["metadata"]["name"]
        for resource in (NAMESPACES, CRDS, ROLEBINDINGS)
        for obj in (await api.list(resource)).items
    }
    cluster.moor("doctor", "install", check=False)
    after = {
        obj["metadata"]["name"]
        for resource in (NAMESPACES, CRDS, ROLEBINDINGS)
        for obj in (await api.list(resource)).items
    }
    assert {name for name in after - before if "doctor" in name} == set()


def test_a_probe_needs_an_image(cluster):
    done = cluster.moor("doctor", "install", "--probe", check=False)
    assert done.returncode == 2
    assert "--probe needs --image IMAGE" in done.stderr
