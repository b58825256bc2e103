"""`Idempotency-Key`: who asks twice for the same gets what the first time made.

https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/

The key is kept, hashed together with its person, on the object that it made; it holds as long as the object does.
"""

from __future__ import annotations

import hashlib

import msgspec
from starlette.requests import Request

from moorage.apimachinery.api import Api
from moorage.apimachinery.meta import annotations_of, is_deleting
from moorage.apimachinery.resources import Obj, Resource
from moorage.errors import AlreadyExists, NotFound
from moorage.model.names import REQUEST_ANNOTATION
from moorage.server.problems import Problem

HEADER = "idempotency-key"
KEY_MAX = 255


def request_mark(request: Request, body: msgspec.Struct) -> str:
    """What an object bears that this request makes; empty without a key. Raises Problem 400."""
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


async def create_once(
    api: Api, resource: Resource, obj: Obj, namespace: str, mark: str, *, dry_run: bool = False
) -> Obj:
    """Create an object, or give the one that the same request made before.

    Raises AlreadyExists for one that another request made, Problem 422 for a key that came with another body.
    """
    if not mark or dry_run:
        return await api.create(resource, obj, namespace, dry_run=dry_run)
    obj["metadata"].setdefault("annotations", {})[REQUEST_ANNOTATION] = mark
    try:
        return await api.create(resource, obj, namespace)
    except AlreadyExists as taken:
        try:
            there = await api.get(resource, obj["metadata"]["name"], namespace)
        except NotFound:
            raise taken from None
        if not is_of(there, mark, taken):
            raise
        return there


def is_of(there: Obj, mark: str, cause: Exception | None = None) -> bool:
    """Whether an object was made by the request with this mark. Raises Problem 422 where its key came with another
    body."""
    who, _, what = annotations_of(there).get(REQUEST_ANNOTATION, "").partition(".")
    first, _, second = mark.partition(".")
    if not mark or who != first or is_deleting(there):
        return False
    if what != second:
        raise Problem(
            422, "key_reused", "this Idempotency-Key came with another body before", "a new request has a new key"
        ) from cause
    return True
