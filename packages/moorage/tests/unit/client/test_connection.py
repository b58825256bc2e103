"""How long a request is repeated, and the words for a token that the server refuses."""

from __future__ import annotations

import pytest

from moorage.client.connection import Connection, at_url
from moorage.client.errors import no_answer
from moorage_kube.errors import ServerError, Unauthorized
from moorage_kube.testing.clock import QuickClock

pytestmark = pytest.mark.anyio
HERE = "http://127.0.0.1:8080"


class Answered:
    headers = {}

    def __init__(self, status):
        self.status = status

    async def read(self):
        return b'{"code": "unauthorized", "message": "no valid token"}' if self.status == 401 else b"{}"

    def close(self):
        pass


class Scripted:
    """A transport with the given answers; after them, no program listens at the address."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)

    async def request(self, method, url, **_):
        if self.statuses:
            return Answered(self.statuses.pop(0))
        refused = ConnectionRefusedError(111, "Connect call failed")
        raise no_answer(HERE, refused) from refused

    async def close(self):
        pass


async def asked(statuses, times):
    """The error of the last request, and the seconds until it."""
    clock = QuickClock()
    connection = Connection(at_url(HERE, "secret"), clock=clock, transport=Scripted(*statuses))
    try:
        for _ in range(times - 1):
            await connection.json("GET", "/api/v1/jobs")
        began = clock.monotonic()
        with pytest.raises((ServerError, Unauthorized)) as raised:
            await connection.json("GET", "/api/v1/jobs")
        return raised.value, clock.monotonic() - began
    finally:
        await connection.close()


async def test_a_stopped_server_is_reported_at_once_with_the_way_to_start_it():
    error, seconds = await asked([], 1)
    assert seconds <= 1.5
    assert error.message == f"Moorage's server at {HERE} does not answer: [Errno 111] Connect call failed"
    assert error.hint == "if it is the server of `moor up`: run `moor status`, then `moor up`"


@pytest.mark.parametrize("program", ["MOORAGE_RUN", "MOORAGE_MAP"])
async def test_a_run_awaits_a_server_that_restarts(program, monkeypatch):
    monkeypatch.setenv(program, "train")
    assert (await asked([], 1))[1] > 20


async def test_a_server_that_has_answered_is_awaited():
    assert (await asked([200], 2))[1] > 20


async def test_a_refused_token_is_named_by_its_source():
    error, _ = await asked([401], 1)
    assert error.message == f"{HERE} refused the token from the login of this machine: no valid token"
    assert error.hint == f"log in: moor login {HERE}"
