"""What steps of workflows store and report, and what people fetch of it."""

from __future__ import annotations

import asyncio
import hashlib
import json

import msgspec
import pytest

from moorage.clock import rfc3339
from moorage.errors import StorageError
from moorage.model.workflow import (
    RESULT_BYTES,
    Artifact,
    NodePhase,
    NodeRecord,
    NodeType,
    Outputs,
    StepReport,
    WorkflowRecord,
)
from moorage.server.problems import Problem
from moorage.server.workflows.steps import PARAMETER_BYTES, PARAMETERS, check_report
from moorage.testing.clock import NOON
from moorage.workflows.store import WorkflowStore

pytestmark = pytest.mark.anyio
TOKEN = "the token of the workflow"
STEP = {"authorization": f"Bearer {TOKEN}"}
AS_ADA = {"headers": {"authorization": "Bearer kube-token"}, "token": False}


def a_run(uid="u1", name="train", token=TOKEN, namespace="lab", **fields):
    record = WorkflowRecord(
        uid=uid,
        namespace=namespace,
        name=name,
        document={"metadata": {"name": name}},
        phase="Running",
        created_at=rfc3339(NOON),
        token_digest=f"sha256:{hashlib.sha256(token.encode()).hexdigest()}",
    )
    return msgspec.structs.replace(record, **fields)


def a_node(node_id, *artifacts, name="", pod=""):
    return NodeRecord(
        id=node_id,
        name=f"train.{name or node_id}",
        display_name=name or node_id,
        type=NodeType.POD,
        phase=NodePhase.SUCCEEDED,
        pod_name=pod or f"pod-{node_id}",
        outputs=Outputs(artifacts=artifacts),
    )


async def begun(site, *runs):
    for run in runs or (a_run(),):
        await site.service.workflows.begin(run)


async def put(site, path="/api/v1/steps/u1/pod-1/artifacts/model", body=b"data", headers=STEP, **options):
    return await site.ask(path, method="PUT", body=body, headers=headers, token=False, **options)


async def get(site, key, uid="u1", headers=STEP):
    return await site.ask(f"/api/v1/steps/{uid}/artifacts?key={key}", headers=headers, token=False)


async def report(site, body, path="/api/v1/steps/u1/pod-1/report", headers=STEP):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await site.ask(path, method="POST", body=data, headers=headers, token=False)


async def test_an_artifact_is_stored_and_fetched_by_its_key(site):
    await begun(site)
    async with site.running():
        stored = await put(site, body=b"data")
        assert stored.status == 200
        artifact = msgspec.json.decode(stored.body, type=Artifact)
        assert artifact == Artifact(
            name="model",
            key="train/pod-1/model.tgz",
            size_bytes=4,
            digest=f"sha256:{hashlib.sha256(b'data').hexdigest()}",
            archive="tar",
        )
        fetched = await get(site, artifact.key)
    assert (fetched.status, fetched.body, fetched.headers["content-length"]) == (200, b"data", "4")
    assert (site.folder / "artifacts" / "lab" / "train" / "pod-1" / "model.tgz").read_bytes() == b"data"


async def test_a_key_of_ones_own_is_within_the_namespace(site):
    await begun(site)
    async with site.running():
        path = "/api/v1/steps/u1/pod-1/artifacts/model?archive=none&key=shared/best.bin"
        stored = await put(site, path)
        assert (stored.status, stored.json["key"]) == (200, "shared/best.bin")
    assert (site.folder / "artifacts" / "lab" / "shared" / "best.bin").exists()


@pytest.mark.parametrize("key", ["../other/secret", "/etc/passwd", "a//b", "..", "%2e%2e/other/secret", "a%00b"])
async def test_no_key_leads_out_of_the_namespace(site, key):
    await begun(site)
    secret = site.folder / "artifacts" / "other" / "secret"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(b"hidden")
    async with site.running():
        answers = [
            await get(site, key),
            await put(site, f"/api/v1/steps/u1/pod-1/artifacts/model?key={key}"),
        ]
    assert [answer.status for answer in answers] == [422, 422]
    assert [answer.json["code"] for answer in answers] == ["invalid", "invalid"]
    assert secret.read_bytes() == b"hidden"


