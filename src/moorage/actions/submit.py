"""Create what a run needs, in an order that leaves nothing half-made behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from moorage.apimachinery.api import Api
from moorage.apimachinery.meta import annotations_of, labels_of, owner_reference
from moorage.apimachinery.moments import moment
from moorage.apimachinery.resources import JOBS, PVCS, SECRETS, Obj, Resource
from moorage.clock import Clock
from moorage.decide.runs.request import RunPlan
from moorage.errors import AlreadyExists, ApiError, NotFound
from moorage.model.names import REQUEST_ANNOTATION, RUN_LABEL

LEFTOVER_AGE = timedelta(minutes=1)  # a Secret older than this without a Job: who made it was killed half-way
OWN_TRIES = 3


async def submit(api: Api, plan: RunPlan, namespace: str, clock: Clock, *, note: Callable[[str], None]) -> Obj:
    """Create claims, Secret and Job; return the Job as stored. `note` is told what went wrong after that.

    When the Job is refused, or the caller is interrupted, what was created before it is removed again. A
    checkpoint volume that was there before stays, whatever happens. Raises AlreadyExists for a name that is taken.
    """
    if plan.job is None:
        raise ValueError("a plan with problems cannot be submitted")
    made: list[tuple[Resource, Obj]] = []
    try:
        for claim in plan.claims:
            with suppress(AlreadyExists):
                made.append((PVCS, await api.create(PVCS, claim, namespace)))
        if plan.secret is not None:
            made.append((SECRETS, await _create_secret(api, plan.secret, plan.name, namespace, clock)))
        job = await _create_job(api, plan.job, plan.name, namespace)
    except BaseException:
        await asyncio.shield(_take_back(api, made, namespace))
        raise
    if plan.secret is not None:
        await _own(api, plan.secret["metadata"]["name"], job, namespace, note)
    return job


async def _create_job(api: Api, job: Obj, run: str, namespace: str) -> Obj:
    try:
        return await api.create(JOBS, job, namespace)
    except AlreadyExists as error:
        raise _taken(run, namespace) from error


async def _create_secret(api: Api, secret: Obj, run: str, namespace: str, clock: Clock) -> Obj:
    """Create the run's Secret; one left behind, by who was killed half-way or by this request, is replaced."""
    name = secret["metadata"]["name"]
    try:
        return await api.create(SECRETS, secret, namespace)
    except AlreadyExists as error:
        try:
            found = await api.get(SECRETS, name, namespace)
        except NotFound:
            return await api.create(SECRETS, secret, namespace)
        created = moment(found["metadata"].get("creationTimestamp"))
        is_leftover = (
            labels_of(found).get(RUN_LABEL) == run
            and not found["metadata"].get("ownerReferences")
            and (_is_same_request(found, secret) or (created is not None and clock.now() - created > LEFTOVER_AGE))
        )
        if not is_leftover:
            raise _taken(run, namespace) from error
        await api.delete(SECRETS, name, namespace, uid=found["metadata"]["uid"])
        return await api.create(SECRETS, secret, namespace)


async def _own(api: Api, secret: str, job: Obj, namespace: str, note: Callable[[str], None]) -> None:
    """Let the Secret go with the Job. The run is under way: a failure here is said, not raised."""
    patch = {"metadata": {"ownerReferences": [owner_reference(job)]}}
    for left in reversed(range(OWN_TRIES)):
        try:
            await api.patch(SECRETS, secret, patch, namespace)
            return
        except ApiError as error:
            if not left:
                note(f"the Secret {secret} will stay when the run is deleted: {error.message}")


async def _take_back(api: Api, made: list[tuple[Resource, Obj]], namespace: str) -> None:
    for resource, obj in reversed(made):
        meta = obj["metadata"]
        with suppress(ApiError):
            await api.delete(resource, meta["name"], namespace, uid=meta.get("uid"))


def _is_same_request(found: Obj, secret: Obj) -> bool:
    mark = annotations_of(secret).get(REQUEST_ANNOTATION)
    return mark is not None and annotations_of(found).get(REQUEST_ANNOTATION) == mark


def _taken(run: str, namespace: str) -> AlreadyExists:
    return AlreadyExists(
        f"the name {run!r} is taken in namespace {namespace}",
        hint=f"choose another, or remove the old run: moor cancel --delete {run}",
    )
