"""What is kept of workflows of a namespace when it is created anew: who sees it, and what is used again."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.workflowrecords import a_node_record

from moorage_kube.clock import rfc3339
from moorage_kube.testing.clock import NOON
from moorage_testing.recreatednamespace import ADA, LATER, RecreatedNamespace
from moorage_workflows.model.workflow import (
    Memo,
    MetricPoint,
    NodePhase,
    Outputs,
    WorkflowRecord,
)
from moorage_workflows.workflows.artifacts import Artifacts
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

READS = (
    "/api/v1/workflows/lab", "/api/v1/workflows/lab/old-train", "/workflows/lab/old-train",
    "/workflows?namespace=lab", "/api/v1/workflows/lab/old-train/artifacts",
    "/api/v1/workflows/lab/old-train/artifacts/old-train/model",
)  # fmt: skip


async def parts(data):
    yield data


def a_record(uid="u1", **fields):
    document = {"metadata": {"name": "old-train"}, "spec": {"entrypoint": "main"}}
    known = {"namespace": "lab", "name": "old-train", "phase": "Succeeded", "created_at": rfc3339(NOON)}
    return WorkflowRecord(uid=uid, document=document, **known | fields)


def records_of(old):
    return old.service.context.part(LocalRecords)


@pytest.fixture
async def old(site):
    """A workflow with an artifact, of a namespace that was created at noon."""
    async with site.running():
        old = RecreatedNamespace(site, READS)
        artifact = await site.service.context.part(Artifacts).put(
            parts(b"old-artifact"), "lab/m.txt", name="model"
        )
        artifact = msgspec.structs.replace(artifact, key="m.txt")
        await records_of(old).begin(a_record())
        await records_of(old).load("u1", "me")
        outputs = Outputs(artifacts=(artifact,), parameters={"x": "old-value"})
        node = a_node_record("old-train", id="n1", phase=NodePhase.SUCCEEDED, outputs=outputs)
        await records_of(old).save("u1", "me", [node])
        await records_of(old).remember("lab", "cache", "key", Memo(outputs=Outputs(), at=rfc3339(NOON)))
        yield old


async def test_a_member_of_the_new_namespace_sees_no_older_workflow_unless_an_annotation_says_so(old):
    assert len(await old.seen()) == len(READS)
    old.namespace(LATER)
    assert await old.seen() == set()
    old.namespace(LATER, **{"moorage.dev/records-since": rfc3339(NOON)})
    assert len(await old.seen()) == len(READS)


async def test_an_administrator_of_all_namespaces_sees_older_workflows_still(old):
    old.namespace(LATER)
    old.site.api.readers |= {("ada", None)}
    assert len(await old.seen()) == len(READS)


async def test_a_step_reads_no_older_artifact_and_an_older_workflow_saves_none(old):
    digest = "sha256:" + hashlib.sha256(b"step").hexdigest()
    await records_of(old).begin(
        a_record("u2", name="now", phase="Running", created_at=rfc3339(LATER), token_digest=digest)
    )
    await records_of(old).begin(a_record("u0", name="then", phase="Running", token_digest=digest))
    step = {"authorization": "Bearer step"}
    fetch = "/api/v1/steps/{}/artifacts?key=m.txt"
    assert (await old.site.ask(fetch.format("u2"), headers=step, token=False)).text == "old-artifact"
    written = datetime.now(UTC) + timedelta(days=1)  # the file's own time is the disk's
    old.namespace(written)
    assert (await old.site.ask(fetch.format("u0"), headers=step, token=False)).status == 410
    await records_of(old).begin(
        a_record("u3", name="new", phase="Running", created_at=rfc3339(written), token_digest=digest)
    )
    assert (await old.site.ask(fetch.format("u3"), headers=step, token=False)).status == 404
    below = await old.site.ask("/api/v1/steps/u3/artifacts?below=true", headers=step, token=False)
    assert below.json == []


async def test_outputs_and_metrics_of_the_old_namespace_are_not_reused(old):
    point = MetricPoint(name="made", help="h", kind="counter", value=5.0)
    await records_of(old).begin(running := a_record("u5", name="metered", phase="Running"))
    await records_of(old).load("u5", "me")
    await records_of(old).save("u5", "me", (), running, (point,))
    old.site.api.readers |= {("ada", None)}
    body = json.dumps({"namespace": "lab", "cache": "cache", "key": "key"}).encode()

    async def ask(verb, body):
        path = f"/api/v1/internal/workflows/{verb}"
        headers = ADA | {"content-type": "application/json"}
        return (await old.site.ask(path, method="POST", headers=headers, body=body, token=False)).json

    assert (await ask("recall", body)).get("memo")
    made = [each.name for each in await records_of(old).metrics()]
    assert "made" in made
    old.namespace(datetime.now(UTC) + timedelta(days=1))
    assert not (await ask("recall", body)).get("memo")
    began = msgspec.json.encode({"record": a_record("u9", name="new")})
    await ask("begin", began)
    assert "made" not in [each.name for each in await records_of(old).metrics()]
