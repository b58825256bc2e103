"""The admission endpoints, spoken to as the API server speaks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.apimachinery.api import ObjList
from moorage.apimachinery.resources import NODES, Resource
from moorage.errors import Forbidden, NotFound
from moorage.model.tenant import TENANTS
from moorage.testing.clock import FakeClock
from moorage.testing.fakeapi import FakeApi
from moorage.webhooks.app import KIND_SECONDS, Webhook

pytestmark = pytest.mark.anyio


class WithoutTenants(FakeApi):
    """A cluster that does not have the Tenant kind until `installed`."""

    installed = False
    error: Exception = NotFound("the server could not find the requested resource")

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> ObjList:
        if resource == TENANTS and not self.installed:
            raise self.error
        return await super().list(resource, namespace, **options)


def a_node(name: str, **labels: str) -> Any:
    status = {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def a_tenant(namespace: str = "lab") -> Any:
    spec = {"namespace": namespace, "defaults": {"cpu": 2, "memory": "8Gi"}, "restartLimit": 3}
    return {"metadata": {"name": "team"}, "spec": spec}


def a_job(**spec: Any) -> Any:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main"}]}
    return {
        "metadata": {"name": "train", "namespace": "lab", "labels": {"moorage.dev/run": "train"}},
        "spec": {"backoffLimit": 2, "template": {"metadata": {}, "spec": pod}} | spec,
    }


def a_review(obj: Any, *, kind: str = "Job", **fields: Any) -> Any:
    request = {
        "uid": "u-1",
        "kind": {"group": "batch", "version": "v1", "kind": kind},
        "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
        "name": "train",
        "namespace": "lab",
        "operation": "CREATE",
        "userInfo": {"username": "ada", "groups": ["system:authenticated"], "extra": {"x": ["y"]}},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions"},
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request | fields}


@contextlib.asynccontextmanager
async def running(api: FakeApi, clock: FakeClock | None = None) -> AsyncIterator[Webhook]:
    webhook = Webhook(api, clock=clock or FakeClock())
    task = asyncio.create_task(webhook.run())
    try:
        yield webhook
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(what: Any) -> None:
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def call(webhook: Webhook, path: str, body: Any = None) -> tuple[int, str]:
    """Call the application as a server would: POST with a body, GET without."""
    sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "server": ("127.0.0.1", 443),
        "scheme": "https",
    }
    answers: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    await webhook.app(scope, receive, send)
    text = b"".join(one.get("body", b"") for one in answers[1:]).decode()
    return answers[0]["status"], text


async def answer(webhook: Webhook, path: str, review: Any) -> Any:
    status, text = await call(webhook, path, review)
    assert status == 200, text
    document = json.loads(text)
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return document["response"]


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.put(NODES, a_node("cpu-1"))
    fake.put(TENANTS, a_tenant())
    return fake


async def test_a_run_is_completed_from_its_tenant_and_kept_off_gpu_nodes(api):
    async with running(api) as webhook:
        await webhook.wait_synced()
        response = await answer(webhook, "/mutate", a_review(a_job()))
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u-1", True, "JSONPatch")
    patch = {one["path"]: one["value"] for one in json.loads(base64.b64decode(response["patch"]))}
    assert patch["/metadata/labels"]["moorage.dev/owner"] == "ada"
    both = {"cpu": "2", "memory": "8Gi"}
    assert patch["/spec/template/spec/containers"][0]["resources"] == {"limits": both, "requests": both}
    assert "nodeAffinity" in patch["/spec/template/spec/affinity"]
    assert patch["/metadata/annotations"]["moorage.dev/restart-limit"] == "3"
    assert "no memory limit given: limited to 8Gi, the tenant's default" in response["warnings"]


async def test_a_refusal_lists_every_field_for_people_and_for_programs(api):
    async with running(api) as webhook:
        await webhook.wait_synced()
        review = a_review(a_job(), namespace="elsewhere")
        for path in ("/mutate", "/validate"):
            response = await answer(webhook, path, review)
            assert (response["allowed"], "patch" in response) == (False, False)
            status = response["status"]
            assert (status["code"], status["reason"]) == (422, "Invalid")
            fields = [cause["field"] for cause in status["details"]["causes"]]
            assert fields == ["spec.template.spec.containers[0].resources.limits.memory", "spec.backoffLimit"]
            assert all(field in status["message"] for field in fields)


async def test_the_validating_side_changes_nothing(api):
    async with running(api) as webhook:
        await webhook.wait_synced()
        response = await answer(webhook, "/validate", a_review(a_job(backoffLimit=0)))
    assert response == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "review",
    [
        a_review(a_job(), subResource="status"),
        a_review({"metadata": {"name": "x"}}, kind="ConfigMap"),
        a_review(None, operation="DELETE"),
    ],
    ids=["subresource", "another kind", "a deletion"],
)
async def test_what_is_not_ours_to_judge_passes(api, review):
    async with running(api) as webhook:
        await webhook.wait_synced()
        for path in ("/mutate", "/validate"):
            assert await answer(webhook, path, review) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"request": {}}', b'{"request": null}'])
async def test_a_body_that_is_no_review_is_told_so(api, body):
    async with running(api) as webhook:
        await webhook.wait_synced()
        status, text = await call(webhook, "/mutate", body)
    assert status == 400
    assert text.startswith("no AdmissionReview: ")


async def test_nodes_that_come_and_go_change_where_runs_may_go(api):
    async with running(api) as webhook:
        await webhook.wait_synced()

        async def keeps_off() -> bool:
            response = await answer(webhook, "/mutate", a_review(a_job()))
            return b"nodeAffinity" in base64.b64decode(response["patch"])

        assert await keeps_off()
        api.remove(NODES, "cpu-1")
        async with asyncio.timeout(20):
            while await keeps_off():
                pass


async def test_a_cluster_without_the_tenant_kind_has_no_tenants_until_it_comes():
    api, clock = WithoutTenants(), FakeClock()
    api.put(TENANTS, a_tenant())
    async with running(api, clock) as webhook:
        await webhook.wait_synced()
        assert not (await answer(webhook, "/mutate", a_review(a_job())))["allowed"]
        api.installed = True
        async with asyncio.timeout(20):
            while not (await answer(webhook, "/mutate", a_review(a_job())))["allowed"]:
                clock.advance(KIND_SECONDS)


async def test_it_is_not_ready_while_tenants_cannot_be_read():
    api, clock = WithoutTenants(), FakeClock()
    api.error = Forbidden("tenants is forbidden")
    async with running(api, clock) as webhook:
        await until(lambda: webhook._nodes.synced.is_set())
        assert await call(webhook, "/healthz") == (200, "ok")
        assert await call(webhook, "/readyz") == (503, "the caches are not filled yet")
        api.installed = True

        def is_ready() -> bool:
            clock.advance(KIND_SECONDS)
            return webhook.synced

        await until(is_ready)
        assert await call(webhook, "/readyz") == (200, "ok")
