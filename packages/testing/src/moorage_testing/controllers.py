"""Controllers before an API in memory, and an API whose client is killed at a chosen write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from moorage_kube.informer import Informer, wait_synced
from moorage_kube.resources import Obj, Resource
from moorage_local.testing.fakeapi import FakeApi


class Killed(BaseException):
    """The process ends here."""


class MortalApi(FakeApi):
    """Raises `Killed` before, or `after`, the write number `dies_at`, from 1; 0: never.

    `refusals`: the error that creating an object of a resource raises.
    """

    def __init__(self, dies_at: int = 0, *, after: bool = False) -> None:
        super().__init__()
        self.writes, self.dies_at, self.after = 0, dies_at, after
        self.refusals: dict[Resource, Exception] = {}

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        with self._mortal():
            if resource in self.refusals:
                raise self.refusals[resource]
            return await super().create(resource, obj, namespace, dry_run=dry_run)

    async def patch(self, *args: Any, **options: Any) -> Obj:
        with self._mortal():
            return await super().patch(*args, **options)

    async def delete(self, *args: Any, **options: Any) -> None:
        with self._mortal():
            await super().delete(*args, **options)

    @contextlib.contextmanager
    def _mortal(self) -> Iterator[None]:
        self.writes += 1
        is_last = self.writes == self.dies_at
        if is_last and not self.after:
            raise Killed
        yield
        if is_last:
            raise Killed


def writes(api: FakeApi) -> list[str]:
    """The writes so far, such as "patch jobs train", without those of Events."""
    done = [call for call in api.calls if call.verb not in ("get", "list", "watch") and call.resource != "events"]
    return [f"{call.verb} {call.resource} {call.name}" for call in done]


@contextlib.asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines until the end of the block, then cancel them. Raises their errors."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Controller(Protocol):
    @property
    def informers(self) -> Sequence[Informer]: ...


C = TypeVar("C", bound=Controller)


@contextlib.asynccontextmanager
async def running(controller: C) -> AsyncIterator[C]:
    """Run the controller's informers; the controller, once they are in sync."""
    async with background(*(informer.run() for informer in controller.informers)):
        await wait_synced(*controller.informers)
        yield controller
