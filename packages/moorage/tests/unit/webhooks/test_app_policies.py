"""Policies as the webhook reads them: by the namespace's labels, and as soon as they change."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.model.policy import POLICIES
from moorage.model.secondscheduler import make_scheduler_switch
from moorage.webhooks.app import Webhook
from moorage_kube.resources import CONFIGMAPS, NAMESPACES, NODES
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

SECONDS = 180


def a_policy(level: str, team: str = "x") -> Any:
    rules = {"memoryLimit": {"level": level, "default": "1Gi"}, "resourceRequests": {"level": "off"},
             "guaranteedQos": {"level": "off"}, "restartBomb": {"level": "off"}}  # fmt: skip
    spec = {"namespaceSelector": {"matchLabels": {"team": team}}, "rules": rules}
    return {"metadata": {"name": "p"}, "spec": spec}


def a_namespace(name: str, team: str) -> Any:
    return {"metadata": {"name": name, "labels": {"team": team, "moorage.dev/guard": "enabled"}}}


@contextlib.asynccontextmanager
async def running(api: FakeApi) -> AsyncIterator[Webhook]:
    webhook = Webhook(api, clock=FakeClock())
    task = asyncio.create_task(webhook.run())
    try:
        await webhook.wait_synced()
        yield webhook
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def a_deployment() -> Any:
    spec = {"template": {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}}
    return {"kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


async def asked(webhook: Webhook, namespace: str, path: str = "/mutate", obj: Any = None) -> Any:
    obj = obj or a_deployment()
    request = {
        "uid": "u",
        "kind": {"group": "apps" if obj["kind"] == "Deployment" else "", "version": "v1", "kind": obj["kind"]},
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": {"username": "ada"},
        "object": obj,
    }
    body = json.dumps({"request": request}).encode()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "scheme": "https"}
    await webhook.app(scope | {"server": ("127.0.0.1", 443)}, receive, send)
    return json.loads(b"".join(one.get("body", b"") for one in sent))["response"]


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.put(NODES, {"metadata": {"name": "n"}, "spec": {}, "status": {}})
    fake.put(NAMESPACES, a_namespace("mine", "x"))
    fake.put(NAMESPACES, a_namespace("other", "y"))
    return fake


async def test_a_policy_holds_where_its_selector_matches_and_nowhere_else(api):
    api.put(POLICIES, a_policy("deny"))
    async with running(api) as webhook:
        for path in ("/mutate", "/validate"):
            refused = await asked(webhook, "mine", path)
            assert not refused["allowed"]
            (cause,) = refused["status"]["details"]["causes"]
            assert cause["field"] == "spec.template.spec.containers[0].resources.limits.memory"
            assert "(guardrail memoryLimit)" in cause["message"]
            assert (await asked(webhook, "other", path))["allowed"]


async def test_what_a_fill_rule_writes_is_a_patch_and_a_warning(api):
    api.put(POLICIES, a_policy("fill"))
    async with running(api) as webhook:
        answer = await asked(webhook, "mine")
    patch = {operation["path"]: operation["value"] for operation in json.loads(base64.b64decode(answer["patch"]))}
    (container,) = patch["/spec/template/spec/containers"]
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    where = "spec.template.spec.containers[0].resources.limits.memory"
    assert f"{where}: set to 1Gi (memoryLimit)" in answer["warnings"]


async def test_a_policy_that_comes_changes_or_goes_counts_from_then_on(api):
    async with running(api) as webhook:

        async def until(allowed: bool) -> None:
            async with asyncio.timeout(SECONDS):
                while (await asked(webhook, "mine"))["allowed"] is not allowed:  # noqa: ASYNC110
                    await asyncio.sleep(0)

        await until(True)
        api.put(POLICIES, a_policy("deny"))
        await until(False)
        api.put(POLICIES, a_policy("deny", team="z"))
        await until(True)
        api.put(NAMESPACES, a_namespace("mine", "z"))
        await until(False)
        api.remove(POLICIES, "p")
        await until(True)


async def test_a_gpu_pod_goes_to_the_second_scheduler_as_long_as_one_is_installed(api):
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {}, "annotations": {}},
        "spec": {"containers": [container]},
    }

    async def chosen(webhook: Webhook) -> Any:
        answer = await asked(webhook, "mine", obj=pod)
        patches = json.loads(base64.b64decode(answer.get("patch") or "W10="))
        return next((patch["value"] for patch in patches if patch["path"] == "/spec/schedulerName"), None)

    async with running(api) as webhook:
        assert await chosen(webhook) is None
        api.put(CONFIGMAPS, make_scheduler_switch())
        async with asyncio.timeout(SECONDS):
            while await chosen(webhook) != "moorage-scheduler":  # noqa: ASYNC110
                await asyncio.sleep(0)
        api.remove(CONFIGMAPS, "moorage-scheduler", "moorage-system")
        async with asyncio.timeout(SECONDS):
            while await chosen(webhook) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
