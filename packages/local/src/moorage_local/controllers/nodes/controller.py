"""Watches the nodes' leases, writes conditions and taints, evicts pods from lost nodes.

One loop per node and one per pod: the first writes the plan, the second deletes pods whose
toleration of a NoExecute taint has expired.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import assert_never

from moorage_kube.api import Api
from moorage_kube.awaketime import AwakeTime
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import NotFound
from moorage_kube.informer import index_by_node
from moorage_kube.meta import Key, key_of
from moorage_kube.resources import LEASES, NODES, PODS, Obj
from moorage_local.controllers.base import Writer
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.nodes.plan import (
    Observed,
    SetTaints,
    Tell,
    WriteStatus,
    disrupted_conditions,
    leaves_at,
    not_ready_conditions,
    plan,
)
from moorage_local.informers import InformerSet

LEASE_NAMESPACE = "kube-node-lease"


class NodeController:
    """The control loop of nodes. A node that is silent for `grace` gets the Ready condition Unknown.

    Time when this machine is not `awake` does not count.
    """

    def __init__(
        self,
        api: Api,
        informers: InformerSet,
        events: EventRecorder,
        clock: Clock,
        *,
        grace: timedelta,
        awake: AwakeTime,
    ) -> None:
        self._api = api
        self._events = events
        self._clock = clock
        self._grace = grace
        self._awake = awake
        self._nodes = informers.of(NODES)
        self._leases = informers.of(LEASES)
        self._pods = informers.of(PODS, node=index_by_node)
        self._writer = Writer(api, events, clock)
        self._heard: dict[str, tuple[str, float]] = {}  # node → its last heartbeat, and the awake second of it
        self.nodes: ControlLoop[Key] = ControlLoop("nodes", self.reconcile_node)
        self.evictions: ControlLoop[Key] = ControlLoop("evictions", self.reconcile_pod)
        self._nodes.on_change(self._node_changed)
        self._leases.on_change(self._lease_changed)
        self._pods.on_change(self._pod_changed)

    def _node_changed(self, before: Obj | None, after: Obj | None) -> None:
        node = after or before
        if node is None:
            return
        self.nodes.queue.add(key_of(node))
        if after is None:
            self._heard.pop(node["metadata"]["name"], None)
        elif _taints(before) != _taints(after):
            for pod in self._pods.by_index("node", node["metadata"]["name"]):
                self.evictions.queue.add(key_of(pod))

    def _lease_changed(self, _before: Obj | None, after: Obj | None) -> None:
        if after is not None and after["metadata"].get("namespace") == LEASE_NAMESPACE:
            self.nodes.queue.add(Key("", after["metadata"]["name"]))

    def _pod_changed(self, _before: Obj | None, after: Obj | None) -> None:
        if after is not None and (after.get("spec") or {}).get("nodeName"):
            self.evictions.queue.add(key_of(after))

    async def reconcile_node(self, key: Key) -> timedelta | None:
        if not await self._writer.is_ready(key):
            return timedelta(milliseconds=200)
        node = self._nodes.get(key.name)
        if node is None:
            self._writer.forget(key)
            return None
        now = self._clock.now()
        decided = plan(Observed(node=node, silent=self._silent(node), now=now, grace=self._grace))
        for action in decided.actions:
            match action:
                case WriteStatus(conditions):
                    status = {**(node.get("status") or {}), "conditions": list(conditions)}
                    node = await self._writer.write_status(key, self._nodes, node, status)
                case SetTaints(taints):
                    meta = node["metadata"]
                    patch = {
                        "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
                        "spec": {"taints": list(taints) or None},
                    }
                    node = await self._api.patch(NODES, key.name, patch)
                    self._writer.fresh.wrote(key, self._nodes, node)
                case Tell(type, reason, message):
                    self._events.event(node, type, reason, message)
                case _:
                    assert_never(action)
        if decided.pods_not_ready:
            await self._mark_pods(key, now)
        return decided.look_again_in

    def _silent(self, node: Obj) -> timedelta:
        """Return how long the lease and the node's own heartbeat have not changed; zero at first.

        Only the time when this machine was awake counts. So after a restart of the control plane, all nodes
        have their full grace period again.
        """
        now = self._awake.seconds()
        name = node["metadata"]["name"]
        lease = self._leases.get(name, LEASE_NAMESPACE)
        beats = [str((lease.get("spec") or {}).get("renewTime"))] if lease is not None else []
        beats += [
            str(condition.get("lastHeartbeatTime"))
            for condition in (node.get("status") or {}).get("conditions") or ()
            if condition.get("type") == "Ready"
        ]
        heard = " ".join(beats)
        known = self._heard.get(name)
        if known is None or known[0] != heard:
            self._heard[name] = (heard, now)
            return timedelta(0)
        return timedelta(seconds=now - known[1])

    async def _mark_pods(self, key: Key, now: datetime) -> None:
        for pod in self._pods.by_index("node", key.name):
            conditions = not_ready_conditions(pod, now)
            if conditions is not None:
                await self._set_conditions(key, pod, conditions)

    async def reconcile_pod(self, key: Key) -> timedelta | None:
        """Delete a pod whose toleration of its node's taints has expired."""
        pod = self._pods.get(key.name, key.namespace)
        node = self._nodes.get((pod.get("spec") or {}).get("nodeName") or "") if pod is not None else None
        if pod is None or node is None:
            return None
        now = self._clock.now()
        due = leaves_at(pod, _taints(node), now, self._awake.slept_since)
        if due is None:
            return None
        if due > now:
            return due - now
        self._events.event(pod, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {key}")
        message = "Taint manager: deleting due to NoExecute taint"
        conditions = disrupted_conditions(pod, "DeletionByTaintManager", message, now)
        if await self._set_conditions(key, pod, conditions):
            await self._writer.delete_child(key, self._pods, pod, pod)
        return None

    async def _set_conditions(self, key: Key, pod: Obj, conditions: list[Obj]) -> bool:
        """Write a pod's conditions; False when the pod was deleted."""
        try:
            await self._writer.write_status(
                key, self._pods, pod, {**(pod.get("status") or {}), "conditions": conditions}
            )
        except NotFound:
            return False
        return True


def _taints(node: Obj | None) -> list[Obj]:
    return list(((node or {}).get("spec") or {}).get("taints") or ())
