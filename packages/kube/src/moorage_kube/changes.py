"""Change an object depending on its state: read, plan, write; repeat after a conflict with another write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from moorage_kube.api import Api
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import Conflict
from moorage_kube.resources import Obj, Resource

TRIES = 6
PAUSES = DoublingDelay(0.02, 0.5)  # seconds; with six tries, 0.62 in all

T = TypeVar("T")


async def change_as_read(
    api: Api,
    resource: Resource,
    read: Callable[[], Awaitable[tuple[Obj, Obj]]],
    *,
    clock: Clock = SYSTEM,
) -> Obj:
    """Patch the object that `read` reads and plans for, and return the new object.

    `read` returns the object and its merge patch. The patch applies to the version that was read. After a conflict
    with another write, `read` is called again, at most `TRIES` times with `PAUSES` between them. Errors of `read`
    are raised at once, a Conflict too: it is a refusal.

    Raises Conflict if the object changes before each write, and the errors of the API.
    """

    async def attempt() -> Callable[[], Awaitable[Obj]]:
        obj, patch = await read()
        meta = obj["metadata"]

        async def write() -> Obj:
            version = {"resourceVersion": meta["resourceVersion"]}
            versioned = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
            return await api.patch(resource, meta["name"], versioned, meta.get("namespace"))

        return write

    return await write_as_read(attempt, clock=clock)


async def write_as_read(read: Callable[[], Awaitable[Callable[[], Awaitable[T]]]], *, clock: Clock = SYSTEM) -> T:
    """Call the function that `read` returns; after a Conflict call `read` again, as `change_as_read` does."""
    for failures in range(1, TRIES):
        write = await read()
        try:
            return await write()
        except Conflict:
            await clock.sleep(PAUSES.after(failures))
    return await (await read())()
