"""The server against the local cluster's API server, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket

import aiohttp
import pytest

from moorage.server.service import ServerService
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, Resource
from moorage_kube.serving import serve
from moorage_kube.testing.waiting import until
from moorage_local.apiserver.server import ApiServer
from moorage_local.storage.memory import MemoryStorage

PAGE_TOKEN = "page-token"
RUN_TOKEN = "run-token"
GPU = "nvidia.com/gpu"
RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLEBINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Site:
    def __init__(self, kube, api, base, http):
        self.kube = kube
        self.api = api
        self.base = base
        self.http = http

    async def get(self, path, token=PAGE_TOKEN):
        headers = {"authorization": f"Bearer {token}"}
        async with self.http.get(self.base + path, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def until(self, path, check):
        """Ask until the answer satisfies."""

        async def is_so():
            status, body = await self.get(path)
            return status == 200 and check(body) and (body,)

        return (await until(f"an answer at {path}", is_so))[0]


@contextlib.asynccontextmanager
async def a_site(kube, folder):
    service = ServerService(kube.client("moorage-server"), usage_db=folder / "usage.db", page_token=PAGE_TOKEN)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        work = [asyncio.create_task(service.run()), asyncio.create_task(serve(service.app, sock))]
        try:
            async with aiohttp.ClientSession() as http:
                base = f"http://127.0.0.1:{sock.getsockname()[1]}"
                yield Site(kube, kube.client("system:admin"), base, http)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)


@pytest.fixture
async def kube():
    server = ApiServer(MemoryStorage(), tokens={"ada-token": {"user": "ada", "groups": []}})
    await server.start()
    api = server.client("system:admin")
    await api.create(NODES, {"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "a100"}}, "spec": {}})
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", GPU: "2"}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]
    await api.patch(
        NODES,
        "n1",
        {"status": {"capacity": amounts, "allocatable": amounts, "conditions": ready}},
        subresource="status",
    )
    yield server
    await server.stop()


async def a_run(api, name, *, gpus=1, node=""):
    labels = {"moorage.dev/run": name, "moorage.dev/attempt": "1"}
    notes = {
        "moorage.dev/owner": "ada",
        "moorage.dev/report-token-sha256": hashlib.sha256(RUN_TOKEN.encode()).hexdigest(),
    }
    limits = {"cpu": "1", "memory": "1Gi", GPU: str(gpus)}
    spec = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}],
    }
    template = {"metadata": {"labels": labels, "annotations": notes}, "spec": spec}
    job = await api.create(
        JOBS,
        {
            "metadata": {"namespace": "default", "name": name, "labels": labels, "annotations": notes},
            "spec": {"template": template, "backoffLimit": 0},
        },
    )
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    await api.create(
        PODS,
        {
            "metadata": {
                "namespace": "default",
                "name": f"{name}-x",
                "labels": labels,
                "annotations": notes,
                "ownerReferences": [owner],
            },
            "spec": spec | ({"nodeName": node} if node else {}),
        },
    )
    if node:
        now = rfc3339(SYSTEM.now())
        status = {
            "phase": "Running",
            "startTime": now,
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "x",
                    "imageID": "",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                    "allocatedResourcesStatus": [{"name": GPU, "resources": [{"resourceID": "1"}]}],
                }
            ],
        }
        await api.patch(PODS, f"{name}-x", {"status": status}, "default", subresource="status")


async def may_read_pods(api, user, namespace):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    await api.create(ROLES, {"metadata": {"name": "reads"}, "rules": rules}, namespace)
    to = {"kind": "Role", "name": "reads", "apiGroup": RBAC}
    subject = {"kind": "User", "name": user, "apiGroup": RBAC}
    bound = {"metadata": {"name": "reads"}, "roleRef": to, "subjects": [subject]}
    await api.create(ROLEBINDINGS, bound, namespace)


async def test_runs_are_seen_on_their_gpus_and_the_rest_is_explained(kube, tmp_path):
    async with a_site(kube, tmp_path) as site:
        await a_run(site.api, "first", node="n1")
        await a_run(site.api, "second", gpus=2)
        body = await site.until("/api/v1/gpus", lambda body: body["totals"]["used"] == 1)
        assert [(gpu["state"], gpu["device"]) for gpu in body["nodes"][0]["gpus"]] == [("free", ""), ("used", "1")]
        body = await site.until("/api/v1/jobs", lambda body: len(body["jobs"]) == 2)
        assert {(job["name"], job["state"]) for job in body["jobs"]} == {
            ("first", "Running"),
            ("second", "Waiting"),
        }
        said = "exceeded quota: team"
        await may_read_pods(site.api, "ada", "default")
        ref = {"kind": "Job", "namespace": "default", "name": "second"}
        await site.api.create(
            EVENTS, {"metadata": {"namespace": "default", "name": "e"}, "involvedObject": ref, "message": said}
        )
        body = await site.until("/api/v1/explain/default/second", lambda body: body["quota"])
        assert (body["state"], body["quota"]) == ("waiting", "its namespace's quota is used up")  # to everybody
        _, body = await site.get("/api/v1/explain/default/second", "ada-token")
        assert (body["state"], body["quota"], body["missing"][0]["asks"]) == ("waiting", said, "2")


async def test_the_api_servers_own_tokens_are_accepted(kube, tmp_path):
    async with a_site(kube, tmp_path) as site:
        answer = await site.get("/api/v1/gpus", "ada-token")
        assert answer[0] == 200, answer
        assert (await site.get("/api/v1/gpus", "eve-token"))[0] == 401


async def test_a_checkpoint_is_annotated_and_shown(kube, tmp_path):
    async with a_site(kube, tmp_path) as site:
        await a_run(site.api, "first", node="n1")
        url = f"{site.base}/api/v1/runs/default/first/checkpoint"
        body = {"newest": "2026-11-21T11:59:00Z", "checked": "2026-11-21T12:00:00Z", "files": 2}
        headers = {"authorization": f"Bearer {RUN_TOKEN}"}
        async with site.http.post(url, json=body, headers=headers) as answer:
            assert (answer.status, await answer.json()) == (200, {"recorded": True})
        notes = (await site.api.get(JOBS, "first", "default"))["metadata"]["annotations"]
        assert notes["moorage.dev/checkpoint-at"] == "2026-11-21T11:59:00Z"
        await site.until("/api/v1/jobs", lambda body: body["jobs"][0]["checkpointAt"] == "2026-11-21T11:59:00Z")


async def test_the_commit_of_a_run_is_annotated(kube, tmp_path):
    async with a_site(kube, tmp_path) as site:
        await a_run(site.api, "first", node="n1")
        options = json.dumps({"command": ["true"], "git": "git@host:o/r.git@main"})
        notes = {"metadata": {"annotations": {"moorage.dev/options": options}}}
        await site.api.patch(JOBS, "first", notes, "default", kind="merge")
        await site.until("/api/v1/jobs", lambda body: body["jobs"])
        url, headers = (
            f"{site.base}/api/v1/runs/default/first/checkpoint",
            {"authorization": f"Bearer {RUN_TOKEN}"},
        )
        body = {"newest": None, "checked": "2026-11-21T12:00:00Z"}
        for commit, status in (("main", 422), ("a" * 40, 200)):
            async with site.http.post(url, json=body | {"commit": commit}, headers=headers) as answer:
                assert answer.status == status
        async with site.http.post(url, json=body | {"commit": "b" * 40}, headers=headers) as answer:
            assert await answer.json() == {"recorded": False, "commit": "a" * 40}
        notes = (await site.api.get(JOBS, "first", "default"))["metadata"]["annotations"]
        assert (notes["moorage.dev/git"], "moorage.dev/checkpoint-checked-at" in notes) == (
            f"git@host:o/r.git@{'a' * 40}", False,
        )  # fmt: skip


async def test_use_is_recorded_across_a_restart_of_the_server(kube, tmp_path):
    async with a_site(kube, tmp_path) as site:
        await a_run(site.api, "first", node="n1")
        await site.until("/api/v1/top", lambda body: [row["runningGpus"] for row in body["rows"]] == [1])
    async with a_site(kube, tmp_path) as site:
        await site.until("/api/v1/top", lambda body: [row["runningGpus"] for row in body["rows"]] == [1])
        await site.api.delete(PODS, "first-x", "default", grace_period_seconds=0)
        body = await site.until("/api/v1/top", lambda body: [row["runningGpus"] for row in body["rows"]] == [0])
        assert body["rows"][0]["pods"] == 1
