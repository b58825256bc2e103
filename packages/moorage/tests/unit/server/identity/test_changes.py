"""Changes in the Kubernetes API, as the admission webhook tells them to the server."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta

import pytest

from moorage.api.auditrecords import AuditRecord, AuditRecords
from moorage.api.people import AuditEntry
from moorage.model.manifests import WEBHOOK
from moorage.model.names import SYSTEM_NAMESPACE, WEBHOOK_USER
from moorage.model.people import LOCAL, account_user, make_account
from moorage.present.audit import sentence
from moorage.server.identity.audit import WRITE_SECONDS, AuditLog
from moorage.server.identity.changes import OWN_SECONDS, PROGRAMS, REPEAT, Changes, OwnWrites
from moorage.server.identity.sessions import Sessions
from moorage_kube.clock import rfc3339
from moorage_kube.errors import StorageError
from moorage_kube.resources import SERVICEACCOUNTS
from moorage_kube.testing.clock import NOON, FakeClock

pytestmark = pytest.mark.anyio

ADA = account_user("ada")
JSON = {"content-type": "application/json"}


@pytest.fixture
def site(site):
    site.api.users["webhook-token"] = WEBHOOK_USER
    site.api.put(SERVICEACCOUNTS, make_account("ada", (), LOCAL))
    return site


def a_record(action="delete pod lab/p", *, account=ADA, verb="", path="", at=NOON, target="", **fields):
    verb = verb or action.partition(" ")[0]
    target = target or action.partition(" ")[2]
    path = path or f"/api/v1/namespaces/lab/pods/{target.rpartition('/')[2]}"
    return AuditRecord(at=at, account=account, verb=verb, path=path, action=action, target=target, **fields)


async def send(site, *records, token="webhook-token", **more):
    body = {
        "records": [
            {field: getattr(record, field) for field in record.__struct_fields__} | {"at": rfc3339(record.at)}
            for record in records
        ]
    } | more
    headers = JSON | {"authorization": f"Bearer {token}"}
    sent = json.dumps(body).encode()
    return await site.ask("/api/v1/audit/records", method="POST", body=sent, headers=headers, token=False)


async def entries(site):
    await site.service.audit.flush()
    rows = await site.service.sessions.do(lambda store: store.audit())
    return [(row.person, row.what, row.client, row.status) for row in reversed(rows)]


async def sentences(site):
    rows = await site.service.sessions.do(lambda store: store.audit())
    return [
        sentence(
            AuditEntry(
                number=row.number, at="", person=row.person, method=row.method, path=row.path, what=row.what,
                address=row.address, status=row.status, client=row.client,
            )
        )
        for row in reversed(rows)
    ]  # fmt: skip


def test_the_webhook_is_known_by_the_account_of_its_manifest():
    assert f"system:serviceaccount:{SYSTEM_NAMESPACE}:{WEBHOOK.full_name}" == WEBHOOK_USER


async def test_a_record_becomes_a_sentence_about_the_person(site):
    async with site.running():
        answer = await send(
            site,
            a_record("cancel run lab/train-3", verb="update", client="moor"),
            a_record("delete job lab/j", at=NOON - timedelta(minutes=5)),
            a_record("create job lab/j", client="kubectl", status=422),
            a_record("create job lab/k", account="kubernetes-admin", client="kubectl"),
            a_record("run a command in pod lab/p", verb="connect"),
        )
        assert answer.status == 204
        assert await sentences(site) == [
            "ada cancelled run lab/train-3, by moor",
            "ada deleted job lab/j, through the Kubernetes API",
            "ada tried to create job lab/j: refused by a guardrail (422), by kubectl",
            "kubernetes-admin created job lab/k, by kubectl",
            "ada ran a command in pod lab/p, through the Kubernetes API",
        ]
        rows = await site.service.sessions.do(lambda store: store.audit(since=NOON - timedelta(minutes=1)))
        assert len(rows) == 4  # the time is that of the change


@pytest.mark.parametrize("account", ["ada", "system:serviceaccount:lab:moorage-webhook", "kubernetes-admin"])
async def test_nobody_but_the_webhook_writes_records(site, account):
    site.api.users["other-token"] = account
    site.api.readers.add((account, None))
    async with site.running():
        assert (await send(site, a_record(), token="other-token")).status == 403
        assert (await send(site, a_record(), token="none")).status == 401
        assert [what for _, what, _, _ in await entries(site)] == ["", ""]  # the tries themselves


async def test_what_cannot_be_read_is_refused(site):
    async with site.running():
        assert (await send(site, *[a_record()] * 501)).status == 422
        assert (await send(site, a_record("x" * 301))).status == 422


async def test_what_the_server_did_for_somebody_is_there_once(site):
    own = site.service.context.own_writes
    async with site.running():
        own.note(ADA, "POST", "/apis/batch/v1/namespaces/lab/jobs/train")
        own.note(ADA, "DELETE", "/api/v1/namespaces/lab/pods/p")
        await send(
            site,
            a_record("start run lab/train", verb="create", path="/apis/batch/v1/namespaces/lab/jobs/train"),
            a_record("delete pod lab/p"),
            a_record("delete pod lab/p", account="ben"),
            a_record("delete pod lab/q"),
            a_record("delete pod lab/p", at=NOON + timedelta(minutes=1)),
        )
        assert await entries(site) == [
            ("ben", "delete pod lab/p", "", 200),
            ("ada", "delete pod lab/q", "", 200),
            ("ada", "delete pod lab/p", "", 200),
        ]


def test_own_writes_are_known_by_account_verb_and_object_for_a_while():
    clock = FakeClock()
    own = OwnWrites(clock=clock)
    path = "/apis/moorage.dev/v1alpha1/namespaces/lab/workspaces/w%3A1"
    own.note(ADA, "PATCH", path)
    same = a_record(
        "stop workspace lab/w", verb="update", path="/apis/moorage.dev/v1/namespaces/lab/workspaces/w:1"
    )
    assert own.has(same)  # whatever version of the kind the review has
    assert own.has(a_record("create workspace lab/w", verb="create", path=same.path))  # an apply creates, too
    assert not own.has(a_record("delete workspace lab/w", path=same.path))
    assert not own.has(a_record("stop workspace lab/w", verb="update", path=same.path, account="ben"))
    assert not own.has(a_record("stop w", verb="update", path="/apis/other/v1/namespaces/lab/workspaces/w:1"))
    clock.advance(OWN_SECONDS + 1)
    assert not own.has(same)


async def test_what_is_done_again_and_again_is_one_entry_until_something_else_is_done(site):
    later = [NOON + REPEAT * number / 2 for number in range(5)]
    async with site.running():
        await send(
            site,
            *(a_record("request eviction of pod lab/p", verb="create", at=at) for at in later),
            a_record("cordon node n", verb="update"),
            a_record("uncordon node n", verb="update"),
            a_record("cordon node n", verb="update"),
            a_record("cordon node n", verb="update", at=NOON + 2 * REPEAT),
            *(a_record("run a command in pod lab/p", verb="connect") for _ in range(2)),
        )
        assert [what for _, what, _, _ in await entries(site)] == [
            "request eviction of pod lab/p",
            "cordon node n",
            "uncordon node n",
            "cordon node n",
            "cordon node n",
            "run a command in pod lab/p",
            "run a command in pod lab/p",
        ]


async def test_a_program_that_changes_without_end_fills_no_disk_and_hides_no_person(site):
    program = "system:serviceaccount:lab:ci"
    async with site.running():
        for start in range(0, PROGRAMS.burst + 500, 500):
            await send(
                site,
                *(a_record(f"delete pod lab/p{start + number}", account=program) for number in range(500)),
            )
        await send(site, a_record("delete pod lab/x"))
        site.service.audit.sum_up()
        rows = [what for _, what, _, _ in await entries(site)]
        all_rows = await site.service.sessions.do(lambda store: store.audit(limit=5000))
        assert len(all_rows) == PROGRAMS.burst + 2
        assert rows[-2:] == [
            "delete pod lab/x",
            "500 more changes by programs were made; the server's log has them",
        ]


async def test_what_had_no_room_is_told_and_counted(site):
    async with site.running():
        await send(site, a_record(), lost=7)
        assert (await sentences(site))[-1] == (
            "7 changes in the Kubernetes API are not recorded: the server was away too long"
        )
        assert site.service.changes.lost == 7


class AwaySessions(Sessions):
    """A database that cannot be reached for a while."""

    is_away = True

    async def do(self, work):
        if self.is_away:
            raise StorageError("away")
        return await super().do(work)


async def test_records_are_kept_while_the_database_is_away(site, tmp_path):
    sessions = AwaySessions(tmp_path / "other.db")
    try:
        audit = AuditLog(sessions, days=90, clock=site.clock)
        changes = Changes(audit, OwnWrites(clock=site.clock), site.service.people, clock=site.clock)
        await changes.take(AuditRecords(records=(a_record(),)))
        sessions.is_away = False
        assert await sessions.do(lambda store: store.audit()) == []
        await audit.flush()
        assert [row.what for row in await sessions.do(lambda store: store.audit())] == ["delete pod lab/p"]
    finally:
        sessions.close()


async def test_an_entry_that_waits_for_a_busy_database_when_the_server_stops_is_written(tmp_path):
    asked, is_free, clock = asyncio.Event(), threading.Event(), FakeClock()

    class BusySessions(Sessions):
        async def do(self, work):
            asked.set()
            return await super().do(work)

    sessions = BusySessions(tmp_path / "people.db")
    try:
        audit = AuditLog(sessions, days=90, clock=clock)
        audit.note(person="ada", method="POST", path="/", what="", address="", status=200)
        working = asyncio.create_task(sessions.do(lambda _: is_free.wait()))
        await asked.wait()
        asked.clear()
        running = asyncio.create_task(audit.run())
        await asyncio.sleep(0)
        clock.advance(WRITE_SECONDS)
        await asked.wait()
        running.cancel()
        is_free.set()
        await asyncio.wait({running, working})
        assert [row.person for row in await sessions.do(lambda store: store.audit())] == ["ada"]
    finally:
        is_free.set()
        sessions.close()


async def test_records_are_forgotten_with_the_rest_of_the_log(site):
    async with site.running():
        await send(site, a_record(), a_record("delete pod lab/old", at=NOON - timedelta(days=200)))
        removed = await site.service.sessions.do(lambda store: store.forget_audit(NOON - timedelta(days=90)))
        assert (removed, len(await entries(site))) == (1, 1)


async def test_entries_are_chosen_by_namespace(site):
    async with site.running():
        await send(
            site,
            a_record("delete pod lab/p"),
            a_record("delete pod la_/p", path="/api/v1/namespaces/la_/pods/p"),
            a_record("cordon node lab", verb="update", path="/api/v1/nodes/lab"),
            a_record("create namespace lab", path="/api/v1/namespaces/lab"),
        )

        async def of(namespace):
            rows = await site.service.sessions.do(lambda store: store.audit(namespace=namespace))
            return [row.what for row in rows]

        assert await of("lab") == ["create namespace lab", "delete pod lab/p"]
        assert await of("la_") == ["delete pod la_/p"]
