"""Twenty documents of one member that are meant to stop the services, beside another member's work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
import pytest
from tests.hostiledocuments import hostile_documents

from moorage.cluster.serverurl import server_url
from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage.model.names import HOST_IMAGE
from moorage_kube.errors import ApiError
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES, PODS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = pytest.mark.anyio
PATIENCE = 600.0  # seconds, of a machine that does other things too; nothing is asserted about it


def facts_of(cluster: Cluster) -> Any:
    return json.loads(cluster.moor("status", "-o", "json").stdout)


async def test_the_work_of_another_member_goes_on_and_no_process_of_the_services_ends(own_cluster) -> None:
    before = facts_of(own_cluster)
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        KubeClient.from_kubeconfig(own_cluster.kubeconfig) as api,
        aiohttp.ClientSession(cookie_jar=jar) as web,
    ):
        for name in ("ada", "mallory"):
            await api.create(NAMESPACES, {"metadata": {"name": name}})
        server = (await server_url(api)).rstrip("/")
        headers = {"Authorization": f"Bearer {api.connection.token}"}
        answers: dict[str, str] = {}

        async def attack(resource: Resource, obj: Obj) -> None:
            with contextlib.suppress(ApiError):
                await api.create(resource, obj, "mallory")
            if resource is WORKFLOWS:
                path, body = f"{server}/api/v1/workflows/mallory/lint", {"namespace": "mallory", "workflow": obj}
                async with web.post(path, json=body, headers=headers) as answer:
                    answers[obj["metadata"]["name"]] = await answer.text()

        async with asyncio.TaskGroup() as tasks:
            for resource, obj in hostile_documents():
                tasks.create_task(attack(resource, obj))
            await _honest(api, web, before["page"])

        async def ended() -> bool:
            rows = (await api.list(WORKFLOWS, "mallory")).items
            return all((row.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Error") for row in rows)

        await until("the hostile workflows to end", ended, patience=PATIENCE)
        found = {
            row["metadata"]["name"]: str((row.get("status") or {}).get("message") or "")
            for row in (await api.list(WORKFLOWS, "mallory")).items
        }
        assert len(found) == 19
        assert "have loops of 300,000 items; at most 25,000 nodes are allowed" in found["three-sequences"]
        assert "have loops of 300,000 items; at most 25,000 nodes are allowed" in answers["three-sequences"]
        (cron,) = (await api.list(CRON_WORKFLOWS, "mallory")).items
        assert "20,000 schedules" in json.dumps(cron["status"])
    after = facts_of(own_cluster)
    assert after["processes"] == before["processes"]


async def _honest(api: KubeClient, web: aiohttp.ClientSession, page: str) -> None:
    """A pod, a page, a list and a workflow with an expression: all are answered, and end well."""
    container = {"name": "main", "image": HOST_IMAGE, "command": ["true"]}
    pod = {"metadata": {"name": "honest"}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    wait = {"name": "main", "steps": [[{"name": "a", "template": "wait", "when": "{{=1 + 1 == 2}}"}]]}
    spec = {"entrypoint": "main", "templates": [wait, {"name": "wait", "suspend": {"duration": "0"}}]}
    await api.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, "ada")
    await api.create(
        WORKFLOWS,
        {"apiVersion": WORKFLOWS.api_version, "kind": "Workflow", "metadata": {"name": "honest"}, "spec": spec},
        "ada",
    )
    for resource in (PODS, WORKFLOWS):

        async def has_succeeded(resource: Resource = resource) -> bool:
            (row,) = (await api.list(resource, "ada")).items
            return (row.get("status") or {}).get("phase") == "Succeeded"

        await until(f"the {resource.kind} of the other member", has_succeeded, patience=PATIENCE)
        async with web.get(page) as answer:
            assert answer.status == 200
