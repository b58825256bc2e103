"""What the extender knows: GPUs per node, total and used, kept current by informers.

Counters are moved by each change, so an answer looks only at the nodes it is asked about.

What counts as used: pods bound to the node and not finished, and pods with the node as `status.nominatedNodeName`,
for which the scheduler is making room there. What the extender itself scored highest does *not* count: the
scheduler decides, with other scores, other extenders and a random choice between equals, and does not tell.

Instead the extender waits. kube-scheduler works on one pod at a time, so when it asks about the next pod, the one
before is already placed and its binding is on its way to our cache. `settled` waits for such pods, each at most
`settle_seconds` after it was asked about. Without it two pods made at once would both be scored on an empty
cluster and be spread over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from moorage.apimachinery.api import Api
from moorage.apimachinery.informer import Informer
from moorage.apimachinery.meta import Key, key_of, labels_of
from moorage.apimachinery.resources import NODES, PODS, Obj
from moorage.apimachinery.scheduling import parse_node, pod_requests
from moorage.clock import SYSTEM, Clock
from moorage.decide.packing import GpuNode, gpus_asked
from moorage.model.names import GPU_TYPE_LABELS

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.2  # well under the 500 ms we ask the scheduler to wait for us; a binding takes some 10 ms


@dataclass(frozen=True, slots=True)
class _Hold:
    """GPUs that a pod holds or was promised on a node."""

    node: str
    gpus: Mapping[str, int]


class ExtenderCache:
    """GPUs of every node. `run` keeps it current until cancelled; `synced` is set once it is whole."""

    def __init__(self, api: Api, *, clock: Clock = SYSTEM, settle_seconds: float = SETTLE_SECONDS) -> None:
        self.clock = clock
        self._settle_seconds = settle_seconds
        self._nodes = Informer(api, NODES)
        self._pods = Informer(api, PODS)
        self._totals: dict[str, dict[str, int]] = {}
        self._types: dict[str, str] = {}
        self._used: dict[str, dict[str, int]] = {}  # also of nodes not seen yet
        self._views: dict[str, GpuNode] = {}  # made when asked for, dropped when the node changes
        self._holds: dict[Key, _Hold] = {}
        self._unsettled: dict[str, float] = {}  # uid of a pod asked about → until when it is waited for
        self._moved = asyncio.Event()
        self._heard = clock.monotonic()
        self._versions = ("", "")
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Follow nodes and pods until cancelled."""
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)
        tasks = [asyncio.create_task(one.run()) for one in (self._nodes, self._pods)]
        try:
            for one in (self._nodes, self._pods):
                waiter = asyncio.create_task(one.synced.wait())
                await asyncio.wait([waiter, *tasks], return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
                for task in tasks:
                    if task.done():
                        task.result()  # raises
            self.age_seconds()
            self.synced.set()
            log.info("the extender knows the cluster", extra={"nodes": len(self._nodes), "pods": len(self._pods)})
            await asyncio.gather(*tasks)
        finally:
            self.synced.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def gpu_node(self, name: str, *, without: Key | None = None) -> GpuNode | None:
        """The node's GPUs, or None when it is not known; `without`: do not count that pod's own nomination."""
        node = self._views.get(name)
        if node is None:
            total = self._totals.get(name)
            if total is None:
                return None
            node = GpuNode(name=name, total=total, used=dict(self._used.get(name, {})))
            self._views[name] = node
        hold = self._holds.get(without) if without is not None else None
        if hold is None or hold.node != name:
            return node
        used = {resource: count - hold.gpus.get(resource, 0) for resource, count in node.used.items()}
        return GpuNode(name=name, total=node.total, used=used)

    def nodes(self) -> list[tuple[GpuNode, str]]:
        """Every node with GPUs, and the type of its GPUs ("unknown" when no label tells)."""
        return [
            (GpuNode(name=name, total=total, used=self._used.get(name, {})), self._types.get(name, "unknown"))
            for name, total in self._totals.items()
            if total
        ]

    def age_seconds(self) -> float:
        """Seconds since a change or bookmark of nodes or pods was last heard of, as far as was looked."""
        versions = (self._nodes.resource_version, self._pods.resource_version)
        if versions != self._versions:
            self._versions = versions
            self._heard = self.clock.monotonic()
        return self.clock.monotonic() - self._heard

    def asked_about(self, uid: str) -> None:
        """The scheduler is about to place this pod: wait for it before the next."""
        if uid and self._settle_seconds > 0:
            self._unsettled[uid] = self.clock.monotonic() + self._settle_seconds

    async def settled(self, uid: str) -> bool:
        """Wait until the pods asked about before this one were seen placed, changed or gone; False when the time
        given to one of them ran out."""
        whole = True
        self._unsettled.pop(uid, None)
        while self._unsettled:
            self._moved.clear()
            left = max(self._unsettled.values()) - self.clock.monotonic()
            if left <= 0:
                self._unsettled.clear()
                return False
            waiting = asyncio.ensure_future(self._moved.wait())
            end = asyncio.ensure_future(self.clock.sleep(left))
            try:
                await asyncio.wait({waiting, end}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in (waiting, end):
                    one.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await one
            now = self.clock.monotonic()
            for late in [other for other, until in self._unsettled.items() if until <= now]:
                del self._unsettled[late]
                whole = False
        return whole

    def _settle(self, obj: Obj) -> None:
        if self._unsettled.pop(obj["metadata"].get("uid") or "", None) is not None:
            self._moved.set()

    def _node_changed(self, before: Obj | None, after: Obj | None) -> None:
        if after is None:
            if before is not None:
                self._views.pop(before["metadata"]["name"], None)
                self._totals.pop(before["metadata"]["name"], None)
                self._types.pop(before["metadata"]["name"], None)
            return
        try:
            node = parse_node(after)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a node cannot be read", extra={"node": str(key_of(after)), "error": repr(error)})
            return
        self._views.pop(node.name, None)
        self._totals[node.name] = gpus_asked(node.allocatable)
        kind = next((labels_of(after)[label] for label in GPU_TYPE_LABELS if label in labels_of(after)), None)
        if kind is None:
            self._types.pop(node.name, None)
        else:
            self._types[node.name] = kind

    def _pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after if after is not None else before
        if obj is None:
            return
        key = key_of(obj)
        held = self._holds.pop(key, None)
        if held is not None:
            self._count(held, -1)
        try:
            hold = _hold_of(after) if after is not None else None
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a pod cannot be read", extra={"pod": str(key), "error": repr(error)})
            hold = None
        if hold is not None:
            self._holds[key] = hold
            self._count(hold, 1)
        if before is not None or (after is not None and (after.get("spec") or {}).get("nodeName")):
            self._settle(obj)  # not on its creation alone, which the scheduler may have seen before us

    def _count(self, hold: _Hold, sign: int) -> None:
        self._views.pop(hold.node, None)
        used = self._used.setdefault(hold.node, {})
        for resource, count in hold.gpus.items():
            used[resource] = used.get(resource, 0) + sign * count
            if not used[resource]:
                del used[resource]
        if not used:
            del self._used[hold.node]


def _hold_of(pod: Obj) -> _Hold | None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    node = spec.get("nodeName") or status.get("nominatedNodeName")
    if not node or status.get("phase") in ("Succeeded", "Failed"):
        return None
    gpus = gpus_asked(pod_requests(spec))
    return _Hold(node, gpus) if gpus else None
