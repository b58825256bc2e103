"""Executes the steps that `plan` decides for each ResourceQuota.

Admission charges new objects; this controller finds released amounts, and charges of objects that were not stored.
The count is exact: the quota is read first, then whether a charge is under way, then the objects, from the API and
not from a cache. A charge that starts later changes the quota, and the write is refused as a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import MethodNotAllowed, NotFound
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, is_deleting, key_of
from moorage_kube.resources import EVENTS, Obj, Resource
from moorage_local.controllers.catalogue import RESOURCEQUOTAS, Catalogue
from moorage_local.controllers.pods import is_finished
from moorage_local.informers import InformerSet

SOON_SECONDS = 0.1  # many objects that end together are counted together
LATER_SECONDS = 2.0  # after a charge: was what was charged stored?
UNDER_WAY = timedelta(milliseconds=50)


class QuotaController:
    """The control loop of ResourceQuotas. It watches other collections only if a quota counts their objects.

    `in_flight` returns the number of unfinished writes that are charged to the quotas of a namespace.
    """

    def __init__(
        self,
        api: Api,
        informers: InformerSet,
        clock: Clock,
        *,
        catalogue: Catalogue,
        in_flight: Callable[[str], int],
    ) -> None:
        self._api = api
        self._informers = informers
        self._clock = clock
        self._catalogue = catalogue
        self._in_flight = in_flight
        self._followed: dict[Resource, Informer] = {}
        self._quotas = informers.of(RESOURCEQUOTAS)
        self._by_namespace: dict[str, set[Key]] = {}
        self.loop: ControlLoop[Key] = ControlLoop("quota", self.reconcile, of=self._quotas)
        self._quotas.on_change(self._quota_changed)

    def _quota_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is None:
            return
        key = key_of(obj)
        if after is None:
            self._by_namespace.get(key.namespace, set()).discard(key)
            return
        self._by_namespace.setdefault(key.namespace, set()).add(key)
        if before is None or before["spec"] != after["spec"]:
            self.loop.queue.add(key)
        else:
            self.loop.queue.add_after(key, LATER_SECONDS)

    def _follow(self, resource: Resource) -> None:
        informer = self._informers.of(resource)
        if self._followed.get(resource) is informer:
            return
        self._followed[resource] = informer

        def changed(before: Obj | None, after: Obj | None) -> None:
            if before is None:
                return  # admission charged it
            keys = self._by_namespace.get(before["metadata"].get("namespace") or "")
            if keys and (after is None or _gives_back(before, after)):
                for key in keys:
                    self.loop.queue.add_after(key, SOON_SECONDS)

        informer.on_change(changed)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Write the usage of one quota."""
        from moorage_local.controllers.quota.plan import Observed, plan
        from moorage_local.quota import tracked

        try:
            quota = await self._api.get(RESOURCEQUOTAS, key.name, key.namespace)
        except NotFound:
            return None
        if is_deleting(quota):
            return None
        if self._in_flight(key.namespace):
            return UNDER_WAY
        hard = (quota.get("spec") or {}).get("hard") or {}
        objects: dict[Resource, list[Obj]] = {}
        for resource in self._catalogue.all():
            if not resource.namespaced or resource == EVENTS or not tracked(resource, hard):
                continue
            self._follow(resource)
            try:
                objects[resource] = (await self._api.list(resource, key.namespace)).items
            except (NotFound, MethodNotAllowed):
                continue  # not served any more
        decided = plan(Observed(quota=quota, objects=objects, now=self._clock.now()))
        if decided.status is not None:
            await self._api.update(RESOURCEQUOTAS, {**quota, "status": decided.status}, subresource="status")
        return decided.look_again_in


def _gives_back(before: Obj, after: Obj) -> bool:
    """Whether a change may reduce the usage of the object.

    This is so if the object finished, its deletion began, or its spec changed. A changed pod spec does not count.
    """
    if is_finished(before) != is_finished(after) or is_deleting(before) != is_deleting(after):
        return True
    return after["kind"] != "Pod" and before.get("spec") != after.get("spec")
