"""The real kubectl against our server: a client nobody here wrote."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.resources import NODES, PODS, Obj

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.anyio,
    pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl on this machine"),
]
DEADLINE_SECONDS = 180

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: p1, labels: {app: x}}
spec:
  containers:
  - name: a
    image: busybox:1
    command: [sleep, "1"]
    resources: {limits: {cpu: 500m, memory: 1Gi}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: j1}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: a, image: busybox:1}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d1}
spec:
  selector: {matchLabels: {app: d1}}
  template:
    metadata: {labels: {app: d1}}
    spec:
      containers: [{name: a, image: busybox:1}]
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.x.io}
spec:
  group: x.io
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wdg]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer, minimum: 1}}}}
"""
WIDGET = "apiVersion: x.io/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: %s}\n"


class Kubectl:
    def __init__(self, served: Any, folder: Path) -> None:
        self._served = served
        self._folder = folder

    async def __call__(self, *args: str, stdin: str = "", code: int = 0) -> str:
        """Output of a command that ends with `code`: stdout, or stderr when it is to fail."""
        assert KUBECTL is not None
        process = await asyncio.create_subprocess_exec(
            KUBECTL,
            *args,
            env={"KUBECONFIG": str(self._served.kubeconfig), "HOME": str(self._folder), "PATH": "/usr/bin:/bin"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_SECONDS):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode == code, (args, out.decode(), err.decode())
        return out.decode() if code == 0 else err.decode()

    async def json(self, *args: str) -> Obj:
        found: Obj = json.loads(await self(*args, "-o", "json"))
        return found


@pytest.fixture
async def kubectl(served: Any, tmp_path: Path) -> Kubectl:
    return Kubectl(served, tmp_path)


async def test_apply_creates_then_leaves_alone_then_changes(kubectl: Kubectl) -> None:
    for said in ("created", "unchanged"):
        lines = (await kubectl("apply", "-f", "-", stdin=MANIFEST)).splitlines()
        assert sorted(lines) == [f"deployment.apps/d1 {said}", f"job.batch/j1 {said}", f"pod/p1 {said}"]
    changed = MANIFEST.replace("image: busybox:1\n    command", "image: busybox:2\n    command")
    assert "pod/p1 configured" in await kubectl("apply", "-f", "-", stdin=changed)
    pod = await kubectl.json("get", "pod", "p1")
    assert pod["spec"]["containers"][0]["image"] == "busybox:2"


async def test_apply_refuses_unknown_fields_and_wrong_values(kubectl: Kubectl) -> None:
    typo = MANIFEST.replace("command:", "comand:")
    assert 'unknown field "spec.containers[0].comand"' in await kubectl("apply", "-f", "-", stdin=typo, code=1)
    wrong = MANIFEST.replace("cpu: 500m", "cpu: lots")
    assert "quantities must match the regular expression" in await kubectl("apply", "-f", "-", stdin=wrong, code=1)


async def test_server_side_apply_and_dry_runs(kubectl: Kubectl) -> None:
    assert "pod/p1 serverside-applied" in await kubectl("apply", "--server-side", "-f", "-", stdin=MANIFEST)
    assert "(server dry run)" in await kubectl("delete", "pod", "p1", "--dry-run=server")
    assert "p1" in await kubectl("get", "pods")
    diff = MANIFEST.replace("busybox:1\n    command", "busybox:9\n    command")
    assert "busybox:9" in await kubectl("apply", "--dry-run=server", "-o", "yaml", "-f", "-", stdin=diff)


async def test_get_shows_the_columns_of_the_real_server(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=MANIFEST)
    head, row = (await kubectl("get", "pods")).splitlines()
    assert head.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["p1", "0/1", "Pending", "0"]
    wide = (await kubectl("get", "pods", "-o", "wide")).splitlines()[0]
    assert wide.split()[5:] == ["IP", "NODE", "NOMINATED", "NODE", "READINESS", "GATES"]
    everything = await kubectl("get", "all")
    for name in ("pod/p1", "job.batch/j1", "deployment.apps/d1", "service/kubernetes"):
        assert name in everything
    assert await kubectl("get", "pods", "-l", "app=x", "-o", "name") == "pod/p1\n"
    assert "NotFound" in await kubectl("get", "pod", "nope", code=1)


async def test_describe_label_annotate_patch_scale_and_delete(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert re.search(r"QoS Class:\s+Guaranteed", await kubectl("describe", "pod", "p1"))
    await kubectl("label", "pod", "p1", "tier=gpu")
    await kubectl("annotate", "pod", "p1", "why=test")
    await kubectl("patch", "pod", "p1", "-p", '{"spec":{"containers":[{"name":"a","image":"z:1"}]}}')
    await kubectl(
        "patch", "pod", "p1", "--type=json", "-p", '[{"op":"remove","path":"/metadata/annotations/why"}]'
    )
    pod = await kubectl.json("get", "pod", "p1")
    assert pod["metadata"]["labels"] == {"app": "x", "tier": "gpu"}
    assert "why" not in pod["metadata"]["annotations"]
    assert pod["spec"]["containers"][0]["image"] == "z:1"
    await kubectl("scale", "deployment/d1", "--replicas=4")
    assert (await kubectl.json("get", "deployment", "d1"))["spec"]["replicas"] == 4
    await kubectl("set", "image", "deployment/d1", "a=busybox:3")
    lines = (await kubectl("delete", "pod/p1", "deployment/d1")).splitlines()
    assert sorted(line.partition(" deleted")[0] for line in lines) == ['deployment.apps "d1"', 'pod "p1"']


async def test_wait_sees_a_condition_come(kubectl: Kubectl, served: Any) -> None:
    await kubectl("apply", "-f", "-", stdin=MANIFEST)
    waiting = asyncio.ensure_future(kubectl("wait", "--for=condition=Ready", "pod/p1", "--timeout=50s"))
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await served.server.client().patch(PODS, "p1", ready, "default", subresource="status")
    assert await waiting == "pod/p1 condition met\n"


async def test_logs(kubectl: Kubectl, served: Any) -> None:
    async def source(pod: Obj, container: str, **options: Any) -> AsyncIterator[bytes]:
        yield f"{container} tail={options['tail_lines']}\n".encode()

    served.server.log_source = source
    await kubectl("apply", "-f", "-", stdin=MANIFEST)
    api = served.server.client()
    await api.create(NODES, {"metadata": {"name": "n"}})
    await api.create_subresource(PODS, "p1", "binding", {"target": {"name": "n"}}, "default")
    assert await kubectl("logs", "p1", "--tail=3") == "a tail=3\n"
    assert await kubectl("logs", "-f", "p1") == "a tail=None\n"
    assert "container nope is not valid for pod p1" in await kubectl("logs", "p1", "-c", "nope", code=1)


async def test_cordon_drain_and_uncordon(kubectl: Kubectl, served: Any) -> None:
    api = served.server.client()
    ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]
    await api.create(NODES, {"metadata": {"name": "n1"}, "status": {"conditions": ready}})
    await kubectl("apply", "-f", "-", stdin=MANIFEST)
    await api.create_subresource(PODS, "p1", "binding", {"target": {"name": "n1"}}, "default")
    await api.patch(PODS, "p1", {"status": {"phase": "Running"}}, "default", subresource="status")
    assert "node/n1 cordoned" in await kubectl("cordon", "n1")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "nodes")

    start = (await api.list(PODS)).resource_version  # before the drain, whoever is faster

    async def node_agent() -> None:
        async for event in api.watch(PODS, resource_version=start):
            if event.type == "MODIFIED" and event.object["metadata"].get("deletionTimestamp"):
                await api.delete(PODS, event.object["metadata"]["name"], "default", grace_period_seconds=0)
                return

    agent = asyncio.ensure_future(node_agent())
    drained = await kubectl("drain", "n1", "--force", "--ignore-daemonsets", "--delete-emptydir-data")
    await agent
    assert "node/n1 drained" in drained
    assert "node/n1 uncordoned" in await kubectl("uncordon", "n1")