async def test_workflows_of_one_namespace_read_each_others_artifacts_and_no_others(site):
    await begun(
        site,
        a_run(),
        a_run("u2", "eval", "second"),
        a_run("u3", "spy", "third", namespace="other", phase="Running"),
    )
    async with site.running():
        await put(site)
        key = "train/pod-1/model.tgz"
        assert (await get(site, key, "u2", {"authorization": "Bearer second"})).body == b"data"
        missing = await get(site, key, "u3", {"authorization": "Bearer third"})
    assert (missing.status, missing.json["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("uid", "token"),
    [
        pytest.param("u1", "wrong", id="a wrong token"),
        pytest.param("u1", "", id="no token"),
        pytest.param("u1", "second", id="the token of another workflow"),
        pytest.param("u9", TOKEN, id="an unknown workflow"),
        pytest.param("u0", "", id="a workflow without a token"),
    ],
)
async def test_only_the_workflows_own_token_lets_in(site, uid, token):
    await begun(
        site, a_run(), a_run("u2", "eval", "second"), a_run("u0", "bare", phase="Running", token_digest="")
    )
    headers = {"authorization": f"Bearer {token}"}
    async with site.running():
        answers = [
            await put(site, f"/api/v1/steps/{uid}/pod-1/artifacts/model", headers=headers),
            await get(site, "train/pod-1/model.tgz", uid, headers),
            await report(site, {"pod": "pod-1"}, f"/api/v1/steps/{uid}/pod-1/report", headers),
        ]
    assert [(answer.status, answer.json["code"]) for answer in answers] == [(401, "unauthorized")] * 3


async def test_a_workflow_that_has_ended_saves_nothing_more(site):
    await begun(site)
    async with site.running():
        assert (await put(site)).status == 200
        await site.service.workflows.load("u1", "op")
        await site.service.workflows.save("u1", "op", (), a_run(phase="Succeeded", finished_at=rfc3339(NOON)))
        site.clock.advance(60)
        answers = [await put(site), await report(site, {"pod": "pod-1"})]
    assert [(answer.status, answer.json["code"]) for answer in answers] == [(410, "gone")] * 2


async def test_a_new_token_counts_at_once(site):
    await begun(site)
    async with site.running():
        assert (await put(site)).status == 200
        await site.service.workflows.load("u1", "op")
        renewed = a_run(token="renewed")
        await site.service.workflows.save("u1", "op", (), renewed)
        assert (await put(site, headers={"authorization": "Bearer renewed"})).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/steps/u1/Pod_1/artifacts/model",
        "/api/v1/steps/u1/pod-1/artifacts/a%0Ab",
        "/api/v1/steps/u1/pod-1/artifacts/-a",
    ],
)
async def test_what_is_no_name_is_refused(site, path):
    await begun(site)
    async with site.running():
        answer = await put(site, path.replace("%0A", "\n"))
    assert answer.status == 422


async def test_an_artifact_beyond_the_limit_is_refused(site):
    await begun(site)
    site.service.artifacts.most_bytes = 10
    async with site.running():
        answer = await put(site, body=b"x" * 11)
    assert (answer.status, answer.json["code"]) == (413, "too_large")
    assert "MOORAGE_ARTIFACT_BYTES" in answer.json["hint"]


