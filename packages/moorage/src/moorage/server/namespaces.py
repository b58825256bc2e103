"""Separate the records of a namespace from those of earlier namespaces with the same name.

Records outlive their namespace, and another team may create a namespace with the same name. A record
that is older than the namespace belongs to an earlier one: only users with the right in all
namespaces see it. Whole seconds are enough: Kubernetes takes at least five to delete a namespace
(`namespaceDeletionGracePeriod` of its controller), the local cluster one after it is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from msgspec.structs import replace

from moorage.decide.usage.intervals import Interval
from moorage.model.names import RECORDS_SINCE_ANNOTATION
from moorage.server.identity.auth import Auth, User
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, NotFound, ServerError
from moorage_kube.meta import annotations_of
from moorage_kube.moments import moment, readable_moment
from moorage_kube.resources import NAMESPACES, Obj, Resource

FEW = 4  # namespaces that are read one by one; of more, all are listed
DELETED = (
    "{} (deleted)"  # in place of a namespace's name; the blanks make it invalid, so roles cannot exist for it
)


class Reading(Protocol):
    """The parts of a server's context that this module reads. Importing the context would be circular."""

    @property
    def auth(self) -> Auth: ...
    @property
    def api(self) -> Api | None: ...


async def records_since(api: Api | None, namespace: str) -> datetime | None:
    """The time when the namespace was created, or the one in its annotation; None: it does not exist.

    Then rights are enough: its roles are deleted with it. Raises ServerError while no API server
    answers.
    """
    if api is None or not namespace:
        return None
    try:
        return _since(await api.get(NAMESPACES, namespace))
    except NotFound:
        return None
    except ApiError as error:
        raise ServerError(f"namespace {namespace} cannot be read: {error.message}", status=503) from error


def _since(namespace: Obj) -> datetime | None:
    stated = readable_moment(annotations_of(namespace).get(RECORDS_SINCE_ANNOTATION))
    return stated or moment(namespace["metadata"].get("creationTimestamp"))


async def oldest_for(
    context: Reading, user: User, verb: str, resource: Resource, namespace: str
) -> datetime | None:
    """The time from which on a user may see the records of a namespace; None if all. Raises ApiError.

    The result does not grant any right.
    """
    if await context.auth.may(user, verb, resource.plural, group=resource.group):
        return None
    return await records_since(context.api, namespace)


def is_too_old(created: datetime | None, since: datetime | None) -> bool:
    """Whether a record belongs to an earlier namespace of the same name; True if a record has no time."""
    return since is not None and (created is None or created < since)


async def created_at(api: Api, namespaces: Iterable[str]) -> Mapping[str, datetime | None]:
    """`records_since` of each namespace; one request if there are many namespaces. Raises ServerError."""
    names = sorted(set(namespaces))
    if len(names) <= FEW:
        return dict(zip(names, await asyncio.gather(*(records_since(api, name) for name in names)), strict=True))
    try:
        listed = (await api.list(NAMESPACES)).items
    except ApiError as error:
        raise ServerError(f"namespaces cannot be listed: {error.message}", status=503) from error
    known = {obj["metadata"]["name"]: _since(obj) for obj in listed}
    return {name: known.get(name) for name in names}


async def by_namespace(api: Api, intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals, with those of earlier namespaces renamed: they are neither shown nor charged to the
    owner of the present namespace. Raises ServerError.
    """
    intervals = list(intervals)
    created = await created_at(api, (interval.namespace for interval in intervals))
    return [
        replace(interval, namespace=DELETED.format(interval.namespace))
        if is_too_old(interval.started_at, created[interval.namespace])
        else interval
        for interval in intervals
    ]
