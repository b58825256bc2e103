"""Executes the steps that `plan` decides for each StatefulSet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import assert_never

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import Conflict, MoorageError
from moorage_kube.informer import index_by_controller
from moorage_kube.meta import Key, controller_ref, key_of, labels_of
from moorage_kube.resources import PODS, PVCS, STATEFULSETS, Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.controllers.base import NOT_YET, Writer
from moorage_local.controllers.catalogue import CONTROLLERREVISIONS
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.replicaset.controller import index_orphans
from moorage_local.controllers.statefulset.plan import Action
from moorage_local.informers import InformerSet


def owned_by(kind: str, enqueue: Callable[[Key], None]) -> Callable[[Obj | None, Obj | None], None]:
    """Return a handler that queues the controllers of this kind of each changed object."""

    def changed(before: Obj | None, after: Obj | None) -> None:
        for obj in (before, after):
            ref = controller_ref(obj) if obj is not None else None
            if obj is not None and ref is not None and ref.get("kind") == kind:
                enqueue(Key(obj["metadata"].get("namespace") or "", ref["name"]))

    return changed


class StatefulSetController:
    """Keys are StatefulSets."""

    def __init__(self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock) -> None:
        self._sets = informers.of(STATEFULSETS)
        self._pods = informers.of(PODS, controller=index_by_controller, orphans=index_orphans)
        self._revisions = informers.of(CONTROLLERREVISIONS, controller=index_by_controller)
        self._claims = informers.of(PVCS)
        self._writer = Writer(api, events, clock)
        self._clock = clock
        self.loop: ControlLoop[Key] = ControlLoop("statefulset", self.reconcile, of=self._sets)
        self._sets.on_change(self._set_changed)
        self._pods.on_change(owned_by("StatefulSet", self.loop.queue.add))
        self._pods.on_change(self._orphan_changed)
        self._revisions.on_change(owned_by("StatefulSet", self.loop.queue.add))

    def _set_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is not None:
            self.loop.queue.add(key_of(obj))

    def _orphan_changed(self, _before: Obj | None, after: Obj | None) -> None:
        """Queue the StatefulSet that may adopt a pod, by the name of the pod."""
        if after is None or controller_ref(after) is not None or not len(self._sets):
            return
        meta = after["metadata"]
        owner = self._sets.get(meta["name"].rpartition("-")[0], meta.get("namespace") or "")
        if owner is not None and label_selector_of(owner["spec"].get("selector") or {}).matches(labels_of(after)):
            self.loop.queue.add(key_of(owner))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one StatefulSet a step closer to its spec."""
        from moorage_local.controllers.statefulset.plan import (
            Observed,
            WriteStatus,
            ordinal_of,
            plan,
        )

        if not await self._writer.is_ready(key):
            return NOT_YET
        owner = self._sets.get(key.name, key.namespace)
        if owner is None:
            self._writer.forget(key)
            return None
        # observe: pods, revisions and the claims of its templates
        uid = owner["metadata"]["uid"]
        candidates = self._pods.by_index("controller", uid)
        candidates += [
            pod for pod in self._pods.by_index("orphans", key.namespace) if ordinal_of(key.name, pod) is not None
        ]
        sorted_out = await self._writer.claim_children(key, self._pods, owner, candidates)
        names = [template["metadata"]["name"] for template in owner["spec"].get("volumeClaimTemplates") or ()]
        there = {
            claim["metadata"]["name"]: claim
            for claim in (self._claims.all() if names else ())
            if claim["metadata"].get("namespace") == key.namespace
        }
        # decide
        decided = plan(
            Observed(
                set=owner,
                pods=(*sorted_out.owned, *sorted_out.adopt),
                revisions=self._revisions.by_index("controller", uid),
                claims=there,
                now=self._clock.now(),
            )
        )
        # act; a refusal ends the steps but the status
        refused: MoorageError | None = None
        for action in decided.actions:
            if refused is not None and not isinstance(action, WriteStatus):
                continue  # the status is written all the same
            try:
                await self._act(key, owner, action)
            except MoorageError as error:
                if refused is not None:
                    raise
                refused = error
        if refused is not None:
            raise refused
        return decided.look_again_in

    async def _act(self, key: Key, owner: Obj, action: Action) -> None:
        from moorage_local.controllers.revisions import CreateRevision, DeleteRevision, RenumberRevision
        from moorage_local.controllers.statefulset.plan import (
            CreateClaim,
            CreatePod,
            DeletePod,
            OwnClaim,
            WriteStatus,
        )

        writer = self._writer
        match action:
            case CreateRevision(revision):
                await writer.create_child(key, self._revisions, owner, revision, exact=True)
            case RenumberRevision(revision, number):
                await writer.patch_child(key, self._revisions, revision, {"revision": number})
            case DeleteRevision(revision):
                await writer.delete_child(key, self._revisions, owner, revision)
            case CreatePod(pod):
                await writer.create_child(key, self._pods, owner, pod, exact=True)
            case DeletePod(pod):
                await writer.delete_child(key, self._pods, owner, pod)
            case CreateClaim(claim):
                await writer.create_claim(key, self._claims, owner, claim)
            case OwnClaim(claim, owners):
                meta = claim["metadata"]
                same = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
                change = {"metadata": same | {"ownerReferences": owners or None}}
                if not await writer.patch_child(key, self._claims, claim, change):
                    raise Conflict(f"claim {meta['name']} changed meanwhile")
            case WriteStatus(status):
                await writer.write_status(key, self._sets, owner, status)
            case _:
                assert_never(action)
