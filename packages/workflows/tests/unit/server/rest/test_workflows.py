"""/api/v1/workflows, asked without a socket: what is refused before the Kubernetes API, and what records give."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest
from tests.workflowrecords import a_node_record

from moorage.api.workflows import ListedByArgo, as_workflow
from moorage.server.identity.auth import User
from moorage_kube.errors import UsageError
from moorage_kube.moments import rfc3339
from moorage_kube.testing.clock import NOON
from moorage_workflows.actions.workflows import Choice
from moorage_workflows.model.workflow import MetricPoint, NodePhase, NodeRecord, NodeType, WorkflowRecord
from moorage_workflows.server.rest.workflowrecords import StoreRecords
from moorage_workflows.server.rest.workflows import choice_of
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


def a_record(uid="u1", name="train", phase="Succeeded"):
    document = {"metadata": {"name": name, "labels": {"team": "x"}}, "spec": {"entrypoint": "main"}}
    return WorkflowRecord(
        uid=uid, namespace="lab", name=name, document=document, phase=phase, created_at=rfc3339(NOON)
    )


async def kept(site, *records):
    for record in records:
        await site.service.context.part(LocalRecords).begin(record)
    return StoreRecords(site.service.context, User("ada"))


async def test_records_are_read_with_all_their_nodes(site):
    async with site.running():
        records = await kept(site, a_record())
        await site.service.context.part(LocalRecords).load("u1", "me")
        nodes = [
            NodeRecord(id=f"n{at}", name=f"train.{at}", display_name=str(at), type=NodeType.POD,
                       phase=NodePhase.SUCCEEDED)
            for at in range(3)
        ]  # fmt: skip
        await site.service.context.part(LocalRecords).save("u1", "me", nodes)
        obj = await records.read("lab", "train", None)
        assert sorted(obj["status"]["nodes"]) == ["n0", "n1", "n2"]
        assert await records.read("lab", "none", None) is None
        other = {"metadata": {"name": "train", "namespace": "lab", "uid": "another"}}
        assert await records.read("lab", "train", other) is None


async def test_records_are_listed_by_what_is_chosen(site):
    async with site.running():
        records = await kept(site, a_record(), a_record("u2", "fit", "Failed"))
        chosen = await records.listed("lab", Choice(phases=("Failed",)))
        assert [obj["metadata"]["name"] for obj in chosen] == ["fit"]
        assert await records.listed("other", Choice()) == []
        assert len(await records.listed(None, Choice(selector="team=x"))) == 2
        assert len(await records.listed(None, Choice(limit=1))) == 1


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("/api/v1/workflows/lab", "GET", None),
        ("/api/v1/workflows/lab/train", "GET", None),
        ("/api/v1/workflows/lab", "POST", {"workflow": {}}),
        ("/api/v1/workflows/lab/train/stop", "PUT", {}),
        ("/api/v1/workflow-templates/lab", "GET", None),
        ("/api/v1/cluster-workflow-templates/ml", "DELETE", None),
    ],
)
async def test_who_only_looks_neither_reads_nor_changes_workflows(site, path, method, body):
    async with site.running():
        data = b"" if body is None else json.dumps(body).encode()
        answer = await site.ask(path, method=method, headers=JSON, body=data)
        assert (answer.status, answer.json["code"]) == (403, "only_looking")
        nobody = await site.ask(path, method=method, headers=JSON, body=data, token=False)
        assert nobody.status == 401


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/workflows/lab", {}, "workflow"),
        ("/api/v1/workflows/lab", {"workflow": {}, "from": "workflowtemplate/x"}, "workflow"),
        ("/api/v1/workflows/lab/submit", {"resourceKind": "WorkflowTemplate"}, None),
    ],
)
async def test_a_submission_that_cannot_be_meant_is_refused(site, path, body, field):
    async with site.running():
        answer = await site.ask(path, method="POST", headers=JSON, body=json.dumps(body).encode())
        assert answer.status in (400, 422)
        assert field in (None, answer.json.get("field"))


class Noon:
    """A context that knows the time alone."""

    def now(self):
        return NOON


@pytest.mark.parametrize(
    ("query", "phases"),
    [
        pytest.param({}, (), id="all"),
        pytest.param({"running": True}, ("Pending", "Running"), id="not ended"),
        pytest.param({"completed": True, "status": ("Failed",)}, ("Failed",), id="ended, and failed"),
        pytest.param({"running": True, "status": ("Failed",)}, ("",), id="none can be both"),
    ],
)
async def test_a_list_is_asked_for_in_our_words(query, phases):
    assert choice_of(ListedByArgo(**query), Noon()).phases == phases


async def test_a_list_is_asked_for_in_argos_words():
    choice = choice_of(ListedByArgo(selector="a=b", label_selector="c=d", limit_by_argo="5"), Noon())
    assert (choice.selector, choice.limit) == ("a=b,c=d", 5)
    with pytest.raises(UsageError):
        choice_of(ListedByArgo(running=True, completed=True), Noon())


async def test_a_workflow_that_nobody_has_looked_at_is_pending():
    """hera fails where a workflow has no phase."""
    assert as_workflow({"metadata": {"name": "x"}}).status == {"phase": "Pending"}


async def test_a_step_reports_under_the_name_of_a_pod_of_its_workflow(site):
    digest = "sha256:" + hashlib.sha256(b"step").hexdigest()

    async def report(pod):
        headers = JSON | {"authorization": "Bearer step"}
        path = f"/api/v1/steps/u1/{pod}/report"
        return await site.ask(path, method="POST", headers=headers, body=b'{"pod": "x"}', token=False)

    async with site.running():
        workflows = site.service.context.part(LocalRecords)
        await workflows.begin(msgspec.structs.replace(a_record(phase="Running"), token_digest=digest))
        await workflows.load("u1", "me")
        refused = await report("train-1")
        assert (refused.status, refused.json["code"], refused.json["message"]) == (
            425,
            "too_early",
            "no step of workflow lab/train has the pod train-1",
        )
        node = a_node_record("train", id="n1", pod_name="train-1")
        await workflows.save("u1", "me", [node])
        assert [(await report(pod)).status for pod in ("train-1", "invented-1")] == [204, 425]
        assert [kept.pod for kept in await workflows.reports("u1", ["invented-1", "train-1"])] == ["train-1"]


async def test_metrics_of_manifests_have_argos_prefix_and_their_namespace(site):
    records = site.service.context.part(LocalRecords)
    async with site.running():
        await records.begin(WorkflowRecord(uid="u", namespace="lab", name="w", document={}))
        await records.load("u", "op")
        ends = MetricPoint(name="ends", help="Ends", kind="counter", operation="Add", value=1.0)
        await records.save("u", "op", metrics=[ends])
        assert 'argo_workflows_ends{workflow_namespace="lab"} 1.0' in (await site.ask("/metrics")).text
