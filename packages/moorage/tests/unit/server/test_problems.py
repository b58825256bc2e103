"""An answer that breaks off after it began."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from moorage.server.problems import BrokenAnswers, on_error
from moorage_kube.errors import MoorageError, StorageError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask(failure: Exception) -> bytes:
    """What a client got of an answer that fails after its first part."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        raise failure

    async def endpoint(_: Request) -> StreamingResponse:
        return StreamingResponse(parts())

    app = Starlette(
        routes=[Route("/lines", endpoint)],
        middleware=[Middleware(BrokenAnswers)],
        exception_handlers={MoorageError: on_error},
    )
    sent: list[bytes] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        assert message.get("more_body", True), "the answer must not look whole"
        sent.append(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/lines",
        "headers": [],
        "query_string": b"",
        "asgi": {"spec_version": "2.4"},
    }
    await app(scope, receive, send)
    return b"".join(sent)


async def test_an_answer_whose_database_goes_away_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert await ask(StorageError("could not read postgresql:///moorage: it is away")) == b"first"
    assert [(each.levelno, each.message, each.path, each.error) for each in caplog.records] == [
        (logging.WARNING, "answer broke off", "/lines", "could not read postgresql:///moorage: it is away")
    ]


async def test_an_answer_that_fails_unforeseen_is_left_to_the_server_to_log() -> None:
    with pytest.raises(ZeroDivisionError):
        await ask(ZeroDivisionError())
