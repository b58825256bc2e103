"""Executes the steps that `plan` decides for each Deployment."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.informer import index_by_controller
from moorage_kube.meta import Key, controller_ref, key_of, labels_of
from moorage_kube.resources import DEPLOYMENTS, PODS, REPLICASETS, Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.controllers.base import NOT_YET, Writer
from moorage_local.controllers.deployment.plan import (
    Action,
    CreateSet,
    DeleteSet,
    Observed,
    SetRevision,
    UpdateSet,
    WriteStatus,
    plan,
)
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.pods import is_finished
from moorage_local.controllers.replicaset.controller import index_orphans
from moorage_local.informers import InformerSet


class DeploymentController:
    """Keys are Deployments."""

    def __init__(self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock) -> None:
        self._api = api
        self._events = events
        self._clock = clock
        self._deployments = informers.of(DEPLOYMENTS)
        self._sets = informers.of(REPLICASETS, controller=index_by_controller, orphans=index_orphans)
        self._pods = informers.of(PODS, controller=index_by_controller)
        self._writer = Writer(api, events, clock)
        self.loop: ControlLoop[Key] = ControlLoop("deployment", self.reconcile, of=self._deployments)
        self._deployments.on_change(self._deployment_changed)
        self._sets.on_change(self._set_changed)
        self._pods.on_change(self._pod_changed)

    def _deployment_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is not None:
            self.loop.queue.add(key_of(obj))

    def _set_changed(self, before: Obj | None, after: Obj | None) -> None:
        for replica_set in (before, after):
            if replica_set is None:
                continue
            ref, namespace = controller_ref(replica_set), replica_set["metadata"].get("namespace") or ""
            if ref is not None:
                if ref.get("kind") == "Deployment":
                    self.loop.queue.add(Key(namespace, ref["name"]))
            elif replica_set is after:
                self._offer(replica_set, namespace)

    def _offer(self, obj: Obj, namespace: str) -> None:
        for deployment in self._deployments.all():
            selector = deployment["spec"].get("selector")
            if deployment["metadata"].get("namespace") != namespace or not selector:
                continue
            if label_selector_of(selector).matches(labels_of(obj)):
                self.loop.queue.add(key_of(deployment))

    def _pod_changed(self, _before: Obj | None, after: Obj | None) -> None:
        """Queue the Deployment of a deleted or ended pod: a Recreate may wait for it."""
        for pod in (_before, after):
            ref = controller_ref(pod) if pod is not None else None
            if pod is None or ref is None or ref.get("kind") != "ReplicaSet":
                continue
            if after is not None and not is_finished(after):
                return
            namespace = pod["metadata"].get("namespace") or ""
            replica_set = self._sets.get(ref["name"], namespace)
            above = controller_ref(replica_set) if replica_set is not None else None
            if above is not None and above.get("kind") == "Deployment":
                self.loop.queue.add(Key(namespace, above["name"]))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one Deployment a step further in its rollout."""
        if not await self._writer.is_ready(key):
            return NOT_YET
        deployment = self._deployments.get(key.name, key.namespace)
        if deployment is None:
            self._writer.forget(key)
            return None
        candidates = self._sets.by_index("controller", deployment["metadata"]["uid"])
        candidates += self._sets.by_index("orphans", key.namespace)
        sorted_out = await self._writer.claim_children(key, self._sets, deployment, candidates)
        if sorted_out.adopt or sorted_out.release:
            return timedelta(milliseconds=100)  # decide on the result
        live = {}
        for replica_set in sorted_out.owned:
            uid = replica_set["metadata"]["uid"]
            live[uid] = sum(1 for pod in self._pods.by_index("controller", uid) if not is_finished(pod))
        decided = plan(
            Observed(deployment=deployment, sets=sorted_out.owned, now=self._clock.now(), live_pods=live)
        )
        for action in decided.actions:
            deployment = await self._act(key, deployment, action)
        return decided.look_again_in

    async def _act(self, key: Key, deployment: Obj, action: Action) -> Obj:
        match action:
            case CreateSet(made):
                await self._writer.create_child(key, self._sets, deployment, made)
                size, name = made["spec"]["replicas"], made["metadata"]["name"]
                if size:
                    self._tell(deployment, f"Scaled up replica set {name} from 0 to {size}")
            case UpdateSet(replica_set, patch, event):
                if await self._writer.patch_child(key, self._sets, replica_set, patch) and event:
                    self._tell(deployment, event)
            case DeleteSet(replica_set):
                await self._writer.delete_child(key, self._sets, deployment, replica_set)
            case SetRevision(revision):
                change = {
                    "metadata": {
                        "uid": deployment["metadata"]["uid"],
                        "annotations": {"deployment.kubernetes.io/revision": revision},
                    }
                }
                new = await self._api.patch(DEPLOYMENTS, key.name, change, key.namespace)
                self._writer.fresh.wrote(key, self._deployments, new)
                return new
            case WriteStatus(status):
                return await self._writer.write_status(key, self._deployments, deployment, status)
            case _:
                assert_never(action)
        return deployment

    def _tell(self, deployment: Obj, message: str) -> None:
        self._events.event(deployment, "Normal", "ScalingReplicaSet", message)
