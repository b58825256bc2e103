"""A volume of a step that cannot be mounted, as commands tell of it, on the cluster that the environment chose."""

from __future__ import annotations

import asyncio

import pytest

from moorage.model.argo import WORKFLOWS
from moorage.model.names import HOST_ENV_ANNOTATION
from moorage_kube.resources import PODS, SECRETS
from moorage_kube.testing.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.cluster("kubelet", "controllers", "scheduler"),
]


async def test_a_step_whose_secret_is_missing_is_told_and_runs_when_it_is_created(cluster, api, namespace) -> None:
    image = "busybox" if cluster.kind == "local" else cluster.image
    notes = {HOST_ENV_ANNOTATION: "true"} if cluster.kind == "local" else {}

    async def typed(*words: str) -> str:
        return str((await asyncio.to_thread(cluster.moor, *words, "-n", namespace)).stdout)

    container = {
        "image": image,
        "command": ["sh", "-c", "cat /keys/token"],
        "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
    }
    spec = {
        "entrypoint": "main",
        "podMetadata": {"annotations": notes},
        "volumes": [{"name": "keys", "secret": {"secretName": "late"}}],
        "templates": [
            {"name": "main", "steps": [[{"name": "fit", "template": "fit"}]]},
            {"name": "fit", "container": container},
        ],
    }
    meta = {"name": "train"}
    obj = {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind, "metadata": meta, "spec": spec}
    await api.create(WORKFLOWS, obj, namespace)

    async def told() -> str | None:
        text = await typed("explain", "train/fit")
        return text if "cannot be mounted" in text else None

    text: str = await until("explain to tell of the Secret", told)
    node = next(pod["spec"]["nodeName"] for pod in (await api.list(PODS, namespace)).items)
    why = 'MountVolume.SetUp failed for volume "keys" : secret "late" not found'
    way = (
        f"The Secret late does not exist: create it with `moor secret create late KEY -n {namespace}`;"
        " the pod then starts by itself"
    )
    short = (
        f'its pod does not start on {node}: volume keys (Secret late) cannot be mounted: secret "late" not found'
    )
    assert text.splitlines()[0] == f"step fit of workflow {namespace}/train waits: {short}"
    assert text.splitlines()[1:3] == [why, way]
    whole = await typed("explain", "train")
    assert whole.splitlines()[:5] == [
        f"workflow {namespace}/train waits: {short}",
        "",
        "Waiting",
        f"  fit: {short}",
        f"    {way}",
    ]
    assert f"FailedMount: {why}" in await typed("workflow", "get", "train")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"token": "t"}}
    await api.create(SECRETS, secret, namespace)

    async def phase() -> str | None:
        found = str(((await api.get(WORKFLOWS, "train", namespace)).get("status") or {}).get("phase") or "")
        return found if found in ("Succeeded", "Failed", "Error") else None

    assert await until("the workflow to end", phase) == "Succeeded"
