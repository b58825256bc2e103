"""Bind a placed pod: first its volumes, then the pod itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import Conflict
from moorage_kube.meta import Key
from moorage_kube.resources import PODS, PVCS
from moorage_local.scheduler.extenders import Extender, ExtenderError
from moorage_local.scheduler.snapshot import SELECTED_NODE, Cache, PodView

BIND_VOLUMES_SECONDS = 600.0  # kube-scheduler's bindTimeoutSeconds


class Binder:
    """`claims_changed` is set by the code that follows claims."""

    def __init__(self, api: Api, cache: Cache, extenders: Sequence[Extender], clock: Clock) -> None:
        self._api = api
        self._cache = cache
        self._extenders = extenders
        self._clock = clock
        self.claims_changed = asyncio.Event()

    async def bind_pod(self, pod: PodView, node: str) -> None:
        info = pod.info
        for extender in self._extenders:
            if not extender.config.bind_verb or not extender.is_interested(pod.obj):
                continue
            try:
                await extender.bind(namespace=info.namespace, name=info.name, uid=info.uid, node=node)
            except ExtenderError:
                if extender.config.ignorable:
                    continue
                raise
            return
        await self._api.create_subresource(
            PODS,
            info.name,
            "binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": info.name, "namespace": info.namespace, "uid": info.uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            },
            info.namespace,
        )

    async def bind_volumes(self, pod: PodView, node: str) -> None:
        """Request volumes on the node for the claims that waited for this pod, and wait for them.

        Raises TimeoutError after ten minutes, and Conflict when a provisioner rejects the node.
        """
        waiting = [
            key
            for name in pod.claims
            if (claim := self._cache.claims.get(key := Key(pod.info.namespace, name))) is not None
            and not claim.bound
        ]
        for key in waiting:
            await self._api.patch(
                PVCS,
                key.name,
                {"metadata": {"annotations": {SELECTED_NODE: node}}},
                key.namespace,
            )
        deadline = self._clock.monotonic() + BIND_VOLUMES_SECONDS
        announced: set[Key] = set()  # claims whose annotation came back to us
        while True:
            self.claims_changed.clear()
            unbound = [key for key in waiting if key in self._cache.claims and not self._cache.claims[key].bound]
            for key in unbound:
                chosen = self._cache.claims[key].selected_node
                if chosen == node:
                    announced.add(key)
                elif key in announced:
                    raise Conflict(f"the volume of claim {key} cannot be made for node {node}")
            if not unbound:
                return
            await self._within(deadline, self.claims_changed.wait())

    async def _within(self, deadline: float, waited: Coroutine[Any, Any, object]) -> None:
        """Wait for `waited`, at most until `deadline` by the clock; raises TimeoutError."""
        work = asyncio.ensure_future(waited)
        end = asyncio.ensure_future(self._clock.sleep(max(0.0, deadline - self._clock.monotonic())))
        try:
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise TimeoutError("its volumes were not bound in time")
        finally:
            for task in (work, end):
                task.cancel()
            await asyncio.gather(work, end, return_exceptions=True)
