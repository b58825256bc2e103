"""Records of changes: at once past the API server, later to the server, and never more than there is room for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from moorage.api.auditrecords import RECORDS_MAX, AuditRecords
from moorage.decide.audit.changes import Change
from moorage.webhooks.app import Webhook
from moorage.webhooks.auditsender import (
    REREAD_SECONDS,
    RETRY_MAX_SECONDS,
    SEND_SECONDS,
    WAITING_MAX,
    AuditSender,
    ServerPost,
    TokenFile,
)
from moorage_kube.errors import ServerError
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

TOKEN = "api-servers-token"
ADA = "system:serviceaccount:moorage-users:ada-1"


class Server:
    """Takes batches, or is away, or refuses them for good."""

    def __init__(self) -> None:
        self.batches: list[AuditRecords] = []
        self.error: Exception | None = None
        self.tries = 0

    async def __call__(self, records: AuditRecords) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.batches.append(records)

    @property
    def actions(self) -> list[str]:
        return [record.action for batch in self.batches for record in batch.records]


def a_deletion(name: str = "p") -> Change:
    return Change(operation="DELETE", group="", plural="pods", namespace="lab", name=name)


def a_review(**fields: Any) -> bytes:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "p",
        "namespace": "lab",
        "operation": "DELETE",
        "userInfo": {"username": ADA, "groups": []},
        "oldObject": {"metadata": {"name": "p", "namespace": "lab"}},
        "dryRun": False,
        "options": {"kind": "DeleteOptions"},
    }
    return json.dumps({"kind": "AdmissionReview", "request": request | fields}).encode()


async def post(webhook: Webhook, body: bytes, path: str = f"/audit/{TOKEN}") -> tuple[int, Any]:
    answers: list[Any] = []
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return sent.pop()

    async def send(message: Any) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    await webhook.app(scope, receive, send)
    return answers[0]["status"], answers[1]["body"]


@contextlib.asynccontextmanager
async def running(sender: AuditSender) -> AsyncIterator[None]:
    task = asyncio.create_task(sender.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def steps(many: int = 20) -> None:
    for _ in range(many):
        await asyncio.sleep(0)


async def test_a_review_is_answered_at_once_though_no_cache_is_filled_and_the_server_is_away():
    server = Server()
    server.error = ServerError("away", status=0)
    webhook = Webhook(FakeApi(), clock=FakeClock(), send=server, is_token=TOKEN.__eq__)
    status, body = await post(webhook, a_review())
    assert (status, json.loads(body)["response"]) == (200, {"uid": "u-1", "allowed": True})


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        pytest.param({}, 1, id="a person's deletion"),
        pytest.param({"dryRun": True}, 0, id="a dry run"),
        pytest.param({"userInfo": {"username": "system:node:n1"}}, 0, id="a kubelet's"),
        pytest.param({"resource": {"group": "", "version": "v1", "resource": "secrets"}}, 0, id="not recorded"),
        pytest.param({"oldObject": {"metadata": "odd"}, "name": ""}, 0, id="an odd object passes all the same"),
    ],
)
async def test_what_is_recorded_of_reviews(fields, count):
    server = Server()
    webhook = Webhook(FakeApi(), clock=FakeClock(), send=server, is_token=TOKEN.__eq__)
    status, body = await post(webhook, a_review(**fields))
    assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
    assert webhook._audit_sender is not None
    await webhook._audit_sender.flush()
    assert server.actions == ["delete pod lab/p"] * count


async def test_a_review_that_cannot_be_read_is_left_to_the_failure_policy():
    webhook = Webhook(FakeApi(), clock=FakeClock(), send=Server())
    assert (await post(webhook, b"{"))[0] == 400


async def test_a_record_tells_who_did_what_and_when_and_holds_no_field_of_the_object():
    server = Server()
    sender = AuditSender(server, clock=FakeClock())
    secret = {"metadata": {"name": "j", "namespace": "lab"}, "spec": {"key": "hunter2"}}
    change = Change(
        operation="CREATE", group="batch", plural="jobs", namespace="lab", name="j", obj=secret,
        options={"fieldManager": "kubectl-create"},
    )  # fmt: skip
    sender.note(change, account=ADA, status=422)
    await sender.flush()
    (record,) = server.batches[0].records
    assert (record.at, record.account, record.verb, record.path) == (
        NOON,
        ADA,
        "create",
        "/apis/batch/v1/namespaces/lab/jobs/j",
    )
    assert (record.action, record.client, record.status) == ("create job lab/j", "kubectl", 422)
    assert "hunter2" not in repr(record)


async def test_a_flood_is_bounded_counted_and_its_beginning_kept():
    server = Server()
    server.error = ServerError("away", status=0)
    sender = AuditSender(server, clock=FakeClock())
    for number in range(WAITING_MAX + 10_000):
        sender.note(a_deletion(f"p{number}"), account=ADA)
    assert (len(sender), sender.lost) == (WAITING_MAX, 10_000)
    server.error = None
    assert await sender.flush()
    assert server.actions == [f"delete pod lab/p{number}" for number in range(WAITING_MAX)]
    assert max(len(batch.records) for batch in server.batches) == RECORDS_MAX
    assert [batch.lost for batch in server.batches if batch.lost] == [10_000]
    assert (len(sender), sender.lost) == (0, 0)


async def test_records_wait_for_a_server_that_restarts_and_are_tried_less_and_less_often():
    server, clock = Server(), FakeClock()
    server.error = ServerError("away", status=0)
    sender = AuditSender(server, clock=clock)
    async with running(sender):
        sender.note(a_deletion(), account=ADA)
        for seconds, tries in ((SEND_SECONDS, 1), (SEND_SECONDS, 1), (0.5, 2), (1.0, 2), (1.0, 3)):
            clock.advance(seconds)
            await steps()
            assert server.tries == tries
        server.error = None
        clock.advance(RETRY_MAX_SECONDS)
        await steps()
        assert server.actions == ["delete pod lab/p"]


async def test_what_waits_is_sent_when_the_process_ends():
    server = Server()
    sender = AuditSender(server, clock=FakeClock())
    async with running(sender):
        sender.note(a_deletion(), account=ADA)
    assert server.actions == ["delete pod lab/p"]


async def test_a_batch_that_no_server_can_read_is_not_sent_for_ever():
    server = Server()
    server.error = ValueError("HTTP 422")
    sender = AuditSender(server, clock=FakeClock())
    sender.note(a_deletion(), account=ADA)
    assert await sender.flush()
    assert (server.tries, len(sender)) == (1, 0)


@pytest.mark.parametrize("path", ["/audit", "/audit/other", "/audit/"])
async def test_nothing_is_recorded_of_who_does_not_know_the_api_servers_token(path):
    server = Server()
    webhook = Webhook(FakeApi(), clock=FakeClock(), send=server, is_token=TOKEN.__eq__)
    await post(webhook, a_review(), path)
    assert webhook._audit_sender is not None
    assert len(webhook._audit_sender) == 0


def test_a_token_in_a_file_may_come_later_and_change(tmp_path):
    clock, path = FakeClock(), tmp_path / "token"
    is_token = TokenFile(path, clock=clock)
    assert not is_token("")
    assert not is_token("one")
    path.write_text("one\n")
    assert not is_token("one")  # the file is not read for each guess
    clock.advance(REREAD_SECONDS)
    assert is_token("one")
    path.write_text("two")
    clock.advance(REREAD_SECONDS)
    assert (is_token("one"), is_token("two"), is_token("one"), is_token("")) == (True, True, False, False)


# --- the guardrails' own reviews


async def test_what_a_guardrail_refuses_is_recorded_as_refused():
    api, server = FakeApi(), Server()
    webhook = Webhook(api, clock=FakeClock(), send=server, is_token=TOKEN.__eq__)
    task = asyncio.create_task(webhook.run())
    try:
        async with asyncio.timeout(60):
            await webhook.wait_synced()
        containers = [{"name": f"c{number}"} for number in range(501)]
        job = {
            "metadata": {"name": "j", "namespace": "lab"},
            "spec": {"template": {"metadata": {}, "spec": {"containers": containers}}},
        }
        review = {
            "kind": {"group": "batch", "version": "v1", "kind": "Job"},
            "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
            "name": "j",
            "operation": "CREATE",
            "userInfo": {"username": "ada"},
            "oldObject": None,
            "options": {"fieldManager": "moor"},
        }
        await post(webhook, a_review(**review, object=job), f"/mutate/{TOKEN}")
        job["spec"]["template"]["spec"]["containers"] = containers[:1]  # type: ignore[index]
        await post(webhook, a_review(**review, object=job), f"/mutate/{TOKEN}")
        await post(webhook, a_review(**review, object=job), f"/validate/{TOKEN}")
        assert webhook._audit_sender is not None
        await webhook._audit_sender.flush()
        records = [record for batch in server.batches for record in batch.records]
        assert [(record.action, record.status, record.client) for record in records] == [
            ("create job lab/j", 422, "moor"),
            ("create job lab/j", 200, "moor"),
        ]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- over HTTP


class Cluster:
    async def authorization(self) -> str:
        return "Bearer webhook-token"


@contextlib.asynccontextmanager
async def serving(status: int, asked: list[Any]) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers["authorization"], await request.json()))
        return web.Response(status=status, text="why")

    app = web.Application()
    app.router.add_post("/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (204, None),
        (503, ServerError),
        (401, ServerError),
        (403, ServerError),
        (302, ServerError),
        (422, ValueError),
    ],
)
async def test_records_go_to_the_server_under_the_services_own_token(status, error):
    asked: list[Any] = []
    async with serving(status, asked) as address:
        post_records = ServerPost(Cluster(), lambda: address)
        try:
            with pytest.raises(error) if error else contextlib.nullcontext():
                await post_records(AuditRecords(lost=3))
        finally:
            await post_records.close()
    assert asked == [("/api/v1/audit/records", "Bearer webhook-token", {"records": [], "lost": 3})]


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:1", "no address"])
async def test_a_server_that_is_not_there_is_tried_again(address):
    post_records = ServerPost(Cluster(), lambda: address)
    with pytest.raises(ServerError):
        await post_records(AuditRecords())
    await post_records.close()


async def test_the_address_of_the_server_is_what_the_clusters_configmap_says():
    api = FakeApi()
    info = {"metadata": {"name": "moorage", "namespace": "moorage-system"}, "data": {"serverUrl": "http://here"}}
    api.put(CONFIGMAPS, info)
    webhook = Webhook(api, clock=FakeClock(), send=Server())
    task = asyncio.create_task(webhook.run())
    async with asyncio.timeout(60):
        await webhook.wait_synced()
    assert webhook._server == "http://here"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
