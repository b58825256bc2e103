"""Pods killed for their memory, for the webhook when a new pod of the same owner comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from moorage.cluster.deletedpods import DeletedPods
from moorage.decide.runs.killanswer import Known
from moorage.decide.runs.memorykills import Ledger, known_of, ledger_from, owner_of, slot_of, wanders
from moorage.model.names import MEMORY_KILLS, MEMORY_LABEL
from moorage_kube.api import Api
from moorage_kube.informer import Informer, index_by_controller, wait_synced
from moorage_kube.meta import annotations_of
from moorage_kube.resources import JOBS, PODS, REPLICASETS, STATEFULSETS, Obj

SETTLE_SECONDS = 1.0  # of the 5 s that the API server waits
OWNERS = (REPLICASETS, STATEFULSETS, JOBS)  # kinds on which the operator keeps a ledger


class KillCaches:
    """Caches of the failed pods, of the held pods, and of the owners with a ledger.

    There are only a few of each.
    """

    def __init__(self, api: Api) -> None:
        by_owner = {"owner": index_by_controller}
        self._failed = Informer(api, PODS, field_selector="status.phase=Failed", indexes=by_owner, keep=slim)
        self._marked = Informer(api, PODS, label_selector=MEMORY_LABEL, indexes=by_owner, keep=slim)
        by_uid = {"uid": _uid}
        self._ledgers = [
            Informer(api, owner, label_selector=MEMORY_KILLS, indexes=by_uid, keep=slim) for owner in OWNERS
        ]
        self._gone = DeletedPods()
        self._failed.on_change(self._gone.changed)
        self.informers = (self._failed, self._marked, *self._ledgers)

    async def settle(self) -> None:
        """Wait a short time for the caches. Without them, the webhook admits pods as if the rule did not exist."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(wait_synced(*self.informers), SETTLE_SECONDS)

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self.informers)

    def known(self, pod: Obj) -> Known | None:
        """The kills that matter for this new pod; None if there are none."""
        owner = owner_of(pod)
        if owner is None or not wanders(owner):
            return None
        pods = {
            other["metadata"]["uid"]: other
            for informer in (self._failed, self._marked)
            for other in informer.by_index("owner", owner.uid)
        }
        pods |= {other["metadata"]["uid"]: other for other in self._gone.of(owner.uid)}
        noted = [
            owner_object for informer in self._ledgers for owner_object in informer.by_index("uid", owner.uid)
        ]
        if not pods and not noted:
            return None
        ledger = ledger_from(annotations_of(noted[0]).get(MEMORY_KILLS)) if noted else Ledger()
        kills, forgiven, held = known_of(pods.values(), ledger, owner.uid, slot_of(pod, owner))
        mine = tuple(kill for uid, kill in kills.items() if uid not in forgiven)
        return Known(kills=mine, held=len(held)) if mine else None


def slim(obj: Obj) -> Obj:
    """The fields of a pod or an owner that are read, without the large ones."""
    meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    kept: Obj = {"metadata": meta, "status": obj.get("status") or {}}
    spec = obj.get("spec") or {}
    if "containers" in spec:
        kept["spec"] = {
            key: [_slim_container(container) for container in value]
            if key in ("containers", "initContainers")
            else value
            for key, value in spec.items()
            if key in ("containers", "initContainers", "resources", "nodeName", "schedulingGates")
        }
    return kept


def _slim_container(container: Mapping[str, Any]) -> Obj:
    return {key: container[key] for key in ("name", "image", "command", "args", "resources") if key in container}


def _uid(obj: Obj) -> Iterable[str]:
    return (obj["metadata"]["uid"],)