async def test_tokens_and_who_am_i(kubectl: Kubectl) -> None:
    await kubectl("create", "serviceaccount", "robot")
    token = (await kubectl("create", "token", "robot")).strip()
    who = await kubectl("auth", "whoami", "-o", "json", f"--token={token}")
    # the admin's token in the kubeconfig comes second to the one given
    assert json.loads(who)["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
    assert await kubectl("auth", "can-i", "create", "pods") == "yes\n"


async def test_a_kind_without_its_definition_has_no_match(kubectl: Kubectl) -> None:
    """Case k03a: kubectl reads OpenAPI v2 in protobuf before it says so."""
    job = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: ddp}\n"
    errors = await kubectl("apply", "-f", "-", stdin=job, code=1)
    assert 'no matches for kind "PyTorchJob" in version "kubeflow.org/v1"' in errors


async def test_custom_kinds(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=DEFINITION)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.x.io")
    assert "widget.x.io/w created" in await kubectl("apply", "-f", "-", stdin=WIDGET % 3)
    assert "widget.x.io/w unchanged" in await kubectl("apply", "-f", "-", stdin=WIDGET % 3)
    assert "should be greater than or equal to 1" in await kubectl("apply", "-f", "-", stdin=WIDGET % 0, code=1)
    head, row = (await kubectl("get", "wdg")).splitlines()
    assert (head.split(), row.split()) == (["NAME", "SIZE"], ["w", "3"])
    assert "size" in await kubectl("explain", "widget.spec")
    assert 'customresourcedefinition.apiextensions.k8s.io "widgets.x.io" deleted' in await kubectl(
        "delete", "crd", "widgets.x.io"
    )


