"""Logs of steps stay when their pods go, on whichever cluster the environment chose; commands as typed."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from moorage.model.argo import WORKFLOW_LABEL, WORKFLOWS
from moorage.model.names import HOST_ENV_ANNOTATION
from moorage_kube.resources import PODS, Obj
from moorage_kube.testing.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(900),
    pytest.mark.cluster("scheduler", "controllers", "kubelet"),
]

SET = """
spec:
  entrypoint: fit
  podGC: {strategy: OnPodCompletion, deleteDelayDuration: 40s}
  templates:
  - name: fit
    containerSet:
      containers:
      - {name: train, image: IMAGE, command: [sh, -c, "echo trained; sleep 2"]}
      - {name: judge, image: IMAGE, command: [sh, -c, "echo judged; sleep 2"]}
    initContainers:
    - {name: fetch, image: IMAGE, command: [sh, -c, "echo fetched"]}
    sidecars:
    - {name: proxy, image: IMAGE, command: [sh, -c, "echo listens; exec sleep 600"]}
"""


async def test_a_step_keeps_the_logs_of_all_its_containers(cluster, api, namespace) -> None:
    image = "busybox" if cluster.kind == "local" else cluster.image
    obj: Obj = yaml.safe_load(SET.replace("IMAGE", image))
    obj |= {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind, "metadata": {"name": "set"}}
    if cluster.kind == "local":
        obj["spec"]["podMetadata"] = {"annotations": {HOST_ENV_ANNOTATION: "true"}}
    await api.create(WORKFLOWS, obj, namespace)

    async def ended() -> bool:
        found = await api.get(WORKFLOWS, "set", namespace)
        return bool((found.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Error"))

    await until("the workflow to end", ended)

    async def logs(*options: str) -> str:
        words = ("workflow", "logs", "set", "-n", namespace, "--no-prefix", *options)
        return str((await asyncio.to_thread(cluster.moor, *words, check=False)).stdout)

    names = {"train": "trained\n", "judge": "judged\n", "fetch": "fetched\n", "proxy": "listens\n"}

    async def has_no_pods() -> bool:
        selector = f"{WORKFLOW_LABEL}=set"
        return not (await api.list(PODS, namespace, label_selector=selector)).items

    await until("podGC to delete the pod", has_no_pods)
    assert {name: await logs("--container", name) for name in names} == names
    assert await logs() == "judged\n"
