"""What is kept of a namespace when it is created anew: who sees it, and what is counted against whom."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from moorage.api.maps import NewItem
from moorage.decide.maps.leasing import Policy
from moorage.decide.usage.intervals import Interval
from moorage.server.namespaces import by_namespace, is_too_old, records_since
from moorage_kube.clock import rfc3339
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.clock import NOON
from moorage_local.testing.fakeapi import FakeApi
from moorage_workflows.model.workflow import (
    Memo,
    MetricPoint,
    NodePhase,
    NodeRecord,
    NodeType,
    Outputs,
    WorkflowRecord,
)
from moorage_workflows.workflows.artifacts import Artifacts
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

LATER = NOON + timedelta(seconds=1)
ADA = {"authorization": "Bearer kube-token"}
READS = (
    "/api/v1/maps", "/api/v1/maps/lab", "/api/v1/maps/lab/old-squares", "/api/v1/maps/lab/old-squares/items",
    "/maps", "/maps/lab/old-squares", "/maps/lab/old-squares/items", "/api/v1/workflows/lab",
    "/api/v1/workflows/lab/old-train",
    "/workflows/lab/old-train", "/workflows?namespace=lab", "/api/v1/workflows/lab/old-train/artifacts",
    "/api/v1/workflows/lab/old-train/artifacts/old-train/model",
)  # fmt: skip


class Old:
    """Records of a namespace that was created at noon: a map, a workflow with an artifact, and use of GPUs."""

    def __init__(self, site):
        self.site, self.service = site, site.service
        site.api.with_token = lambda *_: site.api
        site.api.readers |= {("ada", "lab")}

    def namespace(self, created=NOON, **annotations):
        meta = {"name": "lab", "creationTimestamp": rfc3339(created), "annotations": annotations}
        self.site.api.put(NAMESPACES, {"metadata": meta})

    async def fill(self):
        self.namespace()
        queue = self.service.queue
        stored = await queue.create_map(
            namespace="lab", name="old-squares", owner="eve", policy=Policy(), request="r"
        )
        await queue.add_items(stored.map.id, [NewItem(value=msgspec.Raw(b'"old-value"'))])
        artifact = await self.service.context.part(Artifacts).put(
            parts(b"old-artifact"), "lab/m.txt", name="model"
        )
        artifact = msgspec.structs.replace(artifact, key="m.txt")
        await self.service.context.part(LocalRecords).begin(a_record())
        await self.service.context.part(LocalRecords).load("u1", "me")
        node = NodeRecord(
            id="n1", name="old-train", display_name="old-train", type=NodeType.POD, phase=NodePhase.SUCCEEDED,
            outputs=Outputs(artifacts=(artifact,), parameters={"x": "old-value"}),
        )  # fmt: skip
        await self.service.context.part(LocalRecords).save("u1", "me", [node])
        await self.service.context.part(LocalRecords).remember(
            "lab", "cache", "key", Memo(outputs=Outputs(), at=rfc3339(NOON))
        )

    async def seen(self):
        """Of the reads that show something of the old records."""
        answers = {path: await self.site.ask(path, headers=ADA, token=False) for path in READS}
        assert not {path: answer.status for path, answer in answers.items() if answer.status >= 500}
        return {
            path for path, answer in answers.items()
            if answer.status == 200 and "old-" in answer.text
        }  # fmt: skip


async def parts(data):
    yield data


def a_record(uid="u1", **fields):
    document = {"metadata": {"name": "old-train"}, "spec": {"entrypoint": "main"}}
    known = {"namespace": "lab", "name": "old-train", "phase": "Succeeded", "created_at": rfc3339(NOON)}
    return WorkflowRecord(uid=uid, document=document, **known | fields)


@pytest.fixture
async def old(site):
    async with site.running():
        old = Old(site)
        await old.fill()
        yield old


async def test_a_member_of_the_new_namespace_sees_nothing_that_is_older(old):
    assert len(await old.seen()) == len(READS)
    old.namespace(LATER)
    assert await old.seen() == set()


async def test_an_administrator_of_all_namespaces_sees_it_still(old):
    old.namespace(LATER)
    old.site.api.readers |= {("ada", None)}
    assert len(await old.seen()) == len(READS)


async def test_an_annotation_gives_a_restored_namespace_its_records(old):
    old.namespace(LATER, **{"moorage.dev/records-since": rfc3339(NOON)})
    assert len(await old.seen()) == len(READS)
    old.namespace(LATER, **{"moorage.dev/records-since": "noon"})
    assert await old.seen() == set()


async def test_a_map_of_the_new_namespace_takes_the_name_and_the_quota_of_the_old(old):
    old.namespace(LATER)
    body = json.dumps({"name": "old-squares", "request": "r"}).encode()
    headers = ADA | {"content-type": "application/json"}
    made = await old.site.ask("/api/v1/maps/lab", method="POST", headers=headers, body=body, token=False)
    assert made.status == 201
    items = await old.site.ask("/api/v1/maps/lab/old-squares/items", headers=ADA, token=False)
    assert items.json["items"] == []
    stored = await old.service.queue.read(lambda store: (store._used("lab"), store.list_maps()))
    assert (stored[0].maps, stored[0].items) == (1, 0)
    moved = f"lab@{LATER.timestamp() * 1000:.0f}"
    assert [each.namespace for each in stored[1]] == [moved, "lab"]
    for path in ("/maps", "/glance/work"):
        assert ">eve<" not in (await old.site.ask(path, headers=ADA, token=False)).text
    assert (await old.site.ask(f"/maps/{moved}/old-squares", headers=ADA, token=False)).status == 404


@pytest.mark.parametrize("is_administrator", [False, True])
async def test_maps_of_a_namespace_that_is_gone_are_on_the_pages_of_administrators_alone(old, is_administrator):
    await old.site.api.delete(NAMESPACES, "lab")
    old.site.api.readers |= {("ada", None)} if is_administrator else set()
    assert (">eve<" in (await old.site.ask("/maps", headers=ADA, token=False)).text) is is_administrator
    page = await old.site.ask("/maps/lab/old-squares", headers=ADA, token=False)
    assert page.status == (200 if is_administrator else 404)


@pytest.mark.parametrize("path", ["/api/v1/maps/lab/old-squares", "/api/v1/jobs/lab/old-train/kept"])
async def test_a_member_deletes_nothing_that_is_older(old, path):
    old.namespace(LATER)
    answer = await old.site.ask(path, method="DELETE", headers=ADA, token=False)
    assert answer.status in (200, 404)
    assert await old.service.queue.read(lambda store: store.find_map("lab", "old-squares")) is not None


async def test_a_step_reads_no_older_artifact_and_an_older_workflow_saves_none(old):
    digest = "sha256:" + hashlib.sha256(b"step").hexdigest()
    await old.service.context.part(LocalRecords).begin(
        a_record("u2", name="now", phase="Running", created_at=rfc3339(LATER), token_digest=digest)
    )
    await old.service.context.part(LocalRecords).begin(
        a_record("u0", name="then", phase="Running", token_digest=digest)
    )
    step = {"authorization": "Bearer step"}
    fetch = "/api/v1/steps/{}/artifacts?key=m.txt"
    assert (await old.site.ask(fetch.format("u2"), headers=step, token=False)).text == "old-artifact"
    written = datetime.now(UTC) + timedelta(days=1)  # the file's own time is the disk's
    old.namespace(written)
    assert (await old.site.ask(fetch.format("u0"), headers=step, token=False)).status == 410
    await old.service.context.part(LocalRecords).begin(
        a_record("u3", name="new", phase="Running", created_at=rfc3339(written), token_digest=digest)
    )
    assert (await old.site.ask(fetch.format("u3"), headers=step, token=False)).status == 404
    below = await old.site.ask("/api/v1/steps/u3/artifacts?below=true", headers=step, token=False)
    assert below.json == []


async def test_outputs_and_metrics_of_the_old_namespace_are_not_reused(old):
    point = MetricPoint(name="made", help="h", kind="counter", value=5.0)
    await old.service.context.part(LocalRecords).begin(running := a_record("u5", name="metered", phase="Running"))
    await old.service.context.part(LocalRecords).load("u5", "me")
    await old.service.context.part(LocalRecords).save("u5", "me", (), running, (point,))
    old.site.api.readers |= {("ada", None)}
    body = json.dumps({"namespace": "lab", "cache": "cache", "key": "key"}).encode()

    async def ask(verb, body):
        path = f"/api/v1/internal/workflows/{verb}"
        headers = ADA | {"content-type": "application/json"}
        return (await old.site.ask(path, method="POST", headers=headers, body=body, token=False)).json

    assert (await ask("recall", body)).get("memo")
    made = [each.name for each in await old.service.context.part(LocalRecords).metrics()]
    assert "made" in made
    old.namespace(datetime.now(UTC) + timedelta(days=1))
    assert not (await ask("recall", body)).get("memo")
    began = msgspec.json.encode({"record": a_record("u9", name="new")})
    await ask("begin", began)
    assert "made" not in [each.name for each in await old.service.context.part(LocalRecords).metrics()]


def an_interval(**fields):
    known = {
        "pod_uid": "p", "namespace": "lab", "pod": "old-train-x", "run": "old-train", "attempt": 1, "owner": "eve",
        "node": "n1", "gpu_type": "a100", "gpus": 1, "cpu_milli": 1000, "memory_bytes": 1, "started_at": NOON,
        "ended_at": None, "last_seen_at": NOON,
    }  # fmt: skip
    return Interval(**known | fields)


async def test_use_of_the_old_namespace_is_not_that_of_the_new(old):
    api, mine = old.site.api, an_interval(pod_uid="q", started_at=LATER)
    assert await by_namespace(api, [an_interval(), mine]) == [an_interval(), mine]
    old.namespace(LATER)
    assert await by_namespace(api, [an_interval(), mine]) == [an_interval(namespace="lab (deleted)"), mine]
    other = an_interval(namespace="gone")
    assert await by_namespace(api, [other]) == [other]


async def test_many_namespaces_are_read_by_one_request():
    api = FakeApi()
    for number in range(30):
        created = rfc3339(LATER if number % 2 else NOON)
        api.put(NAMESPACES, {"metadata": {"name": f"team-{number}", "creationTimestamp": created}})
    intervals = [an_interval(namespace=f"team-{number}") for number in range(40)]
    shown = await by_namespace(api, intervals)
    assert [each.namespace for each in shown] == [
        f"team-{number} (deleted)" if number < 30 and number % 2 else f"team-{number}" for number in range(40)
    ]
    assert [(call.verb, call.resource) for call in api.calls] == [("list", "namespaces")]


@pytest.mark.parametrize("path", ["/maps", "/api/v1/maps"])
async def test_maps_of_many_namespaces_read_none_of_them_alone(old, path):
    for number in range(20):
        name = f"team-{number}"
        old.site.api.put(NAMESPACES, {"metadata": {"name": name, "creationTimestamp": rfc3339(NOON)}})
        old.site.api.readers |= {("ada", name)}
        await old.service.queue.create_map(namespace=name, name="m", owner="ada", policy=Policy(), request="r")
    old.site.api.calls.clear()
    assert "team-19" in (await old.site.ask(path, headers=ADA, token=False)).text
    assert {call.verb for call in old.site.api.calls if call.resource == "namespaces"} == {"list"}


async def test_without_a_namespace_rights_alone_decide(site):
    assert await records_since(site.api, "none") is None
    assert await records_since(None, "lab") is None
    assert not is_too_old(NOON, None)
    assert is_too_old(None, NOON)
