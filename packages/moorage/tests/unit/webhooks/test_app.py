"""The admission endpoints, spoken to as the API server speaks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.templates import CONTAINERS_MAX
from moorage.model.budget import BUDGETS
from moorage.model.tenant import TENANTS
from moorage.webhooks.app import KIND_SECONDS, Webhook, _Review
from moorage_kube.api import ObjList
from moorage_kube.documents import parse_json
from moorage_kube.errors import Forbidden, NotFound
from moorage_kube.resources import DEPLOYMENTS, NODES, Resource
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

FIELDS = [
    "containers", "initContainers", "name", "image", "resources", "limits", "requests", "memory", "cpu", "env",
    "nvidia.com/gpu", "priorityClassName", "priority", "preemptionPolicy", "restartPolicy", "schedulingGates",
    "tolerations", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
    "matchExpressions", "nodeSelectorTerms", "nodeSelector", "labels", "annotations", "volumes",
    "topologySpreadConstraints", "metadata",
    "spec", "template", "activeDeadlineSeconds", "key", "operator", "values", "nodeName", "ownerReferences",
    "moorage.dev/machine", "moorage.dev/machine-type", "moorage.dev/run", "moorage.dev/owner",
]  # fmt: skip


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
    async with asyncio.timeout(120):
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
    patch = {
        operation["path"]: operation["value"] for operation in json.loads(base64.b64decode(response["patch"]))
    }
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


A_BUDGET = {
    "metadata": {"name": "month"},
    "spec": {"period": "month", "users": ["*"], "gpuHours": "100", "whenOver": "refuse"},
    "status": {
        "start": "2020-01-01T00:00:00Z",
        "end": "2099-01-01T00:00:00Z",
        "uses": [{"name": "ada", "used": "120", "percent": 120}],
    },
}


def a_deployment(gpus: int) -> Any:
    limits = {"memory": "1Gi"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    return {"metadata": {"name": "d", "namespace": "lab"}, "spec": {"replicas": 1, "template": {"spec": spec}}}


def a_scale(before: int, after: int, **fields: Any) -> Any:
    """The review of a Scale of the Deployment `d`. One of no replicas has no field."""
    scales = [
        {"metadata": {"name": "d", "namespace": "lab"}, "spec": {"replicas": number} if number else {}}
        for number in (before, after)
    ]
    return a_review(
        scales[1],
        kind="Scale",
        oldObject=scales[0],
        resource={"group": "apps", "version": "v1", "resource": "deployments"},
        subResource="scale",
        name="d",
        operation="UPDATE",
        **fields,
    )


@pytest.mark.parametrize(
    ("gpus", "before", "after", "allowed"),
    [
        pytest.param(1, 1, 9, False, id="more pods with GPUs"),
        pytest.param(1, 0, 1, False, id="the first one"),
        pytest.param(1, 9, 1, True, id="fewer"),
        pytest.param(1, 1, 0, True, id="none"),
        pytest.param(0, 1, 9, True, id="without GPUs"),
    ],
)
async def test_a_budget_that_refuses_judges_a_scale_by_the_workload_that_it_is_of(
    api, gpus, before, after, allowed
):
    api.put(BUDGETS, A_BUDGET)
    api.put(DEPLOYMENTS, a_deployment(gpus))
    async with running(api) as webhook:
        await webhook.wait_synced()
        response = await answer(webhook, "/validate", a_scale(before, after))
        of_ben = await answer(webhook, "/validate", a_scale(before, after, userInfo={"username": "ben"}))
    assert (response["allowed"], of_ben["allowed"]) == (allowed, True)
    assert allowed or "120 of 100 GPU-hours used" in response["status"]["message"]


async def test_a_scale_whose_workload_cannot_be_read_is_refused_and_one_of_nothing_is_left_to_the_api_server(api):
    api.put(BUDGETS, A_BUDGET)
    async with running(api) as webhook:
        await webhook.wait_synced()
        assert (await answer(webhook, "/validate", a_scale(1, 2)))["allowed"] is True
        api.failing = Forbidden("deployments is forbidden")
        assert (await answer(webhook, "/validate", a_scale(1, 2)))["allowed"] is False


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
    assert text.startswith("invalid AdmissionReview: ")


def a_review_of(text: bytes, **fields: Any) -> bytes:
    """A review whose object is this text, whatever it is."""
    return json.dumps(a_review("OBJECT", kind="MapJob", **fields)).encode().replace(b'"OBJECT"', text)


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"metadata": {}, "spec": {"template": {"x": ' + b"[" * 101 + b"]" * 101 + b"}}}", "levels deep"),
        (b'{"metadata": {}, "spec": {"template": {"x": ' + b"[" * 9000 + b"]" * 9000 + b"}}}", "levels deep"),
        (b'{"metadata": {}, "spec": {"count": 1e999}}', "out of range"),
        (b"[]", "Expected"),
    ],
    ids=["deep", "very deep", "number", "list"],
)
async def test_an_object_that_cannot_be_read_is_refused_not_passed_by(api, path, text, reason):
    """A failed call would be for the failure policy to decide, which lets it pass in namespaces of no tenant."""
    async with running(api) as webhook:
        await webhook.wait_synced()
        response = await answer(webhook, path, a_review_of(text))
    assert (response["uid"], response["allowed"], "patch" in response) == ("u-1", False, False)
    assert response["status"]["code"] == 422
    assert reason in response["status"]["message"]


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
async def test_the_longest_objects_that_can_be_stored_are_read(api, path):
    """The API server writes `<` as six characters; etcd takes 1.5 MiB, and an UPDATE brings two objects."""
    job = a_job(backoffLimit=0)
    job["metadata"]["annotations"] = {"note": "<" * 1_500_000}
    review = json.dumps(a_review(job, operation="UPDATE", oldObject=job)).replace("<", "\\u003c").encode()
    assert len(review) > 2 * 6 * 1_500_000
    async with running(api) as webhook:
        await webhook.wait_synced()
        assert (await answer(webhook, path, review))["allowed"]


class Defective(Webhook):
    """A webhook with a defect that some object brings out."""

    def decide(self, asked: Any, *, mutating: bool) -> Any:
        raise TypeError("unhashable type")


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
async def test_an_object_that_brings_out_a_defect_is_refused(api, path, caplog):
    webhook = Defective(api, clock=FakeClock())
    task = asyncio.create_task(webhook.run())
    await webhook.wait_synced()
    response = await answer(webhook, path, a_review(a_job()))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert (response["uid"], response["allowed"]) == ("u-1", False)
    assert (response["status"]["code"], response["status"]["reason"]) == (500, "InternalError")
    assert "TypeError" in caplog.text


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=8,
)


TABLES = st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=4)
TEMPLATES = ODD | st.fixed_dictionaries(
    {
        "spec": st.tuples(st.lists(TABLES, min_size=1, max_size=2), TABLES).map(
            lambda made: {"containers": made[0]} | made[1]
        )
    },
    optional={"metadata": st.fixed_dictionaries({}, optional={"labels": TABLES, "annotations": TABLES}) | ODD},
)


@given(template=TEMPLATES, old=st.none() | TEMPLATES)
def test_whatever_a_mapjob_holds_it_is_judged(template, old):
    """The schema leaves its template open."""
    webhook = Webhook(FakeApi(), clock=FakeClock())
    obj, before = (
        {
            "metadata": {"name": "m", "namespace": "lab"},
            "spec": {"parallelism": 1, "command": ["x"], "template": one},
        }
        for one in (template, old)
    )
    fields = {"operation": "UPDATE", "oldObject": before} if old is not None else {}
    asked = parse_json(json.dumps(a_review(obj, kind="MapJob", **fields)), _Review).request
    for mutating in (True, False):
        webhook.decide(asked, mutating=mutating)


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize("table", ["containers", "initContainers"])
async def test_a_pod_of_very_many_containers_is_refused_before_each_is_judged(api, path, table):
    """Each takes time, and everybody else's requests wait: calls that end by their timeout may pass."""
    job = a_job(backoffLimit=0)
    old = json.loads(json.dumps(job))
    job["spec"]["template"]["spec"][table] = [{"name": f"c{number}"} for number in range(CONTAINERS_MAX + 1)]
    async with running(api) as webhook:
        await webhook.wait_synced()
        for review in (a_review(job), a_review(job, operation="UPDATE", oldObject=old)):
            response = await answer(webhook, path, review)
            fields = [cause["field"] for cause in response["status"]["details"]["causes"]]
            assert fields == ["spec.template.spec.containers"]
        stays = a_review(job, operation="UPDATE", oldObject=job)  # its finalizers can go
        assert "must be at most" not in json.dumps(await answer(webhook, path, stays))


async def test_nodes_that_come_and_go_change_where_runs_may_go(api):
    async with running(api) as webhook:
        await webhook.wait_synced()

        async def keeps_off() -> bool:
            response = await answer(webhook, "/mutate", a_review(a_job()))
            return b"nodeAffinity" in base64.b64decode(response["patch"])

        assert await keeps_off()
        api.remove(NODES, "cpu-1")
        async with asyncio.timeout(120):
            while await keeps_off():
                pass


async def test_a_cluster_without_the_tenant_kind_has_no_tenants_until_it_comes():
    api, clock = WithoutTenants(), FakeClock()
    api.put(TENANTS, a_tenant())
    async with running(api, clock) as webhook:
        await webhook.wait_synced()
        assert not (await answer(webhook, "/mutate", a_review(a_job())))["allowed"]
        api.installed = True
        async with asyncio.timeout(120):
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
