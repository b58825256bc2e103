"""A fake API in which another client writes to an object between our read and our write."""

from __future__ import annotations

from typing import Any

import pytest

from moorage_kube.resources import Obj, Resource
from moorage_local.testing.fakeapi import FakeApi


class ConcurrentWriterApi(FakeApi):
    """Another client writes to an object just before each of our first `overtakes` writes."""

    def __init__(self, overtakes: int = 1) -> None:
        super().__init__()
        self.overtakes = overtakes

    def overtake(self, resource: Resource, name: str, namespace: str | None) -> None:
        if self.overtakes:
            self.overtakes -= 1
            obj = self._stored(resource, name, namespace)
            self.put(resource, {**obj, "status": {**(obj.get("status") or {}), "written": self.overtakes}})

    async def patch(
        self, resource: Resource, name: str, patch: Any, namespace: str | None = None, **options: Any
    ) -> Obj:
        self.overtake(resource, name, namespace)
        return await super().patch(resource, name, patch, namespace, **options)

    async def update(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        self.overtake(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))
        return await super().update(resource, obj, **options)


@pytest.fixture
def api() -> ConcurrentWriterApi:
    return ConcurrentWriterApi()


def stored(api: FakeApi, resource: Resource, name: str, namespace: str = "lab", **fields: Any) -> Obj:
    return api.put(resource, {"metadata": {"name": name, "namespace": namespace}} | fields)