async def test_discovery_and_explain(kubectl: Kubectl) -> None:
    resources = await kubectl("api-resources")
    assert "poddisruptionbudgets" in resources
    assert "batch/v1" in await kubectl("api-versions")
    assert "terminationGracePeriodSeconds" in await kubectl("explain", "pod.spec")
    assert "+moorage" in await kubectl("version")


async def test_namespaces_configmaps_secrets_and_run(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "lab")
    await kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", "lab")
    await kubectl("create", "secret", "generic", "s", "--from-literal=a=b", "-n", "lab")
    await kubectl("run", "once", "--image=busybox:1", "--restart=Never", "-n", "lab", "--", "true")
    await kubectl("create", "job", "j", "--image=busybox:1", "-n", "lab", "--", "true")
    shown = await kubectl("get", "cm,secret,pod,job", "-n", "lab", "-o", "name")
    assert sorted(shown.split()) == ["configmap/c", "job.batch/j", "pod/once", "secret/s"]
    assert 'namespaces "nope" not found' in await kubectl("create", "cm", "c", "-n", "nope", code=1)
    assert "is forbidden" in await kubectl("delete", "namespace", "default", code=1)


async def test_events_are_shown_where_they_happened(kubectl: Kubectl, served: Any) -> None:
    from moorage_kube.resources import EVENTS

    await kubectl("apply", "-f", "-", stdin=MANIFEST)
    pod = await kubectl.json("get", "pod", "p1")
    target = {
        "kind": "Pod",
        "name": "p1",
        "namespace": "default",
        "uid": pod["metadata"]["uid"],
        "apiVersion": "v1",
    }
    event = {
        "metadata": {"generateName": "p1.", "namespace": "default"},
        "involvedObject": target,
        "reason": "Scheduled",
        "message": "put somewhere",
        "type": "Normal",
        "count": 1,
        "source": {"component": "scheduler"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    await served.server.client().create(EVENTS, event)
    assert "put somewhere" in await kubectl("describe", "pod", "p1")
    assert "pod/p1" in await kubectl("get", "events")
    assert "put somewhere" in await kubectl("events", "--for", "pod/p1")
