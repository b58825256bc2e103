"""One cache per collection, shared by all controllers, the scheduler and the node agents of one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from moorage_kube.api import Api
from moorage_kube.informer import Index, Informer
from moorage_kube.resources import Resource


class InformerSet:
    """Informers over whole collections (every namespace), each made once.

    An informer requested while the set runs is started at once; it is usable once `Informer.synced` is set.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._informers: dict[Resource, Informer] = {}
        self._tasks: dict[Resource, asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] | None = None

    def of(self, resource: Resource, **indexes: Index) -> Informer:
        """The informer of a collection, with these indexes added to those it has.

        An index name means the same function everywhere: the first one given stays.
        """
        informer = self._informers.get(resource)
        if informer is None:
            informer = self._informers[resource] = Informer(self._api, resource, indexes=indexes)
            if self._failed is not None:
                self._start(resource, informer)
        else:
            for name, compute in indexes.items():
                informer.add_index(name, compute)
        return informer

    def known(self) -> Mapping[Resource, Informer]:
        return dict(self._informers)

    async def drop(self, resource: Resource) -> None:
        """Stop watching a collection that no longer exists; all its objects are reported as deleted."""
        task = self._tasks.pop(resource, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        informer = self._informers.pop(resource, None)
        if informer is not None:
            informer.clear()

    async def synced(self) -> None:
        """Wait until all collections that were requested so far have been listed once."""
        for informer in list(self._informers.values()):
            await informer.synced.wait()

    async def run(self) -> None:
        """Update all caches until cancelled. Only one call may run at a time."""
        self._failed = asyncio.get_running_loop().create_future()
        try:
            for resource, informer in list(self._informers.items()):
                self._start(resource, informer)
            await self._failed
        finally:
            self._failed = None
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, resource: Resource, informer: Informer) -> None:
        task = asyncio.get_running_loop().create_task(informer.run(), name=f"informer {resource}")
        task.add_done_callback(self._ended(resource))
        self._tasks[resource] = task

    def _ended(self, resource: Resource) -> Callable[[asyncio.Task[None]], None]:
        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(resource) is not task or task.cancelled():
                return
            error = task.exception()
            if error is not None and self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)  # a handler raised: a bug, not to be hidden

        return ended
