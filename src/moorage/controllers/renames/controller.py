"""Keep both names of renamed fields equal in stored objects: what the last release wrote is brought up to date.

Soon after an upgrade every object has the new names, so the release that drops the old ones loses nothing. It also
mends what was written while the webhook was away. `moorage.model.renamed` has the table and the decision.
"""

from __future__ import annotations

from datetime import timedelta

from moorage.apimachinery.api import Api
from moorage.apimachinery.informer import Informer
from moorage.apimachinery.informers import Informers
from moorage.apimachinery.meta import Key, key_of
from moorage.apimachinery.resources import Resource
from moorage.clock import Clock
from moorage.controllers.loop import Loop, LoopMetrics
from moorage.errors import NotFound
from moorage.model.renamed import merge_patch


class RenamesController:
    """One per operator and kind. `informers` are to be run by the caller."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        *,
        clock: Clock,
        metrics: LoopMetrics | None = None,
        informers: Informers | None = None,
    ) -> None:
        self._api, self._resource = api, resource
        self._objects: Informer = (informers or Informers()).of(api, resource)
        self.informers = (self._objects,)
        self.loop = Loop(f"renames {resource.plural}", self.reconcile, clock=clock, metrics=metrics)
        self.loop.hear(self._objects, lambda obj: [key_of(obj)])

    async def reconcile(self, key: Key) -> timedelta | None:
        """Write what one object lacks; an object that changed meanwhile is a conflict, and looked at again."""
        obj = self._objects.get(key.name, key.namespace)
        patch = merge_patch(self._resource.kind, obj) if obj is not None else None
        if obj is None or patch is None:
            return None
        version = {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}}
        try:
            await self._api.patch(self._resource, key.name, version | patch, key.namespace)
        except NotFound:
            return None
        return None
