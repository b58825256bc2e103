"""Mark nodes by their MachineNodePool: reads and writes around the plan."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from moorage.controllers.base import Controller, Shared
from moorage.controllers.machinenodepool.plan import plan
from moorage.model.machine import MACHINES, NODE_POOLS
from moorage.model.names import MACHINE_POOL_ANNOTATION, NODE_FINALIZER
from moorage_kube.errors import NotFound
from moorage_kube.meta import Key, annotations_of, is_deleting, key_of, with_condition
from moorage_kube.moments import rfc3339
from moorage_kube.resources import NODES, Obj

log = logging.getLogger(__name__)


class MachineNodePoolController(Controller):
    """One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "machinenodepool")
        self._pools = self._follow(NODE_POOLS)
        self._machines = self._follow(MACHINES)
        self._nodes = self._follow(NODES)
        self.loop.hear(self._pools, self._pools_beside)
        self.loop.hear(self._machines, lambda obj: [Key("", obj["metadata"]["name"])])
        self.loop.hear(self._nodes, self._pools_of)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring the nodes of one pool a step closer to its spec."""
        if (cached := self._pools.get(key.name)) is None:
            return None
        pool = await self._with_finalizer(cached)
        if pool is None:
            return None
        names = [pool["metadata"]["name"] for pool in self._pools.all() if not is_deleting(pool)]
        decided = plan(pool, self._nodes.all(), names, self._families(key.name))
        for patch in decided.patches:
            with contextlib.suppress(NotFound):  # the node was deleted: nothing to clean
                await self._api.patch(NODES, patch.node, patch.patch)
        if is_deleting(pool):
            await self._release(pool)
            return None
        status = pool.get("status") or {}
        conditions = with_condition(
            status.get("conditions") or [],
            "Ready",
            "True" if decided.ready else "False",
            now=rfc3339(self._clock.now()),
            reason=decided.reason,
            message=decided.message,
        )
        wanted: dict[str, Any] = {"nodePool": list(decided.nodes), "conditions": conditions}
        if generation := pool["metadata"].get("generation"):
            wanted["observedGeneration"] = generation
        if {name: status.get(name) for name in wanted} != wanted:
            with contextlib.suppress(NotFound):
                await self._api.patch(NODE_POOLS, key.name, {"status": wanted}, subresource="status")
        return None

    async def _with_finalizer(self, pool: Obj) -> Obj | None:
        """The pool with our finalizer, which is added before any node is marked. None if the pool is deleted."""
        meta = pool["metadata"]
        held = meta.get("finalizers") or []
        if NODE_FINALIZER in held:
            return pool
        if is_deleting(pool):
            return None
        patch = {"metadata": {"finalizers": [*held, NODE_FINALIZER], "resourceVersion": meta["resourceVersion"]}}
        try:
            return await self._api.patch(NODE_POOLS, meta["name"], patch)
        except NotFound:
            return None

    async def _release(self, pool: Obj) -> None:
        meta = pool["metadata"]
        left = [finalizer for finalizer in meta.get("finalizers") or () if finalizer != NODE_FINALIZER]
        patch = {"metadata": {"finalizers": left, "resourceVersion": meta["resourceVersion"]}}
        with contextlib.suppress(NotFound):
            await self._api.patch(NODE_POOLS, meta["name"], patch)
        log.info("cleaned the nodes of a pool", extra={"pool": meta["name"]})

    def _families(self, pool: str) -> dict[str, str]:
        spec = (self._machines.get(pool) or {}).get("spec") or {}
        return {
            machine_type["name"]: str((machine_type["spec"].get("gpu") or {}).get("family") or "")
            for machine_type in spec.get("machineTypes") or ()
        }

    def _pools_beside(self, obj: Obj) -> Iterable[Key]:
        """The keys of all pools: a node that one pool releases may belong to another."""
        return {key_of(obj), *(key_of(pool) for pool in self._pools.all())}

    def _pools_of(self, node: Obj) -> Iterable[Key]:
        name = node["metadata"]["name"]
        marked_by = annotations_of(node).get(MACHINE_POOL_ANNOTATION)
        named = [
            key_of(pool)
            for pool in self._pools.all()
            if any(pool_node["name"] == name for pool_node in (pool.get("spec") or {}).get("nodePool") or ())
        ]
        return {*named, *([Key("", marked_by)] if marked_by else [])}
