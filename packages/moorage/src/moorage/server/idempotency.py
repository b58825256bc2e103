"""`Idempotency-Key`: a repeated request returns the object that the first one created.

https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/

The key is stored, hashed together with its person, on the object that it created; it holds as long
as the object does. `moorage.actions.objects.create_once` compares it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request

from moorage.server.problems import Problem

HEADER = "idempotency-key"
KEY_MAX = 255


class Turns:
    """Runs requests with the same idempotency mark one after the other.

    Of two equal requests at the same time, the second runs after the first.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, mark: str) -> AsyncIterator[None]:
        """Wait until no other request with this mark runs; without a mark, do not wait."""
        if not mark:
            yield
            return
        lock = self._locks.setdefault(mark, asyncio.Lock())
        async with lock:
            yield


def request_mark(request: Request, body: msgspec.Struct) -> str:
    """The idempotency mark to store on the created object; "" if the request has no Idempotency-Key."""
    key = request.headers.get(HEADER, "")
    if len(key) > KEY_MAX:
        raise Problem(
            400, "bad_request", f"the Idempotency-Key has more than {KEY_MAX} characters", "a UUID will do"
        )
    if not key:
        return ""
    return mark_of(request.state.user.name, key, body)


def mark_of(person: str, key: str, body: msgspec.Struct) -> str:
    """The idempotency mark of the object that this user creates with this body and this Idempotency-Key."""
    who = hashlib.sha256(f"{person}\0{key}".encode()).hexdigest()[:32]
    what = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()[:32]
    return f"{who}.{what}"
