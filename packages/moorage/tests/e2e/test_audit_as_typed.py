"""`moor audit` after commands as people type them: `moor`, `kubectl` and REST, each change once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from functools import partial
from typing import Any

import pytest

from moorage.cluster.serverurl import server_url
from moorage.webhooks.config import audit_configuration
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, VALIDATING_WEBHOOKS
from moorage_kube.testing import waiting
from moorage_testing.cluster import Cluster, find_kubectl

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("scheduler", "controllers", "kubelet")]

until = partial(waiting.read_until, patience=180.0)
SLEEP = ["--", sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(autouse=True)
def local(cluster: Cluster) -> None:
    if cluster.kind != "local":
        pytest.skip("the administrator of this cluster has no token that moor can show to the server")


def sentences(cluster: Cluster, *options: str) -> list[str]:
    """The log, oldest first, without times and the name of who started the cluster."""
    person = json.loads((cluster.home / "config.json").read_text())["user"]
    lines = [line.split("  ", 1)[1] for line in cluster.moor("audit", *options).stdout.splitlines()]
    assert all(line.startswith(f"{person} ") for line in lines)
    return [line.removeprefix(f"{person} ") for line in reversed(lines)]


def kubectl(cluster: Cluster, *words: str) -> None:
    program = find_kubectl()
    if program is None:
        pytest.skip("kubectl is not installed")
    env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    subprocess.run([program, *words], check=True, capture_output=True, env=env, timeout=120)


def a_job(name: str, namespace: str) -> Any:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


def test_what_moor_and_kubectl_do_is_told_in_sentences(cluster: Cluster, unique: str) -> None:
    kubectl(cluster, "create", "namespace", unique)
    for name in ("train", "other"):
        cluster.moor("run", "-n", unique, "--memory", "256Mi", "--name", name, *SLEEP)
    until(
        lambda: json.loads(cluster.moor("show", "-n", unique, "train", "-o", "json").stdout),
        lambda run: run["state"] == "Running",
    )
    cluster.moor("exec", "-n", unique, "train", "--", "true")
    cluster.moor("cancel", "-n", unique, "train")
    kubectl(cluster, "delete", "job", "-n", unique, "other", "--wait=false")
    kubectl(cluster, "create", "job", "-n", unique, "third", "--image=none", "--", "true")
    kubectl(cluster, "delete", "job", "-n", unique, "third", "--dry-run=server")
    kubectl(cluster, "delete", "namespace", unique, "--wait=false")
    wanted = [
        f"created namespace {unique}, by kubectl",
        f"started run {unique}/train, by moor",
        f"started run {unique}/other, by moor",
        "ran a command in pod",
        f"cancelled run {unique}/train, by moor",
        f"deleted run {unique}/other, through the Kubernetes API",
        f"created job {unique}/third, by kubectl",
        f"deleted namespace {unique}, through the Kubernetes API",
    ]

    def told() -> list[str]:
        lines = sentences(cluster, "-n", unique)
        return [line if "ran a command" not in line else "ran a command in pod" for line in lines]

    until(told, wanted.__eq__)
    assert sentences(cluster, "-n", unique, "--action", "cancel run") == [wanted[4]]
    assert sentences(cluster, "-n", unique, "--since", "1h", "--user", "nobody-else") == []


def test_a_drain_is_told_with_its_evictions(cluster: Cluster) -> None:
    node = json.loads(cluster.moor("nodes", "-o", "json").stdout)[0]["name"]
    try:
        cluster.moor("drain", node)
    finally:
        cluster.moor("uncordon", node)
    wanted = [f"cordoned node {node}, by moor", f"uncordoned node {node}, by moor"]
    until(lambda: sentences(cluster, "--action", f"node {node}")[-2:], wanted.__eq__)


async def test_what_the_server_does_for_somebody_is_told_once(
    cluster: Cluster, api: KubeClient, namespace: str
) -> None:
    def post(server: str, token: str, body: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{server}/api/v1/jobs", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=60).close()

    tokens = json.loads((cluster.home / "tokens.json").read_text())
    server = (await server_url(api)).rstrip("/")
    for role in ("page", "admin"):
        token = next(token for token, entry in tokens.items() if entry["role"] == role)
        body = {"name": f"by-{role}", "namespace": namespace, "command": ["true"]}
        await asyncio.to_thread(post, server, token, body)
    await api.create(JOBS, a_job("last", namespace))
    wanted = [
        f"created namespace {namespace}, through the Kubernetes API",
        f"started run {namespace}/by-page, by REST",
        f"started run {namespace}/by-admin, by REST",
        f"created job {namespace}/last, through the Kubernetes API",
    ]
    told = until(lambda: sentences(cluster, "-n", namespace), lambda lines: len(lines) >= len(wanted))
    assert [line.partition(" from ")[0] for line in told] == wanted


async def test_a_webhook_that_is_down_stops_nothing(api: KubeClient, namespace: str) -> None:
    down = audit_configuration(url="https://127.0.0.1:1")
    down["metadata"]["name"] = f"down-{namespace}"
    for hook in down["webhooks"]:  # nobody else's requests
        names = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        hook["namespaceSelector"] = names
    await api.create(VALIDATING_WEBHOOKS, down)
    try:
        await api.create(JOBS, a_job("j", namespace))
        await api.patch(JOBS, "j", {"metadata": {"labels": {"a": "b"}}}, namespace)
        await api.delete(JOBS, "j", namespace)
    finally:
        await api.delete(VALIDATING_WEBHOOKS, down["metadata"]["name"])
