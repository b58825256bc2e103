"""The webhook and the extender refuse a body that is too long before it has come whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import moorage
import moorage_kube
import moorage_workflows
from moorage.extender.app import BODY_BYTES, create_app
from moorage.extender.cache import ExtenderCache
from moorage.webhooks.app import _BODY_MAX_BYTES, Webhook
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

PART = b" " * 65536


class Endless:
    """A client that sends as long as somebody reads."""

    def __init__(self) -> None:
        self.read = 0

    async def __call__(self) -> dict[str, Any]:
        self.read += len(PART)
        return {"type": "http.request", "body": PART, "more_body": True}


async def ask(app: Any, path: str) -> tuple[int, dict[bytes, bytes], int]:
    """(status, headers, bytes read) of a POST whose body has no end."""
    client, answers = Endless(), []

    async def send(message: Any) -> None:
        answers.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
    }
    await app(scope, client, send)
    return answers[0]["status"], dict(answers[0]["headers"]), client.read


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
async def test_the_webhook_reads_no_review_that_is_too_long(path):
    status, headers, read = await ask(Webhook(FakeApi()).app, path)
    assert (status, headers[b"connection"]) == (413, b"close")
    assert read <= _BODY_MAX_BYTES + len(PART)


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_the_extender_reads_no_arguments_that_are_too_long(verb):
    status, headers, read = await ask(create_app(ExtenderCache(FakeApi())), f"/scheduler/{verb}")
    assert (status, headers[b"connection"]) == (413, b"close")
    assert read <= BODY_BYTES + len(PART)


def test_nobody_reads_a_body_in_another_way():
    """`request.body()`, `.json()` and `.form()` measure what they have read; RawConnection has a bound."""
    source = Path(moorage.__file__).parent
    rooms = [source / name for name in ("server", "webhooks", "extender")]
    rooms += [Path(package.__file__).parent for package in (moorage_kube, moorage_workflows)]
    whole = re.compile(r"await (?!raw\.)\w+\.(body|json|form)\(\)")
    calls = {
        f"{path}: {line.strip()}"
        for room in rooms
        for path in room.rglob("*.py")
        for line in path.read_text().splitlines()
        if whole.search(line)
    }
    assert calls == set()
