"""What people do with workflows, as typed, over REST and in Python; hera's own client; and Argo as a neighbour."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession

from moorage.cluster.serverurl import server_url
from moorage.model.argo import INSTANCE_LABEL, WORKFLOW_LABEL, WORKFLOWS
from moorage.model.names import HOST_ENV_ANNOTATION
from moorage.sdk.aio import AsyncClient
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import Conflict, NotFound
from moorage_kube.moments import rfc3339, rfc3339_micro
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import LEASES, PODS, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.cluster("kubelet", "controllers", "scheduler"),
]

TWO_STEPS = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: train-}
spec:
  entrypoint: main
  arguments: {parameters: [{name: size, value: s}]}
  templates:
  - name: main
    steps:
    - - {name: approve, template: approve}
    - - name: fit
        template: fit
  - name: approve
    suspend: {}
  - name: fit
    container:
      image: IMAGE
      command: [sh, -c, "echo size is {{workflow.parameters.size}}; echo kept > /tmp/model.txt"]
    outputs: {artifacts: [{name: model, path: /tmp/model.txt, archive: {none: {}}}]}
"""
HALF = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: half-}
spec:
  entrypoint: main
  arguments: {parameters: [{name: code, value: "1"}]}
  templates:
  - name: main
    steps:
    - - {name: make, template: make}
    - - name: use
        template: use
        arguments: {artifacts: [{name: text, from: "{{steps.make.outputs.artifacts.text}}"}]}
  - name: make
    container: {image: IMAGE, command: [sh, -c, "echo made once > /tmp/text"]}
    outputs: {artifacts: [{name: text, path: /tmp/text}]}
  - name: use
    inputs: {artifacts: [{name: text, path: /tmp/given}]}
    container: {image: IMAGE, command: [sh, -c, "cat /tmp/given; exit {{workflow.parameters.code}}"]}
"""
RETRIED = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: tries-}
spec:
  entrypoint: main
  podGC: {strategy: OnPodCompletion, deleteDelayDuration: DELAY}
  templates:
  - name: main
    retryStrategy: {limit: "1"}
    container:
      image: IMAGE
      command: [sh, -c, "echo try {{retries}} of {{pod.name}}; exit $((1 - {{retries}}))"]
"""
TWICE = "print({{inputs.parameters.x}} * 2)"


@pytest.fixture
def manifest(cluster: Cluster, tmp_path: Path) -> Path:
    file = tmp_path / "train.yaml"
    file.write_text(TWO_STEPS.replace("IMAGE", "busybox" if cluster.kind == "local" else cluster.image))
    return file


def host_env(cluster: Cluster) -> tuple[str, ...]:
    return ("--host-env",) if cluster.kind == "local" else ()


def token_of(cluster: Cluster) -> str:
    """Of the user of the kubeconfig; empty: it has none."""
    user = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]
    return str(user.get("token") or "")


async def test_a_workflow_from_the_file_to_what_it_left(cluster, namespace, manifest, tmp_path) -> None:
    def moor(*words: str, **more: Any) -> str:
        return cluster.moor("workflow", *words, "-n", namespace, **more).stdout

    name = moor("submit", str(manifest), "-p", "size=large", *host_env(cluster)).strip()

    async def waits() -> bool:
        return "Waiting" in moor("get", name)

    await until(f"a step of {name} to wait for a person", waits)
    assert moor("list", "--running", "-o", "name").split() == [name]
    moor("node", "set", name, "--message", "go")
    assert moor("wait", name, "--timeout", "3m") == f"{name} Succeeded\n"
    assert moor("logs", name) == "fit | size is large\n"
    shown = moor("get", "@latest")
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith(("├", "└"))] == [
        ["├", "approve"],
        ["└", "fit"],
    ]
    target = tmp_path / "model"
    moor("artifacts", "get", name, "fit/model", "--file", str(target))
    assert target.read_text() == "kept\n"
    again = moor("resubmit", name).strip()
    moor("terminate", again)
    assert cluster.moor("workflow", "wait", again, "-n", namespace, check=False).returncode == 1
    moor("delete", name)

    async def is_kept() -> bool:
        rows = json.loads(moor("list", "-o", "json"))
        return any(row["name"] == name and row["gone"] for row in rows)

    await until(f"{name} to be gone and kept", is_kept)
    assert "deleted; this is its record" in moor("get", name)