class Sender:
    """A client that sends a body as it likes."""

    def __init__(self, site, path="/api/v1/steps/u1/pod-1/artifacts/model"):
        self.messages = asyncio.Queue()
        self.answered = []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "PUT",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", STEP["authorization"].encode())],
            "server": ("127.0.0.1", 8080),
            "client": ("127.0.0.1", 5000),
        }

        async def send(message):
            self.answered.append(message)

        self.task = asyncio.create_task(site.service.app(scope, self.messages.get, send))

    def send(self, body, *, more=True):
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self):
        self.messages.put_nowait({"type": "http.disconnect"})


async def test_a_client_that_leaves_half_way_leaves_nothing(site):
    await begun(site)
    async with site.running():
        sender = Sender(site)
        sender.send(b"x" * (2 << 20))
        sender.leave()
        await asyncio.wait_for(asyncio.gather(sender.task, return_exceptions=True), 60)
    assert [path for path in (site.folder / "artifacts").rglob("*") if path.is_file()] == []


async def test_a_slow_client_holds_nobody_up(site):
    await begun(site)
    async with site.running():
        slow = [Sender(site, f"/api/v1/steps/u1/pod-{number}/artifacts/model") for number in range(50)]
        for sender in slow:
            sender.send(b"x")
        assert (await put(site, "/api/v1/steps/u1/pod-quick/artifacts/model")).status == 200
        assert (await report(site, {"pod": "pod-1"})).status == 204
        for sender in slow:
            sender.send(b"y", more=False)
        await asyncio.wait_for(asyncio.gather(*(sender.task for sender in slow)), 60)
        assert {sender.answered[0]["status"] for sender in slow} == {200}
        assert (await get(site, "train/pod-7/model.tgz")).body == b"xy"


async def test_the_first_report_of_a_pod_counts(site):
    await begun(site)
    async with site.running():
        first = await report(site, {"pod": "another", "outputs": {"parameters": {"a": "1"}, "result": "r"}})
        second = await report(site, {"pod": "pod-1", "outputs": {}})
        kept = await site.service.workflows.reports("u1", ["pod-1", "another"])
    assert (first.status, second.status) == (204, 204)
    assert kept == (StepReport(pod="pod-1", outputs=Outputs(parameters={"a": "1"}, result="r")),)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"{", 400, id="no JSON"),
        pytest.param({"pod": 1}, 422, id="of another type"),
        pytest.param({"pod": "p", "outputs": {"result": "x" * (RESULT_BYTES + 1)}}, 413, id="too large"),
        pytest.param(b" " * (5 << 20), 413, id="too long as a whole"),
    ],
)
async def test_a_report_that_cannot_be_kept_is_refused(site, body, status):
    await begun(site)
    async with site.running():
        assert (await report(site, body)).status == status
        assert await site.service.workflows.reports("u1", ["pod-1"]) == ()


