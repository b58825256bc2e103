"""Objects that are created together: all of them, or none.

Members of a tenant may only create and replace Secrets: the response to a patch or a deletion can contain
their data. So a Secret gets an owner by a replace with the object that we sent. It is removed by giving it an
owner that does not exist: Kubernetes' garbage collector deletes it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from moorage.model.names import REQUEST_ANNOTATION
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, Forbidden, ServerError
from moorage_kube.meta import annotations_of
from moorage_kube.resources import SECRETS, Obj, Resource
from moorage_kube.tasks import end_task

ANSWER_SECONDS = 5.0  # an interrupted caller waits this long for the response to a request already sent


class AtomicCreate:
    """The objects created so far, in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._mark = secrets.token_hex(8)
        self._made: list[tuple[Resource, Obj]] = []

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        """Create an object like `Api.create`.

        It is also registered if the answer is lost or comes after an interrupt.
        """
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
                created = await self._stored(resource, obj)
            except ApiError:
                raise error from None
            if annotations_of(created).get(REQUEST_ANNOTATION) != mark:
                raise
        self._made.append((resource, created))
        return created

    async def _stored(self, resource: Resource, obj: Obj) -> Obj:
        try:
            return await self._api.get(resource, obj["metadata"]["name"], self._namespace)
        except Forbidden:
            if resource is not SECRETS:
                raise
            return await self._api.update(resource, obj)  # its name is random: if it is there, it is ours

    async def remove(self) -> None:
        """Delete all created objects."""
        for resource, obj in reversed(self._made):
            meta = obj["metadata"]
            with suppress(ApiError):
                try:
                    await self._api.delete(
                        resource, meta["name"], self._namespace, uid=meta.get("uid"), propagation="Background"
                    )
                except Forbidden:
                    if resource is not SECRETS:
                        raise
                    gone = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": str(uuid4())}
                    await set_owner(self._api, resource, obj, gone)


async def set_owner(api: Api, resource: Resource, obj: Obj, owner: Obj) -> None:
    """Set the owner of an object that this process created, so that both are deleted together. Raises ApiError."""
    await api.update(resource, obj | {"metadata": obj["metadata"] | {"ownerReferences": [owner]}})


@asynccontextmanager
async def all_or_none(api: Api, namespace: str) -> AsyncGenerator[AtomicCreate]:
    """Create objects in the `with` block. If it fails or is interrupted, the created objects are deleted."""
    batch = AtomicCreate(api, namespace)
    try:
        yield batch
    except BaseException:
        await asyncio.shield(batch.remove())
        raise