async def test_python_does_the_same(cluster: Cluster, namespace: str) -> None:
    image = "busybox" if cluster.kind == "local" else cluster.image
    document = yaml.safe_load(TWO_STEPS.replace("IMAGE", image))
    async with AsyncClient(kubeconfig=cluster.kubeconfig, namespace=namespace) as client:
        made = await client.workflows.submit(
            document, parameters={"size": "m"}, host_env=cluster.kind == "local", key="the-same"
        )
        again = await client.workflows.submit(
            document, parameters={"size": "m"}, host_env=cluster.kind == "local", key="the-same"
        )
        assert again.name == made.name

        async def waits() -> bool:
            nodes = (await client.workflows.get(made.name)).status.get("nodes") or {}
            return any(node["type"] == "Suspend" and node["phase"] == "Running" for node in nodes.values())

        await until("the step to wait for a person", waits)
        await client.workflows.resume(made.name, node_field_selector="displayName=approve")
        ended = await client.workflows.wait(made.name, timeout=180)
        assert ended.phase == "Succeeded"
        assert [line.text async for line in client.workflows.logs(made.name)] == ["size is m"]
        assert [each.name async for each in client.workflows.list(completed=True)] == [made.name]


async def test_logs_of_every_attempt_stay_when_pods_and_workflow_are_gone(
    cluster: Cluster, namespace: str, api: KubeClient, tmp_path: Path
) -> None:
    def moor(*words: str, **more: Any) -> str:
        return cluster.moor("workflow", *words, "-n", namespace, **more).stdout

    file = tmp_path / "tries.yaml"
    image = "busybox" if cluster.kind == "local" else cluster.image
    file.write_text(RETRIED.replace("IMAGE", image).replace("DELAY", "40s"))
    name = moor("submit", str(file), *host_env(cluster)).strip()
    assert moor("wait", name, "--timeout", "3m") == f"{name} Succeeded\n"

    async def has_no_pods() -> bool:
        return not (await api.list(PODS, namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items

    await until("podGC to delete both pods", has_no_pods)
    lines = moor("logs", name, "--no-prefix").splitlines()
    tries = [line.rpartition(" of ")[0] for line in lines]
    assert tries == ["try 0", "try 1"]
    first = lines[0].rpartition(" of ")[2]
    assert len({line.rpartition(" of ")[2] for line in lines}) == 2, "each attempt has a pod of its own"
    assert moor("logs", name, "--no-prefix", "--follow").splitlines() == lines
    moor("delete", name)
    async with AsyncClient(kubeconfig=cluster.kubeconfig, namespace=namespace) as client:

        async def is_gone() -> bool:
            try:
                await api.get(WORKFLOWS, name, namespace)
            except NotFound:
                return True
            return False

        await until("the workflow to be gone", is_gone)
        assert [line.text async for line in client.workflows.logs(name)] == lines
    if token := token_of(cluster):  # as Argo's clients ask
        path = f"{await server_url(api)}/api/v1/workflows/{namespace}/{name}/{first}/log?logOptions.container=main"
        headers = {"authorization": f"Bearer {token}"}
        async with ClientSession() as session, session.get(path, headers=headers) as answer:
            rows = (await answer.text()).splitlines()
        assert [json.loads(row)["result"]["content"] for row in rows] == lines[:1]
    moor("delete", "--forget", name)
    assert "its log is not stored" in cluster.moor("workflow", "logs", name, "-n", namespace).stderr


async def test_one_that_failed_is_submitted_again_with_what_succeeded(cluster, namespace, tmp_path) -> None:
    file = tmp_path / "half.yaml"
    file.write_text(HALF.replace("IMAGE", "busybox" if cluster.kind == "local" else cluster.image))

    def moor(*words: str, **more: Any) -> str:
        return cluster.moor("workflow", *words, "-n", namespace, **more).stdout

    name = moor("submit", str(file), "--wait", *host_env(cluster), check=False).splitlines()[0]
    assert moor("wait", name, check=False) == f"{name} Failed\n"
    again = moor("resubmit", "--memoized", name, "-p", "code=0").strip()
    assert moor("wait", again, "--timeout", "3m") == f"{again} Succeeded\n"
    assert moor("logs", again) == "use | made once\n"
    assert "taken over from" in next(line for line in moor("get", again).splitlines() if "make" in line)
    async with AsyncClient(kubeconfig=cluster.kubeconfig, namespace=namespace) as client:
        over_rest = await client.workflows.resubmit(name, memoized=True)
        assert (await client.workflows.wait(over_rest.name, timeout=180)).phase == "Failed"
        with pytest.raises(Conflict, match="is Succeeded"):
            await client.workflows.resubmit(again, memoized=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # hera uses an older way of pydantic
async def test_heras_own_client_submits_and_waits(cluster: Cluster, namespace: str, api: KubeClient) -> None:
    from hera.workflows import DAG, Parameter, Script, Task, Workflow, WorkflowsService, models

    token = token_of(cluster)
    if not token:
        pytest.skip("the kubeconfig has no token for hera")
    url = await server_url(api)

    def work() -> tuple[str, dict[str, str], list[str]]:
        image = "python:3" if cluster.kind == "local" else cluster.image
        with WorkflowsService(host=url, token=token, namespace=namespace) as service:
            workflow = Workflow(
                generate_name="hera-",
                entrypoint="main",
                namespace=namespace,
                workflows_service=service,
                pod_metadata=models.Metadata(annotations={HOST_ENV_ANNOTATION: "true"}),
            )
            with workflow:
                python = {"image": image, "command": ["python3"]}
                Script(name="four", source="print(4)", **python)
                Script(
                    name="double",
                    inputs=[Parameter(name="x")],
                    source="print({{inputs.parameters.x}} * 2)",
                    **python,
                )
            with workflow, DAG(name="main"):
                first = Task(name="first", template="four")
                second = Task(name="second", template="double", arguments={"x": first.result})
                first >> second
            workflow.lint()
            workflow.name = workflow.create().metadata.name
            ended = workflow.wait(poll_interval=2)
            nodes = {node.display_name: node.phase for node in ended.status.nodes.values()}
            listed = [item.metadata.name for item in service.list_workflows().items]
            service.delete_workflow(workflow.name)
            return str(ended.status.phase), nodes, [name for name in listed if name == workflow.name]

    phase, nodes, listed = await asyncio.to_thread(work)
    assert (phase, nodes["first"], nodes["second"], len(listed)) == ("Succeeded", "Succeeded", "Succeeded", 1)


class Argo:
    """Plays Argo's controller: it takes Workflows of no instance, and writes their nodes into the objects."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def renew(self) -> None:
        spec = {"holderIdentity": "argo", "leaseDurationSeconds": 600, "renewTime": rfc3339_micro(SYSTEM.now())}
        try:
            await self._api.patch(LEASES, "workflow-controller", {"spec": spec}, self._namespace)
        except NotFound:
            meta = {"name": "workflow-controller", "namespace": self._namespace}
            await self._api.create(LEASES, {"metadata": meta, "spec": spec}, self._namespace)

    async def step(self, name: str, phase: str) -> Obj:
        """The state in which it leaves the workflow."""
        now = rfc3339(SYSTEM.now())
        node = {"id": name, "name": name, "displayName": name, "type": "Pod", "phase": phase, "startedAt": now}
        status = {"phase": phase, "startedAt": now, "progress": "0/1", "nodes": {name: node}}
        return await self._api.patch(WORKFLOWS, name, {"status": status}, self._namespace)


@contextlib.asynccontextmanager
async def argo_beside(api: KubeClient, namespace: str) -> AsyncIterator[Argo]:
    argo = Argo(api, namespace)
    await argo.renew()
    try:
        yield argo
    finally:
        await api.delete(LEASES, "workflow-controller", namespace)


async def test_where_argo_runs_it_gets_the_workflow_and_its_nodes_are_shown(
    cluster: Cluster, namespace: str, api: KubeClient, manifest: Path
) -> None:
    async with argo_beside(api, namespace) as argo:
        done = cluster.moor("workflow", "submit", str(manifest), "-n", namespace)
        assert "Argo's controller runs workflows on this cluster" in done.stderr
        name = done.stdout.strip()
        stored = await api.get(WORKFLOWS, name, namespace)
        assert INSTANCE_LABEL not in (stored["metadata"].get("labels") or {})
        await argo.step(name, "Running")
        shown = cluster.moor("workflow", "get", name, "-n", namespace).stdout
        assert "status:     Running" in shown
        assert f"{name}   Running" in shown
        await argo.renew()
        await argo.step(name, "Succeeded")
        waited = cluster.moor("workflow", "wait", name, "-n", namespace)
        assert waited.stdout == f"{name} Succeeded\n"
        refused = cluster.moor("workflow", "stop", name, "-n", namespace, check=False)
        assert "has ended: Succeeded" in refused.stderr
        cluster.moor("workflow", "delete", name, "-n", namespace)


async def test_a_large_workflow_is_refused_before_argo_sees_it(cluster, namespace, api, tmp_path) -> None:
    document = yaml.safe_load(TWO_STEPS)
    main = document["spec"]["templates"][-1]
    document["spec"]["templates"] += [{**main, "name": f"more-{number}"} for number in range(200)]
    file = tmp_path / "large.yaml"
    file.write_text(yaml.safe_dump(document))
    async with argo_beside(api, namespace):
        done = cluster.moor("workflow", "submit", str(file), "-n", namespace, check=False)
    assert done.returncode == 2
    assert "spec.templates: 203 templates; Argo 4 allows 200" in done.stderr
    assert (await api.list(WORKFLOWS, namespace)).items == []
