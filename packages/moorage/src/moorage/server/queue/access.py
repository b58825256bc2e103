"""Access to maps: users whom RBAC lets use `mapjobs.moorage.dev` in their namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from moorage.actions import maps
from moorage.api.errors import ErrorCode
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import GROUP
from moorage.queue.manager import milliseconds
from moorage.queue.store import Stored
from moorage.server.context import Context
from moorage.server.endpoint import Call
from moorage.server.identity.auth import User
from moorage.server.namespaces import created_at, oldest_for
from moorage_kube.errors import ApiError, Forbidden


async def map_of(call: Call[Any, Any], verb: str = "get") -> Stored:
    """The map of the path, if the caller may do this with it now. Raises NotFound and Forbidden.

    The creator of a map has no special right: a person who left a team has none in its namespace.
    """
    since = await oldest_map(call.context, call.user, verb, call.namespace)
    stored = await maps.get_map(call.context.queue, call.namespace, call.name, since=since)
    await allow(call, verb, call.namespace)
    return stored


async def oldest_maps(
    context: Context, user: User, verb: str, namespaces: Iterable[str], *, gone: float
) -> dict[str, float]:
    """`oldest_map` of each namespace; `gone` is the value for namespaces that do not exist."""
    if await context.auth.may(user, verb, MAPJOBS.plural, group=MAPJOBS.group):
        return dict.fromkeys(namespaces, 0)
    created = await created_at(context.api, namespaces)
    return {name: gone if since is None else milliseconds(since) for name, since in created.items()}


async def oldest_map(context: Context, user: User, verb: str, namespace: str) -> float:
    """The time from which on a user may do this with maps of a namespace, in milliseconds since 1970.

    See `oldest_for`.
    """
    since = await oldest_for(context, user, verb, MAPJOBS, namespace)
    return 0 if since is None else milliseconds(since)


async def allow(call: Call[Any, Any], verb: str, namespace: str) -> None:
    """Raise Forbidden unless the caller may do this with maps; namespace "" means all namespaces."""
    if not await call.context.auth.may_use_maps(call.user, verb, namespace):
        raise Forbidden(
            f"{call.user.name} may not {verb} mapjobs.{GROUP} in {namespace or 'all namespaces'}",
            hint="ask whoever manages the namespace's roles",
            code=ErrorCode.FORBIDDEN,
        )


async def while_allowed(
    call: Call[Any, Any], namespace: str, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Stream an answer; end it when the caller may no longer `get` maps in the namespace."""
    async for chunk in chunks:
        try:
            await allow(call, "get", namespace)
        except Forbidden:
            return
        except ApiError:
            pass  # rights cannot be checked now: the answer continues
        yield chunk
