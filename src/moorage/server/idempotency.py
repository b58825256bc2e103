"""`Idempotency-Key`: who asks twice for the same gets what the first request created.

https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/

The key is kept, hashed together with its person, on the object that it created; it holds as long as the object
does. `moorage.actions.objects.create_once` compares it.
"""

from __future__ import annotations

import hashlib

import msgspec
from starlette.requests import Request

from moorage.server.problems import Problem

HEADER = "idempotency-key"
KEY_MAX = 255


def request_mark(request: Request, body: msgspec.Struct) -> str:
    """The mark of an object that this request creates; empty without a key. Raises Problem 400."""
    key = request.headers.get(HEADER, "")
    if len(key) > KEY_MAX:
        raise Problem(
            400, "bad_request", f"the Idempotency-Key has more than {KEY_MAX} characters", "a UUID will do"
        )
    if not key:
        return ""
    who = hashlib.sha256(f"{request.state.user.name}\0{key}".encode()).hexdigest()[:32]
    what = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()[:32]
    return f"{who}.{what}"
