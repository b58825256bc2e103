"""Make a MapJob, wait until the server has taken it up, and bring its items there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from moorage.apimachinery.meta import owner_reference
from moorage.apimachinery.resources import CONFIGMAPS, SECRETS, Obj, Resource
from moorage.cli.console import note
from moorage.cli.mapspec import MapJobPlan
from moorage.cli.session import Problems, Session
from moorage.errors import AlreadyExists, ApiError, MoorageError, NotFound, NotReady
from moorage.model.mapjob import ACCEPTED, MAPJOBS

if TYPE_CHECKING:
    from moorage.client.maps import MapClient

ACCEPT_SECONDS = 60.0  # a server that has not taken the map up by then does not run
POLL_SECONDS = (0.1, 1.0)


async def client_of(session: Session) -> MapClient:
    """The server's maps, as the session's user."""
    from moorage.client.maps import map_client

    await session.server.address()  # a cluster without a server is told at once
    return map_client(session.server.address, clock=session.clock)


async def submit(session: Session, plan: MapJobPlan) -> Obj:
    """Create what the plan has; return the MapJob as stored. What was made before a refusal is removed again."""
    made: list[tuple[Resource, Obj]] = []
    namespace = session.namespace
    try:
        for resource, obj in ((SECRETS, plan.secret), (CONFIGMAPS, plan.config_map)):
            if obj is not None:
                made.append((resource, await _create(session, resource, obj, plan.name)))
        mapjob = await _create(session, MAPJOBS, plan.mapjob, plan.name)
    except BaseException:
        await asyncio.shield(_take_back(session, made))
        raise
    patch = {"metadata": {"ownerReferences": [owner_reference(mapjob)]}}
    for resource, obj in made:
        try:
            await session.api.patch(resource, obj["metadata"]["name"], patch, namespace)
        except ApiError as error:
            note(f"{obj['metadata']['name']} will stay when the map is deleted: {error.message}")
    return mapjob


async def _create(session: Session, resource: Resource, obj: Obj, name: str) -> Obj:
    """Create; what an earlier map of the name left behind, and nobody owns, is replaced."""
    try:
        return await session.api.create(resource, obj, session.namespace)
    except AlreadyExists as error:
        if resource is MAPJOBS:
            raise taken(name, session.namespace) from error
        found = await session.api.get(resource, obj["metadata"]["name"], session.namespace)
        if found["metadata"].get("ownerReferences"):
            raise taken(name, session.namespace) from error
        await session.api.delete(
            resource, obj["metadata"]["name"], session.namespace, uid=found["metadata"].get("uid")
        )
        return await session.api.create(resource, obj, session.namespace)
    except NotFound as error:
        if resource is not MAPJOBS:
            raise
        raise NotReady(
            "this cluster knows no MapJob",
            hint="install Moorage's definitions: moor manifests | kubectl apply -f -",
        ) from error


def taken(name: str, namespace: str) -> MoorageError:
    return Problems(
        [
            (
                f"the name {name!r} is taken in namespace {namespace}",
                f"`moor map status {name}` shows it; `moor map add {name} --resume` goes on with an upload that"
                f" broke off, `moor map delete {name}` removes it",
            )
        ]
    )


async def _take_back(session: Session, made: list[tuple[Resource, Obj]]) -> None:
    for resource, obj in reversed(made):
        with suppress(ApiError):
            await session.api.delete(
                resource, obj["metadata"]["name"], session.namespace, uid=obj["metadata"].get("uid")
            )


async def accepted(session: Session, client: MapClient, mapjob: Obj) -> Mapping[str, Any]:
    """Wait until the server has made the map of a MapJob. When it will not, the MapJob is removed again.

    Raises MoorageError with what the server says, NotReady when it says nothing in ACCEPT_SECONDS.
    """
    name, uid = mapjob["metadata"]["name"], mapjob["metadata"].get("uid")
    deadline, pause = session.clock.monotonic() + ACCEPT_SECONDS, POLL_SECONDS[0]
    try:
        while True:
            found = await session.api.get(MAPJOBS, name, session.namespace)
            told = condition(found, ACCEPTED)
            if told.get("status") == "True":
                return await client.show(session.namespace, name, patient=True)
            if told.get("status") == "False":
                raise MoorageError(
                    f"the server does not take the map {name}: {told.get('message') or told.get('reason')}"
                )
            if session.clock.monotonic() > deadline:
                raise NotReady(
                    f"the server has not taken up the map {name} in {ACCEPT_SECONDS:g} s; it was removed again",
                    hint="see whether `moor server` runs, and its log",
                )
            await session.clock.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS[1])
    except (MoorageError, asyncio.CancelledError):
        await asyncio.shield(_remove(session, name, uid))
        raise


async def _remove(session: Session, name: str, uid: str | None) -> None:
    with suppress(ApiError):
        await session.api.delete(MAPJOBS, name, session.namespace, uid=uid)


def condition(mapjob: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of a MapJob; empty when it has none of the kind."""
    found = (mapjob.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == kind), {})