MANY = dict.fromkeys(map(str, range(PARAMETERS + 1)), "")
LONG = "é" * (PARAMETER_BYTES // 2 + 1)
LARGE = [
    pytest.param(Outputs(parameters={"a": LONG}), "outputs.parameters.a", id="a value"),
    pytest.param(Outputs(parameters={"a" * 300: ""}), "outputs.parameters", id="a name"),
    pytest.param(Outputs(parameters=MANY), "outputs.parameters", id="many"),
    pytest.param(Outputs(artifacts=(Artifact(name="a"),) * (PARAMETERS + 1)), "outputs.artifacts", id="artifacts"),
    pytest.param(Outputs(artifacts=(Artifact(name="a" * 300_000),)), "outputs.artifacts", id="an artifact"),
    pytest.param(Outputs(result="x" * (RESULT_BYTES + 1)), "outputs.result", id="a result"),
]


@pytest.mark.parametrize(("outputs", "field"), LARGE)
def test_outputs_that_are_too_large_are_refused_with_their_field(outputs, field):
    with pytest.raises(Problem) as refused:
        check_report(StepReport(pod="p", outputs=outputs))
    assert (refused.value.status, refused.value.field) == (413, field)


def test_outputs_at_their_limits_are_kept():
    parameters = dict.fromkeys(map(str, range(PARAMETERS)), "x") | {"0": "x" * PARAMETER_BYTES}
    check_report(StepReport(pod="p", outputs=Outputs(parameters=parameters, result="x" * RESULT_BYTES)))


async def test_steps_are_in_no_audit_log_and_are_not_slowed(site):
    await begun(site)
    async with site.running():
        await put(site)
        await report(site, {"pod": "pod-1"})
    assert len(site.service.audit._waiting) == 0


async def test_a_database_that_is_away_is_said(site, monkeypatch):
    await begun(site)

    def away(self, uid):
        raise StorageError("could not read workflows.db")

    monkeypatch.setattr(WorkflowStore, "run", away)
    async with site.running():
        answer = await put(site)
    assert (answer.status, answer.json["code"]) == (503, "unavailable")


# --- for people


async def with_artifacts(site):
    await begun(site)
    await site.service.workflows.load("u1", "op")
    stored = Artifact(name="model", key="train/pod-1/model.tgz", size_bytes=4, digest="sha256:aa")
    elsewhere = Artifact(name="data", key="d", location={"s3": {"bucket": "b"}})
    nodes = [a_node("n1", stored, name="fit", pod="pod-1"), a_node("n2", elsewhere, stored, name="eval")]
    nodes += [
        a_node("n3", Artifact(name="x", key="x1"), name="twin"),
        a_node("n4", Artifact(name="x", key="x2"), name="twin"),
    ]
    await site.service.workflows.save("u1", "op", nodes)


async def test_people_list_and_download_artifacts_of_a_workflow(site):
    await with_artifacts(site)
    site.api.readers.add(("ada", "lab"))
    async with site.running():
        await put(site)
        listed = await site.ask("/api/v1/workflows/lab/train/artifacts", **AS_ADA)
        assert listed.status == 200
        assert [(row["step"], row["name"], row["location"]) for row in listed.json["artifacts"]] == [
            ("eval", "data", "s3"),
            ("eval", "model", ""),
            ("fit", "model", ""),
            ("twin", "x", ""),
            ("twin", "x", ""),
        ]
        assert listed.json["artifacts"][2]["node"] == "n1"
        for node in ("n1", "fit", "pod-1", "train.fit"):
            got = await site.ask(f"/api/v1/workflows/lab/train/artifacts/{node}/model", **AS_ADA)
            assert (got.status, got.body) == (200, b"data")
            assert got.headers["content-disposition"] == "attachment; filename*=utf-8''model.tgz"


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        pytest.param("nobody/artifacts", 404, "nothing is kept of workflow lab/nobody", id="an unknown workflow"),
        pytest.param("train/artifacts?uid=u9", 404, "nothing is kept", id="another run of the name"),
        pytest.param("train/artifacts/fit/other", 404, "has left no artifact 'other'", id="an unknown artifact"),
        pytest.param("train/artifacts/eval/data", 404, "is not stored here but by s3", id="one in a bucket"),
        pytest.param("train/artifacts/twin/x", 400, "2 steps are named 'twin'", id="two steps of one name"),
        pytest.param("train/artifacts/n3/x", 404, "there is no artifact", id="one that was collected"),
    ],
)
async def test_what_cannot_be_downloaded_is_said(site, path, status, message):
    await with_artifacts(site)
    site.api.readers.add(("ada", "lab"))
    async with site.running():
        answer = await site.ask(f"/api/v1/workflows/lab/{path}", **AS_ADA)
    assert (answer.status, message in answer.json["message"]) == (status, True), answer.text


async def test_who_may_not_get_workflows_reads_no_artifacts(site):
    await with_artifacts(site)
    async with site.running():
        for path in ("artifacts", "artifacts/fit/model"):
            answer = await site.ask(f"/api/v1/workflows/lab/train/{path}", **AS_ADA)
            assert (answer.status, answer.json["code"]) == (403, "forbidden")
