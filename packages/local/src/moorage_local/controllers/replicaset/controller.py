"""Executes the steps that `plan` decides for each ReplicaSet."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import ApiError
from moorage_kube.informer import index_by_controller
from moorage_kube.meta import Key, controller_ref, key_of, labels_of
from moorage_kube.resources import PODS, REPLICASETS, Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.controllers.base import NOT_YET, Writer, take_together
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.pods import is_finished
from moorage_local.controllers.replicaset.plan import (
    CreatePod,
    DeletePod,
    Observed,
    WriteStatus,
    plan,
    with_failure,
)
from moorage_local.informers import InformerSet


def index_orphans(obj: Obj) -> tuple[str, ...]:
    """Index objects without a controller by their namespace."""
    return () if controller_ref(obj) is not None else (obj["metadata"].get("namespace") or "",)


class ReplicaSetController:
    """Keys are ReplicaSets."""

    def __init__(self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock) -> None:
        self._sets = informers.of(REPLICASETS)
        self._pods = informers.of(PODS, controller=index_by_controller, orphans=index_orphans)
        self._writer = Writer(api, events, clock)
        self._clock = clock
        self.loop: ControlLoop[Key] = ControlLoop("replicaset", self.reconcile, workers=4, of=self._sets)
        self._sets.on_change(self._set_changed)
        self._pods.on_change(self._pod_changed)

    def _set_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is not None:
            self.loop.queue.add(key_of(obj))

    def _pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        for pod in (before, after):
            if pod is None:
                continue
            namespace = pod["metadata"].get("namespace") or ""
            ref = controller_ref(pod)
            if ref is not None:
                if ref.get("kind") == "ReplicaSet":
                    self.loop.queue.add(Key(namespace, ref["name"]))
            elif pod is after and labels_of(pod):
                self._offer(pod, namespace)

    def _offer(self, pod: Obj, namespace: str) -> None:
        """Queue the ReplicaSets that may adopt an orphan."""
        for replica_set in self._sets.all():
            selector = replica_set["spec"].get("selector")
            if replica_set["metadata"].get("namespace") != namespace or not selector:
                continue
            if label_selector_of(selector).matches(labels_of(pod)):
                self.loop.queue.add(key_of(replica_set))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one ReplicaSet a step closer to its spec."""
        if not await self._writer.is_ready(key):
            return NOT_YET
        owner = self._sets.get(key.name, key.namespace)
        if owner is None:
            self._writer.forget(key)
            return None
        candidates = self._pods.by_index("controller", owner["metadata"]["uid"])
        candidates += [pod for pod in self._pods.by_index("orphans", key.namespace) if not is_finished(pod)]
        sorted_out = await self._writer.claim_children(key, self._pods, owner, candidates)
        pods = (*sorted_out.owned, *sorted_out.adopt)
        decided = plan(Observed(set=owner, pods=pods, now=self._clock.now()))
        create = partial(self._writer.create_child, key, self._pods, owner)
        delete = partial(self._writer.delete_child, key, self._pods, owner)
        creations = [partial(create, action.pod) for action in decided.actions if isinstance(action, CreatePod)]
        deletions = [partial(delete, action.pod) for action in decided.actions if isinstance(action, DeletePod)]
        try:
            await take_together(creations, first=1)
        except ApiError as error:
            status = with_failure(owner, error.message, self._clock.now())
            if status is not None:
                await self._writer.write_status(key, self._sets, owner, status)
            raise
        await take_together(deletions)
        for action in decided.actions:
            if isinstance(action, WriteStatus):
                await self._writer.write_status(key, self._sets, owner, action.status)
        return decided.look_again_in
