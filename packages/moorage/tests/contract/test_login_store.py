"""Sessions, codes and audit rows: one suite for SQLite and PostgreSQL, beside the queue's own tables."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from moorage.model.workspace import WORKSPACES
from moorage.queue.store import open_store
from moorage.server.gateway.gateway import LINK_SECONDS, Gateway
from moorage.server.identity.audit import AuditLog
from moorage.server.identity.auth import Auth, User
from moorage.server.identity.logins import Logins
from moorage.server.identity.pagesessions import PageSessions
from moorage.server.identity.people import People
from moorage.server.identity.sessions import AuditEntry, Session, Sessions, open_sessions
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

HOUR = timedelta(hours=1)


@pytest.fixture
def where(database: Path | str) -> Path | str:
    """One database for the queue and for people."""
    return database


def a_session(identity: str, *, login: str = "l", person: str = "ada") -> Session:
    return Session(
        id=identity, login=login, person=person, source="oidc", created=NOON, expires=NOON + 30 * 24 * HOUR,
        used=NOON, checked=NOON, tokens_until=NOON, refresh=b"sealed",
    )  # fmt: skip


def test_both_databases_keep_people_beside_the_queue(where: Path | str) -> None:
    queue = open_store(where)
    store = open_sessions(where)
    try:
        for identity, login in (("a", "l"), ("b", "l"), ("c", "m")):
            store.add(f"mrs_{identity}", a_session(identity, login=login))
        assert store.find("mrs_a") == a_session("a")
        assert store.find("mrs_x") is None
        assert store.find("' OR 1=1 --") is None
        store.checked("l", NOON + HOUR, b"new")
        assert [one.refresh for one in store.of("ada")] == [b"new", b"new", b"sealed"]
        store.touch("a", NOON + HOUR)
        assert store.gave_token("a", NOON + 2 * HOUR)
        assert store.gave_token("a", NOON + HOUR)  # the later end counts
        found = store.get("a")
        assert found is not None
        assert (found.used, found.tokens_until) == (NOON + HOUR, NOON + 2 * HOUR)
        assert store.remove("a")
        assert not store.remove("a")
        assert not store.gave_token("a", NOON)
        assert sorted(one.id for one in store.all()) == ["b", "c"]

        store.add_code("code", b"x", NOON + HOUR, NOON)
        store.add_code("old", b"x", NOON, NOON - HOUR)
        assert (store.take_code("code", NOON), store.take_code("code", NOON)) == (b"x", None)
        assert store.take_code("old", NOON) is None

        row = AuditEntry(
            at=NOON,
            person="ada",
            method="POST",
            path="/",
            status=201,
            what="100% of ?",
            address="::1",
            client="moor",
        )
        store.note([row, row])
        (newest, first) = store.audit(person="ada")
        assert (newest.what, newest.client, newest.number > first.number) == ("100% of ?", "moor", True)
        assert store.audit(namespace="lab") == []
        assert store.forget_audit(NOON + HOUR) == 2
        assert queue.list_maps(None) == []
        open_sessions(where).close()  # opened again: nothing to migrate
    finally:
        store.close()
        queue.close()


def test_servers_that_open_an_empty_database_at_once_can_all_use_it(where: Path | str) -> None:
    at_once = (
        1 if isinstance(where, Path) else 4
    )  # a file is one server's; SQLite turns to its log without waiting
    with ThreadPoolExecutor(at_once) as threads:
        stores = list(threads.map(lambda _: open_sessions(where), range(4)))
    for store in stores:
        assert store.all() == []
        store.close()


def a_platform(api: FakeApi) -> None:
    """A workspace at an address, which ada may open."""
    api.readers |= {("ada", "lab"), ("ada", "team")}
    data = {"workspaceUrl": "http://*.apps.test", "publicUrl": "http://moor.test"}
    api.put(CONFIGMAPS, {"metadata": {"name": "moorage", "namespace": "moorage-system"}, "data": data})
    meta = {"name": "lab", "namespace": "team", "uid": "uid-of-lab", "generation": 1}
    spec = {"type": "jupyterlab", "running": True}
    api.put(WORKSPACES, {"metadata": meta, "spec": spec, "status": {"phase": "Running"}})


@pytest.mark.anyio
async def test_a_code_of_one_server_is_taken_by_another_once(where: Path | str) -> None:
    """Two servers on one database: who is sent to a workspace may arrive at either."""
    api, clock = FakeApi(), FakeClock()
    a_platform(api)
    stores = [Sessions(where), Sessions(where)]
    auth = Auth(
        api,
        page_token="page",
        people=People(api),
        logins=Logins(api, People(api), stores[0], clock=clock),
        page_sessions=PageSessions(stores[0], "page", clock=clock),
        clock=clock,
    )
    first, second = (
        Gateway(
            api,
            auth,
            people=People(api),
            sessions=sessions,
            audit=AuditLog(sessions, days=1, clock=clock),
            clock=clock,
        )
        for sessions in stores
    )
    following = asyncio.create_task(first.run())
    try:
        codes = [
            parse_qs(urlsplit(await first.link(User("ada", account="ada"), "team", "lab")).query)["code"][0]
            for _ in range(3)
        ]
        assert (taken := await second.take(codes[0])) is not None
        assert (taken.ticket.person, taken.ticket.uid) == ("ada", "uid-of-lab")
        assert [await gateway.take(codes[0]) for gateway in (first, second)] == [None, None]
        both = await asyncio.gather(first.take(codes[1]), second.take(codes[1]))
        assert sum(code is not None for code in both) == 1
        clock.advance(LINK_SECONDS)
        assert await second.take(codes[2]) is None
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        for sessions in stores:
            sessions.close()
