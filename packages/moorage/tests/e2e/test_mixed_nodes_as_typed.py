"""A member's work on the usual cluster: GPU nodes of two types, nodes without GPUs, one of them another team's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import KEPT, Cluster, find_kubectl
from tests.e2e.conftest import PASSWORD, Typed, is_ready, log_in

GROUP = "gpu-machines"
GUEST = {"moorage.dev/machine-group": GROUP, "moorage.dev/machine-type": "small"}
MACHINE = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "Machine",
    "metadata": {"name": GROUP},
    "spec": {
        "nodePool": [{"name": "node-2", "mode": "ready", "taint": True, "machineType": [{"name": "small"}]}],
        "machineTypes": [
            {
                "name": "small",
                "spec": {"cpu": "1", "memory": "512Mi", "gpu": {"type": "nvidia.com/gpu", "num": 1}},
                "available": 2,
            }
        ],
    },
}
CONTAINER = {"name": "main", "image": "localhost/host", "command": ["sleep", "999"]}


@pytest.fixture
def member(cluster: Cluster, unique: str, typed: Typed, server: str) -> Iterator[str]:
    """A member of a team without nodes of its own, who has logged in; administrators offer machines."""
    if find_kubectl() is None:
        pytest.skip("kubectl is not there")
    cluster.moor("user", "create", unique, "--password-stdin", stdin=PASSWORD + "\n")
    cluster.moor("tenant", "create", f"{unique}-a", "--member", unique)
    wait_until("the team's rights", lambda: is_ready(cluster, f"{unique}-a"))
    log_in(typed, server, unique)
    apply = ("kubectl", "--kubeconfig", str(cluster.kubeconfig))
    typed(*apply, "apply", "-f", "-", stdin=json.dumps(MACHINE))
    wait_until("the machines", lambda: usage(cluster)["reserved"] == 2)
    yield unique
    typed(*apply, "delete", "machine", GROUP)
    cluster.moor("tenant", "delete", f"{unique}-a", check=False)
    typed(*apply, "delete", "namespace", f"{unique}-a")  # with its runs, which hold GPUs that other tests need
    cluster.moor("user", "delete", unique, check=False)
    wait_until(
        "node-2 to be free again",
        lambda: "machine-group" not in typed(*apply, "get", "node", "node-2", "-o", "json").stdout,
    )


def usage(cluster: Cluster) -> Any:
    """The counts of the machines; null in the first moments of a Machine."""
    rows = json.loads(cluster.moor("machines", GROUP, "-o", "json").stdout)
    return (rows[0]["usage"] if rows else None) or {"reserved": 0}


def a_thing(kind: str, name: str) -> Any:
    """A manifest whose pod is a guest."""
    template = {"metadata": {"labels": GUEST | {"app": name}}, "spec": {"containers": [CONTAINER]}}
    meta = {"name": name}
    match kind:
        case "Pod":
            return {
                "apiVersion": "v1",
                "kind": kind,
                "metadata": meta | {"labels": GUEST},
                "spec": template["spec"],
            }
        case "Deployment":
            spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
            return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}
        case "Job":
            template["spec"]["restartPolicy"] = "Never"
            return {"apiVersion": "batch/v1", "kind": kind, "metadata": meta, "spec": {"template": template}}
        case "Workflow":
            step = {"name": "a", "metadata": {"labels": GUEST}, "container": CONTAINER}
            spec = {"entrypoint": "a", "templates": [step]}
            return {"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
        case _:
            worker = {key: CONTAINER[key] for key in ("name", "image")}
            template["spec"]["containers"] = [worker]
            spec = {"command": ["sleep", "999"], "parallelism": 1, "template": template}
            return {"apiVersion": "moorage.dev/v1alpha1", "kind": "MapJob", "metadata": meta, "spec": spec}


def test_a_member_gets_a_machine_by_every_way(cluster: Cluster, member: str, typed: Typed) -> None:
    def nodes() -> list[str]:
        pods = json.loads(typed("kubectl", "get", "pods", "-o", "json").stdout)["items"]
        return [
            pod["spec"].get("nodeName", "")
            for pod in pods
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    done = typed("run", "--machine", f"{GROUP}/small", "--name", "r", "--", "sleep", "999")
    assert done.returncode == 0, done.stderr
    assert "memory" not in done.stderr
    assert typed("workspace", "create", "w", "--machine", f"{GROUP}/small").returncode == 0
    wait_until("a run and a workspace", lambda: nodes() == ["node-2", "node-2"])
    used = {"used": 2, "reserved": 0, "pending": 0}
    wait_until("both to be counted", lambda: (shown := usage(cluster)) == shown | used)
    typed("run", "--machine", f"{GROUP}/small", "--name", "third", "--", "true")
    wait_until("a guest that waits", lambda: usage(cluster)["waiting"] == 1)
    explained = typed("explain", "third").stdout
    assert f"{GROUP}/small" in explained
    assert "its labels do not match" not in explained
    typed("cancel", "r")
    typed("workspace", "delete", "w", "--yes", "--delete-home")
    wait_until(
        "the third", lambda: json.loads(typed("show", "third", "-o", "json").stdout)["state"] == "Succeeded"
    )
    for pair in (("Pod", "Deployment"), ("Job", "Workflow"), ("MapJob",)):
        wait_until("free machines", lambda: usage(cluster)["reserved"] == 2)
        manifests = [a_thing(kind, kind.lower()) for kind in pair]
        done = typed("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))
        assert done.returncode == 0, done.stderr
        if "MapJob" in pair:
            typed("map", "add", "mapjob", "--range", "0:1")
        wait_until(f"{pair} on the machine's node", lambda pair=pair: nodes() == ["node-2"] * len(pair))
        typed("kubectl", "delete", "-f", "-", stdin=yaml.safe_dump_all(manifests))


def test_work_of_a_member_goes_where_it_belongs_and_no_trick_leads_elsewhere(
    cluster: Cluster, member: str, typed: Typed
) -> None:
    def runs(name: str, *words: str) -> str:
        done = typed("run", "--name", name, "--memory", "64Mi", *words, "--", "sleep", "999")
        assert done.returncode == 0, done.stderr
        wait_until(name, lambda: json.loads(typed("show", name, "-o", "json").stdout)["state"] == "Running")
        return str(json.loads(typed("show", name, "-o", "json").stdout)["node"])

    assert runs("plain") == "node-3", "the node without GPUs that is for everybody"
    assert runs("small", "--gpus", "1", "--gpu-type", "t4") == "node-4", "a taint of GPUs is tolerated"
    assert runs("big", "--gpus", "2", "--gpu-type", "a100") == "node-1", "node-2 is for guests"
    tricks = [
        {"nodeName": "node-2"},
        {"nodeName": "node-5"},
        {"tolerations": [{"operator": "Exists"}]},
        {"tolerations": [{"key": "moorage.dev/machine-group", "operator": "Exists"}]},
        {"tolerations": [{"key": "moorage.dev/tenant", "value": KEPT}]},
    ]
    for trick in tricks:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [CONTAINER]}}
        pod["spec"] |= trick
        done = typed("kubectl", "apply", "-f", "-", stdin=json.dumps(pod))
        assert "must be left to the scheduler" in done.stderr or "must not tolerate" in done.stderr, done.stderr
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "plain"}, "target": {"name": "node-2"}}
    path = f"/api/v1/namespaces/{member}-a/pods/plain/binding"
    done = typed("kubectl", "create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    assert "forbidden" in done.stderr.lower()
