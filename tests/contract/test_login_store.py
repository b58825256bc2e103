"""Sessions, codes and audit rows: one suite for SQLite and PostgreSQL, beside the queue's own tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from moorage.errors import NotReady
from moorage.queue.store import open_store
from moorage.server.identity.sessions import AuditEntry, Session, open_sessions
from moorage.testing.clock import NOON
from moorage.testing.postgres import throwaway_postgres

HOUR = timedelta(hours=1)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """One database for the queue and for people."""
    if request.param == "sqlite":
        yield tmp_path / "both.db"
        return
    import psycopg

    try:
        with throwaway_postgres() as server:
            name = f"test_{os.urandom(4).hex()}"
            with psycopg.connect(server.url, autocommit=True) as db:
                db.execute(f"CREATE DATABASE {name}".encode())
            yield server.url.replace("/postgres?", f"/{name}?")
    except NotReady as error:
        pytest.skip(f"{error.message}: {error.hint}")


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
            at=NOON, person="ada", method="POST", path="/", status=201, what="100% of ?", address="::1"
        )
        store.note([row, row])
        (newest, first) = store.audit(person="ada")
        assert (newest.what, newest.number > first.number) == ("100% of ?", True)
        assert store.forget_audit(NOON + HOUR) == 2
        assert queue.list_maps(None) == []
        open_sessions(where).close()  # opened again: nothing to migrate
    finally:
        store.close()
        queue.close()
