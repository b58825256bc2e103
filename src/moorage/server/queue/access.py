"""Who may use which maps: those whom RBAC lets use `mapjobs.moorage.dev` in their namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from moorage.actions import maps
from moorage.api.errors import ErrorCode
from moorage.errors import ApiError, Forbidden
from moorage.model.names import GROUP
from moorage.queue.store import Stored
from moorage.server.endpoint import Call


async def map_of(call: Call[Any, Any], verb: str = "get") -> Stored:
    """The map of the path, where the caller may do this with it now. Raises NotFound and Forbidden.

    To have made it gives no right: who left a team has none in its namespace.
    """
    stored = await maps.get_map(call.context.queue, call.namespace, call.name)
    await allow(call, verb, call.namespace)
    return stored


async def allow(call: Call[Any, Any], verb: str, namespace: str) -> None:
    """Raises Forbidden. An empty namespace: all of them."""
    if not await call.context.auth.may_use_maps(call.user, verb, namespace):
        raise Forbidden(
            f"{call.user.name} may not {verb} mapjobs.{GROUP} in {namespace or 'all namespaces'}",
            hint="ask whoever manages the namespace's roles",
            code=ErrorCode.FORBIDDEN,
        )


async def while_allowed(
    call: Call[Any, Any], namespace: str, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """An answer that lasts, for as long as the caller may `get` maps there; then it ends."""
    async for chunk in chunks:
        try:
            await allow(call, "get", namespace)
        except Forbidden:
            return
        except ApiError:
            pass  # nobody can tell just now: what was begun goes on
        yield chunk
