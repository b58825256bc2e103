"""Pods killed for their memory: the reads and writes around `moorage.decide.runs.killplan`.

Kills are recorded on ReplicaSets, StatefulSets and Jobs, so that the record outlives the pods and this process.
We may not write to other owners: there the failed pods themselves are the record, and events may be repeated
after a restart of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import assert_never

from msgspec.structs import replace

from moorage.cluster.deletedpods import DeletedPods
from moorage.controllers.base import Controller, Shared
from moorage.controllers.memorykill.plan import (
    held_message,
    kill_message,
    ledger_of,
    ledger_patch,
    observe,
    release_patch,
)
from moorage.decide.runs.killplan import Action, Release, Renew, Seen, Stop, Write, plan
from moorage.decide.runs.memorykills import BombRule, Ledger, Owner, is_gated, kill_of, owner_of, rule_of
from moorage.model.names import GUARD_LABEL, MEMORY_HELD_ANNOTATION, MEMORY_KILLS, MEMORY_LABEL
from moorage.model.policy import POLICIES, policy_for
from moorage_kube.cache import BoundedCache
from moorage_kube.errors import NotFound
from moorage_kube.informer import index_by_controller
from moorage_kube.meta import Key, controller_ref, labels_of
from moorage_kube.resources import JOBS, NAMESPACES, PODS, REPLICASETS, STATEFULSETS, Obj, Resource

log = logging.getLogger(__name__)

KEEPERS: Mapping[tuple[str, str], Resource] = {  # (API version, kind) → owners on which a ledger is stored
    ("apps/v1", "ReplicaSet"): REPLICASETS,
    ("apps/v1", "StatefulSet"): STATEFULSETS,
    ("batch/v1", "Job"): JOBS,
}
OTHERS_REMEMBERED = 4096  # owners of other kinds whose ledger is in memory only


class MemoryKillController(Controller):
    """The controller of kills for memory; one per operator. Keys: a namespace and an owner's uid."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "memorykill")
        by_owner = {"owner": index_by_controller}
        self._failed = self._follow(PODS, field_selector="status.phase=Failed", indexes=by_owner)
        self._marked = self._follow(PODS, label_selector=MEMORY_LABEL, indexes=by_owner)
        self._keepers = {
            keeper: self._follow(keeper, label_selector=MEMORY_KILLS, indexes={"uid": _uid})
            for keeper in KEEPERS.values()
        }
        self._gone = DeletedPods()
        self._failed.on_change(self._gone.changed)
        self._policies = self._follow(POLICIES)
        self._namespaces = self._follow(NAMESPACES)
        self._noted: BoundedCache[str, Ledger] = BoundedCache(OTHERS_REMEMBERED)  # by owner's uid, of other kinds
        self._reported: BoundedCache[tuple[str, str], None] = BoundedCache(OTHERS_REMEMBERED)  # (pod's uid, state)
        for pods in (self._failed, self._marked):
            self.loop.hear(pods, _owner_key)
        for keepers in self._keepers.values():
            self.loop.hear(keepers, lambda obj: [Key(obj["metadata"]["namespace"], obj["metadata"]["uid"])])
        self.loop.hear(self._policies, lambda _: self._keys())
        self.loop.hear(self._namespaces, lambda obj: self._keys(obj["metadata"]["name"]))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Apply the policy to one owner's killed and held pods; return when to look again."""
        gone = {pod["metadata"]["uid"]: pod for pod in self._gone.of(key.name)}
        pods = gone | {
            pod["metadata"]["uid"]: pod
            for informer in (self._failed, self._marked)
            for pod in informer.by_index("owner", key.name)
        }
        rule = self._rule(key.namespace)
        if not pods or (rule.level == "off" and not any(map(is_gated, pods.values()))):
            return None
        owner = next(owner for pod in pods.values() if (owner := owner_of(pod)) is not None)
        resource = KEEPERS.get((owner.api_version, owner.kind))
        noted = self._keepers[resource].by_index("uid", key.name) if resource is not None else ()
        cached = self._observe(owner, pods.values(), noted[0] if noted else None, rule)
        expected = plan(cached)
        if expected.actions or expected.look_again_in is not None:
            # actions are rare and a cache may be old: before a write, read the API again
            keeper = None
            if resource is not None:
                try:
                    keeper = await self._api.get(resource, owner.name, key.namespace)
                except NotFound:
                    return None
                if keeper["metadata"]["uid"] != owner.uid:
                    return None  # the garbage collector takes the pods
            # a kill counts even if the pod is deleted by now
            killed = gone | {uid: pod for uid, pod in pods.items() if kill_of(pod) is not None}
            pods = killed | {
                pod["metadata"]["uid"]: pod for pod in (await self._api.list(PODS, key.namespace)).items
            }
            expected = plan(self._observe(owner, pods.values(), keeper, rule))
            for action in expected.actions:
                await self._act(action, key.namespace, owner, keeper, pods, rule)
        await self._record_held(cached, pods)
        return expected.look_again_in

    # --- reads

    def _observe(self, owner: Owner, pods: Iterable[Obj], keeper: Obj | None, rule: BombRule) -> Seen:
        ledger = ledger_of(keeper) if keeper is not None else self._noted.get(owner.uid, Ledger())
        return observe(owner, pods, keeper, ledger, rule, self._clock.now())

    def _rule(self, namespace: str) -> BombRule:
        namespace_object = self._namespaces.get(namespace)
        if namespace_object is None or labels_of(namespace_object).get(GUARD_LABEL) != "enabled":
            return BombRule()
        return rule_of(policy_for(labels_of(namespace_object), self._policies.all()))

    def _keys(self, namespace: str | None = None) -> set[Key]:
        return {
            key
            for informer in (self._failed, self._marked)
            for pod in informer.all()
            if namespace in (None, pod["metadata"]["namespace"])
            for key in _owner_key(pod)
        }

    # --- writes

    async def _act(
        self,
        action: Action,
        namespace: str,
        owner: Owner,
        keeper: Obj | None,
        pods: Mapping[str, Obj],
        rule: BombRule,
    ) -> None:
        try:
            match action:
                case Write():
                    await self._write(action, namespace, owner, keeper, rule)
                case Release(pod, _, why):
                    patch = release_patch(pods[pod.uid], action)
                    await self._api.patch(PODS, pod.name, patch, namespace)
                    await self._events.record(pods[pod.uid], "Normal", "Released", f"No longer held: {why}")
                case Renew(pod):
                    await self._api.delete(PODS, pod.name, namespace, uid=pod.uid)
                    message = "Deleted, to be made of the newer revision: it was held and has never run"
                    await self._events.record(pods[pod.uid], "Normal", "Renewed", message)
                case Stop(pod, kill):
                    await self._api.delete(PODS, pod.name, namespace, uid=pod.uid)
                    log.info("stopped a replacement that slipped past", extra={"pod": f"{namespace}/{pod.name}"})
                    message = f"Deleted, to be held when it is made again: {kill}"
                    await self._events.record(pods[pod.uid], "Warning", "Stopped", message)
                case _:
                    assert_never(action)
        except NotFound:
            return  # deleted meanwhile; the watch will report it

    async def _write(
        self, action: Write, namespace: str, owner: Owner, keeper: Obj | None, rule: BombRule
    ) -> None:
        resource = KEEPERS.get((owner.api_version, owner.kind))
        if keeper is not None and resource is not None:
            made = await self._api.patch(resource, owner.name, ledger_patch(action.ledger, keeper), namespace)
            keeper["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
        else:
            self._noted.put(owner.uid, action.ledger)
        for kill in action.news:
            log.info(
                "killed for memory", extra={"owner": f"{namespace}/{owner.kind}/{owner.name}", "pod": kill.pod}
            )
            about = _involved_object(owner, keeper, namespace)
            await self._events.record(about, "Warning", "KilledForMemory", kill_message(kill, owner, rule))

    async def _record_held(self, seen: Seen, pods: Mapping[str, Obj]) -> None:
        """Record an event on each held or raised pod."""
        for pod in seen.pods:
            obj = pods.get(pod.uid)
            if obj is None or pod.state not in ("held", "raised") or (pod.state == "held" and not pod.gated):
                continue
            if (pod.uid, pod.state) in self._reported:
                continue
            self._reported.put((pod.uid, pod.state), None)
            if pod.state == "held":
                await self._events.record(obj, "Warning", "HeldForMemory", held_message(pod.name))
            else:
                notes = obj["metadata"].get("annotations") or {}
                text = notes.get(MEMORY_HELD_ANNOTATION) or "memory raised"
                await self._events.record(obj, "Normal", "MemoryRaised", text[0].upper() + text[1:])


def _involved_object(owner: Owner, keeper: Obj | None, namespace: str) -> Obj:
    """The object of the event: the Deployment and not its ReplicaSet, because users look at Deployments."""
    involved = owner
    ref = controller_ref(keeper) if keeper is not None else None
    if ref is not None and ref.get("kind") == "Deployment":
        involved = replace(
            involved, api_version=ref["apiVersion"], kind=ref["kind"], name=ref["name"], uid=ref["uid"]
        )
    meta = {"name": involved.name, "namespace": namespace, "uid": involved.uid}
    return {"apiVersion": involved.api_version, "kind": involved.kind, "metadata": meta}


def _owner_key(pod: Obj) -> Iterable[Key]:
    owner = owner_of(pod)
    return [Key(pod["metadata"].get("namespace") or "", owner.uid)] if owner is not None else []


def _uid(obj: Obj) -> Iterable[str]:
    return (obj["metadata"]["uid"],)
