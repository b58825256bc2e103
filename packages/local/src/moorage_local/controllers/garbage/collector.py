"""Deletes the dependents of deleted owners. Executes the steps that `owners.plan` decides.

Every collection is followed, those of custom resources too; a graph of uids has the dependencies. The caches
are not enough to know that an owner is absent: the API is asked, by name and uid.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from moorage_kube.api import Api
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import MethodNotAllowed, NotFound
from moorage_kube.meta import Key, is_deleting, key_of
from moorage_kube.resources import CRDS, EVENTS, Obj, Resource
from moorage_local.controllers.catalogue import Catalogue, resource_of_crd
from moorage_local.controllers.garbage.owners import (
    Action,
    Delete,
    DropOwners,
    Observed,
    OrphanDependents,
    Owner,
    RemoveFinalizer,
    Unblock,
    Visit,
    blocked_owners,
    owners_of,
    plan,
    waits_for_dependents,
)
from moorage_local.informers import InformerSet


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to one object of any kind."""

    resource: Resource
    key: Key

    def __str__(self) -> str:
        return f"{self.resource} {self.key}"


class GarbageCollector:
    """Deletes objects whose owners no longer exist. It also updates the catalogue after CRDs change."""

    def __init__(self, api: Api, informers: InformerSet, *, catalogue: Catalogue) -> None:
        self._api = api
        self._informers = informers
        self._catalogue = catalogue
        self._refs: dict[str, Ref] = {}  # by uid
        self._dependents: dict[str, set[Ref]] = {}  # by owner's uid
        self._blocking: dict[str, set[Ref]] = {}  # those of them that their owner waits for, by its uid
        self._custom: dict[str, Resource] = {}  # by name of the CRD
        self._dropping: set[asyncio.Task[None]] = set()
        self.loop: ControlLoop[Ref] = ControlLoop("garbage", self.reconcile, workers=4)
        for resource in catalogue.all():
            if resource != EVENTS:
                self._follow(resource)
        informers.of(CRDS).on_change(self._definition_changed)

    def _follow(self, resource: Resource) -> None:
        def changed(before: Obj | None, after: Obj | None) -> None:
            self._changed(resource, before, after)

        self._informers.of(resource).on_change(changed)

    def _definition_changed(self, before: Obj | None, after: Obj | None) -> None:
        crd = after or before
        if crd is None:
            return
        name = crd["metadata"]["name"]
        known = self._custom.get(name)
        now = resource_of_crd(after) if after is not None else None
        if known == now:
            return
        if known is not None:
            del self._custom[name]
            self._catalogue.remove(known)
            task = asyncio.get_running_loop().create_task(self._informers.drop(known))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)
        if now is not None:
            self._custom[name] = now
            self._catalogue.add(now)
            self._follow(now)

    def _changed(self, resource: Resource, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is None:
            return
        ref = Ref(resource, key_of(obj))
        old, new = owners_of(before), owners_of(after)
        blocked_before, blocked_now = blocked_owners(before), blocked_owners(after)
        if before is not None:
            uid = before["metadata"].get("uid") or ""
            if after is None or after["metadata"].get("uid") != uid:
                self._refs.pop(uid, None)
                self._visit_dependents(uid)
            for owner in old - new:
                _unlink(self._dependents, owner, ref)
            for owner in blocked_before - blocked_now:
                _unlink(self._blocking, owner, ref)
        if after is not None:
            meta = after["metadata"]
            uid = meta.get("uid") or ""
            self._refs[uid] = ref
            for owner in new:
                self._dependents.setdefault(owner, set()).add(ref)
            for owner in blocked_now:
                self._blocking.setdefault(owner, set()).add(ref)
            if is_deleting(after) and meta.get("finalizers"):
                self.loop.queue.add(ref)
                if waits_for_dependents(after) and not waits_for_dependents(before):
                    self._visit_dependents(uid)
        self._wake(ref, old, new)

    def _wake(self, ref: Ref, old: set[str], new: set[str]) -> None:
        """Queue an object whose owners have changed, and owners that may wait for it."""
        if new and old != new:
            self.loop.queue.add(ref)
        for owner in old | new:
            above = self._refs.get(owner)
            parent = self._read(above) if above is not None else None
            if above is None or parent is None or not is_deleting(parent):
                continue
            # not at each of thousands of dependents: one pass after the last one is deleted is enough
            if not (waits_for_dependents(parent) and owner in self._blocking):
                self.loop.queue.add(above)

    def _visit_dependents(self, owner: str) -> None:
        """Queue all dependents of an owner: pods without a node first.

        Otherwise they would start on the capacity that the others free, and be stopped right afterwards.
        """
        for ref in sorted(self._dependents.get(owner, ()), key=self._has_place):
            self.loop.queue.add(ref)

    def _has_place(self, ref: Ref) -> bool:
        obj = self._read(ref)
        return obj is not None and bool((obj.get("spec") or {}).get("nodeName"))

    def _read(self, ref: Ref) -> Obj | None:
        informer = self._informers.known().get(ref.resource)
        return informer.get(ref.key.name, ref.key.namespace) if informer is not None else None

    async def reconcile(self, ref: Ref) -> timedelta | None:
        obj = self._read(ref)
        if obj is None:
            return None
        refs = obj["metadata"].get("ownerReferences") or ()
        owners = {} if is_deleting(obj) else {ref["uid"]: await self._state(obj, ref) for ref in refs}
        records = [self._read(dependent) for dependent in self._dependents.get(obj["metadata"]["uid"], ())]
        dependents = [record for record in records if record is not None]
        for action in plan(Observed(obj=obj, owners=owners, dependents=dependents)):
            await self._act(ref, obj, action)
        return None

    async def _state(self, obj: Obj, ref: Obj) -> Owner:
        known = self._refs.get(ref["uid"])
        owner = self._read(known) if known is not None else None
        if owner is None:
            resource = self._catalogue.of(ref["apiVersion"], ref["kind"])
            if resource is None:
                return Owner.SOLID  # an unknown kind: leave it
            namespace = obj["metadata"].get("namespace") if resource.namespaced else None
            if resource.namespaced and not namespace:
                return Owner.SOLID  # a cluster-scoped object cannot be owned by a namespaced one
            try:
                owner = await self._api.get(resource, ref["name"], namespace)
            except NotFound:
                return Owner.ABSENT
            if owner["metadata"]["uid"] != ref["uid"]:
                return Owner.ABSENT
        if waits_for_dependents(owner):
            return Owner.WAITING
        return Owner.SOLID

    async def _act(self, ref: Ref, obj: Obj, action: Action) -> None:
        meta = obj["metadata"]
        namespace = meta.get("namespace")
        match action:
            case Delete(propagation):
                # read again: it may have got another owner since
                with contextlib.suppress(NotFound):
                    now = await self._api.get(ref.resource, meta["name"], namespace)
                    if now["metadata"]["uid"] != meta["uid"] or owners_of(now) - owners_of(obj):
                        self.loop.queue.add_after(ref, 0.2)
                        return
                    await self._api.delete(
                        ref.resource, meta["name"], namespace, uid=meta["uid"], propagation=propagation
                    )
            case DropOwners(uids):
                left = [reference for reference in meta["ownerReferences"] if reference["uid"] not in uids]
                await self._patch(ref.resource, obj, {"ownerReferences": left or None})
            case Unblock():
                open_ = [{**reference, "blockOwnerDeletion": False} for reference in meta["ownerReferences"]]
                await self._patch(ref.resource, obj, {"ownerReferences": open_})
            case OrphanDependents(dependents):
                for dependent in dependents:
                    where = self._refs.get(dependent["metadata"]["uid"])
                    if where is None:
                        continue
                    left = [
                        owner for owner in dependent["metadata"]["ownerReferences"] if owner["uid"] != meta["uid"]
                    ]
                    await self._patch(where.resource, dependent, {"ownerReferences": left or None})
            case Visit(dependents):
                below = [
                    self._refs[uid]
                    for dependent in dependents
                    if (uid := dependent["metadata"]["uid"]) in self._refs
                ]
                for below_ref in sorted(below, key=self._has_place):
                    self.loop.queue.add(below_ref)
            case RemoveFinalizer(finalizer):
                left_over = [other for other in meta.get("finalizers") or () if other != finalizer]
                await self._patch(ref.resource, obj, {"finalizers": left_over or None})
            case _:
                assert_never(action)

    async def _patch(self, resource: Resource, obj: Obj, change: Obj) -> None:
        """Change the metadata of exactly this version of the object; after a Conflict the loop tries again."""
        meta = obj["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], **change}}
        with contextlib.suppress(NotFound, MethodNotAllowed):
            await self._api.patch(resource, meta["name"], patch, meta.get("namespace"))


def _unlink(of_owner: dict[str, set[Ref]], owner: str, ref: Ref) -> None:
    refs = of_owner.get(owner)
    if refs is not None:
        refs.discard(ref)
        if not refs:
            del of_owner[owner]
