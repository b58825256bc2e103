"""What the admission endpoints refuse so that tenants do not reach each other, as the API server asks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.model.names import DEFAULT_PRIORITY, GUEST_PRIORITY, INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage.webhooks.app import Webhook
from moorage_kube.resources import CONFIGMAPS, INGRESSES, NAMESPACES, PRIORITYCLASSES
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

OPERATOR = f"system:serviceaccount:{SYSTEM_NAMESPACE}:moorage-operator"
REPLICASETS = "system:serviceaccount:kube-system:replicaset-controller"
HOST = "lab--alpha.apps.example.org"


async def a_cluster() -> FakeApi:
    api = FakeApi()
    data = {"workspaceUrl": "https://*.apps.example.org", "publicUrl": "https://moorage.example.org"}
    await api.create(CONFIGMAPS, {"metadata": {"name": INFO_CONFIGMAP}, "data": data}, SYSTEM_NAMESPACE)
    for name in ("alpha", "beta"):
        await api.create(NAMESPACES, {"metadata": {"name": name, "labels": {"moorage.dev/guard": "enabled"}}})
        spec = {"namespace": name, "priorityClasses": ["mine"] if name == "beta" else []}
        await api.create(TENANTS, {"metadata": {"name": name}, "spec": spec})
    for name, value in (
        (DEFAULT_PRIORITY, 0),
        (GUEST_PRIORITY, 0),
        ("system-node-critical", 2000001000),
        ("mine", 9),
    ):
        made = {"metadata": {"name": name}, "value": value, "globalDefault": name == DEFAULT_PRIORITY}
        await api.create(PRIORITYCLASSES, made)
    return api


def a_review(group: str, kind: str, obj: Any, *, user: str = "mallory", old: Any = None) -> Any:
    request = {
        "uid": "u-1",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "operation": "CREATE" if old is None else "UPDATE",
        "namespace": "beta",
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": obj,
        "oldObject": old,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def an_ingress(
    host: str, *, namespace: str = "beta", notes: Any = None, path: str = "/.moorage", **meta: Any
) -> Any:
    backend = {"service": {"name": "x", "port": {"number": 80}}}
    rule = {"host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}
    named = {"name": "mallory", "namespace": namespace, "annotations": notes or {}}
    return {"metadata": named | meta, "spec": {"rules": [rule]}}


def a_pod(**spec: Any) -> Any:
    owner = {"moorage.dev/owner": "mallory"}
    meta = {"name": "x", "namespace": "beta", "labels": owner, "annotations": owner}
    return {"metadata": meta, "spec": {"containers": [{"name": "m"}]} | spec}


@contextlib.asynccontextmanager
async def running(api: FakeApi) -> AsyncIterator[Webhook]:
    webhook = Webhook(api, clock=FakeClock())
    task = asyncio.create_task(webhook.run())
    try:
        async with asyncio.timeout(120):
            await webhook.wait_synced()
        yield webhook
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def answer(webhook: Webhook, path: str, review: Any) -> Any:
    """What the application answers to a POST."""
    sent, answers = json.dumps(review).encode(), []
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    await webhook.app(scope, receive, send)
    assert answers[0]["status"] == 200
    return json.loads(b"".join(one.get("body", b"") for one in answers[1:]))["response"]


async def verdict(api: FakeApi, review: Any, path: str = "/validate") -> bool:
    async with running(api) as webhook:
        return bool((await answer(webhook, path, review))["allowed"])


@pytest.mark.parametrize(
    "host", [HOST, "moorage.example.org", "*.apps.example.org", "", "LAB--alpha.apps.example.org."]
)
async def test_a_member_makes_no_ingress_for_a_host_of_the_platform(host: str) -> None:
    ingress = "networking.k8s.io", "Ingress"
    api = await a_cluster()
    assert not await verdict(api, a_review(*ingress, an_ingress(host)))
    assert await verdict(api, a_review(*ingress, an_ingress("x.example.net")))
    if host == HOST:
        assert await verdict(api, a_review(*ingress, an_ingress(host), user=OPERATOR))


async def test_nor_changes_one_into_it_not_even_one_that_is_being_deleted() -> None:
    ingress = "networking.k8s.io", "Ingress"
    api, old = await a_cluster(), an_ingress("x.example.net")
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["mallory.example.net/stays"]}
    assert not await verdict(api, a_review(*ingress, an_ingress(HOST), old=old))
    assert not await verdict(api, a_review(*ingress, an_ingress(HOST, **going), old=old))
    alias = {"nginx.ingress.kubernetes.io/server-alias": HOST}
    assert not await verdict(api, a_review(*ingress, an_ingress("x.example.net", notes=alias), old=old))
    # what stood there before may go its way: its labels, its finalizers
    squat = an_ingress(HOST)
    assert await verdict(api, a_review(*ingress, an_ingress(HOST, labels={"a": "b"}), old=squat))


async def test_a_host_of_another_namespace_is_taken() -> None:
    api = await a_cluster()
    await api.create(INGRESSES, an_ingress("shop.example.net", namespace="alpha"), "alpha")
    ingress = "networking.k8s.io", "Ingress"
    for host in ("shop.example.net", "Shop.example.net.", "*.example.net"):
        assert not await verdict(api, a_review(*ingress, an_ingress(host))), host
    assert await verdict(api, a_review(*ingress, an_ingress("other.example.net")))


@pytest.mark.parametrize(
    ("group", "kind", "spec"),
    [
        ("", "Service", {"externalIPs": ["10.0.0.7"]}),
        ("", "Service", {"type": "ExternalName", "externalName": "lab.alpha.svc.cluster.local"}),
        ("gateway.networking.k8s.io", "HTTPRoute", {"hostnames": [HOST]}),
        ("gateway.networking.k8s.io", "Gateway", {"listeners": [{"hostname": HOST}]}),
        ("traefik.io", "IngressRoute", {"routes": [{"match": f"Host(`{HOST}`)"}]}),
    ],
)
async def test_other_kinds_lead_nowhere_either(group: str, kind: str, spec: Any) -> None:
    obj = {"metadata": {"name": "x", "namespace": "beta"}, "spec": spec}
    assert not await verdict(await a_cluster(), a_review(group, kind, obj))
    assert await verdict(await a_cluster(), a_review("example.org", kind, obj)), "a kind of that name of others"


@pytest.mark.parametrize("user", ["mallory", REPLICASETS, OPERATOR])
@pytest.mark.parametrize(
    ("name", "is_good"),
    [("system-node-critical", False), (GUEST_PRIORITY, False), ("mine", True), ("other", False)],
)
async def test_pods_have_the_classes_of_their_tenant_whoever_makes_them(
    user: str, name: str, is_good: bool
) -> None:
    review = a_review("", "Pod", a_pod(priorityClassName=name), user=user)
    assert await verdict(await a_cluster(), review) is is_good


@pytest.mark.parametrize(
    ("group", "kind"), [("apps", "Deployment"), ("apps", "DaemonSet"), ("batch", "Job"), ("moorage.dev", "MapJob")]
)
async def test_so_have_their_templates(group: str, kind: str) -> None:
    template = {"metadata": a_pod()["metadata"], "spec": a_pod(priorityClassName="system-node-critical")["spec"]}
    obj = {"metadata": a_pod()["metadata"], "spec": {"template": template}}
    async with running(await a_cluster()) as webhook:
        answered = await answer(webhook, "/validate", a_review(group, kind, obj))
    assert not answered["allowed"]
    assert "spec.template.spec.priorityClassName" in json.dumps(answered)


async def test_a_pod_that_waits_gets_no_toleration_for_another_teams_nodes() -> None:
    api = await a_cluster()
    nodes = {"cpuNodes": {"selector": {"pool": "gamma"}}}
    await api.create(TENANTS, {"metadata": {"name": "gamma"}, "spec": {"namespace": "gamma"} | nodes})
    old = a_pod(schedulingGates=[{"name": "mine.example.org/wait"}])
    for tolerations, is_good in (([{"operator": "Exists"}], False), ([{"key": "x", "operator": "Exists"}], True)):
        assert await verdict(api, a_review("", "Pod", a_pod(tolerations=tolerations), old=old)) is is_good


async def test_a_daemonset_in_a_teams_namespace_leads_its_pods_to_no_other_teams_nodes() -> None:
    api = await a_cluster()
    nodes = {"cpuNodes": {"selector": {"pool": "gamma"}}}
    await api.create(TENANTS, {"metadata": {"name": "gamma"}, "spec": {"namespace": "gamma"} | nodes})
    pod = a_pod(tolerations=[{"operator": "Exists"}])
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    ]
    daemons = "system:serviceaccount:kube-system:daemon-set-controller"
    assert not await verdict(api, a_review("", "Pod", pod, user=daemons))


@pytest.mark.parametrize("key", ["external-dns.alpha.kubernetes.io/hostname", "dns.alpha.kubernetes.io/internal"])
async def test_a_pod_asks_for_no_dns_record_of_another_teams_host(key: str) -> None:
    api = await a_cluster()
    for host, is_good in ((HOST, False), ("mine.example.net", True)):
        pod = a_pod()
        pod["metadata"]["annotations"] |= {key: host}
        assert await verdict(api, a_review("", "Pod", pod)) is is_good
        assert await verdict(api, a_review("", "Pod", pod, old=a_pod())) is is_good


async def test_a_mirror_pod_of_a_node_has_the_class_of_its_file() -> None:
    pod = a_pod(priorityClassName="system-node-critical", priority=2000001000)
    assert await verdict(await a_cluster(), a_review("", "Pod", pod, user="system:node:gpu-1"))
