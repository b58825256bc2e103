"""Objects that are created together: all of them, or none."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from moorage.apimachinery.api import Api
from moorage.apimachinery.meta import annotations_of
from moorage.apimachinery.resources import Obj, Resource
from moorage.apimachinery.tasks import end_task
from moorage.errors import ApiError, ServerError
from moorage.model.names import REQUEST_ANNOTATION

ANSWER_SECONDS = 5.0  # an interrupted caller waits so long for the answer to what is sent already


class Together:
    """What was created so far, in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._mark = secrets.token_hex(8)
        self._made: list[tuple[Resource, Obj]] = []

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        """As `Api.create`. An object whose answer is lost, or comes after an interrupt, counts as created too."""
        creating = asyncio.ensure_future(self._create(resource, obj))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            await asyncio.wait({creating}, timeout=ANSWER_SECONDS)
            await end_task(creating, ApiError)
            raise

    async def _create(self, resource: Resource, obj: Obj) -> Obj:
        mark = obj["metadata"].setdefault("annotations", {}).setdefault(REQUEST_ANNOTATION, self._mark)
        try:
            created = await self._api.create(resource, obj, self._namespace)
        except ServerError as error:
            try:
                created = await self._api.get(resource, obj["metadata"]["name"], self._namespace)
            except ApiError:
                raise error from None
            if annotations_of(created).get(REQUEST_ANNOTATION) != mark:
                raise
        self._made.append((resource, created))
        return created

    async def remove(self) -> None:
        """Delete all that was created."""
        for resource, obj in reversed(self._made):
            meta = obj["metadata"]
            with suppress(ApiError):
                await self._api.delete(
                    resource, meta["name"], self._namespace, uid=meta.get("uid"), propagation="Background"
                )


@asynccontextmanager
async def all_or_none(api: Api, namespace: str) -> AsyncGenerator[Together]:
    """Create objects in the block: where it fails, or is interrupted, those that were created are deleted."""
    together = Together(api, namespace)
    try:
        yield together
    except BaseException:
        await asyncio.shield(together.remove())
        raise
