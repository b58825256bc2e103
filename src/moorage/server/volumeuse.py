"""How full mounted volumes are, as the kubelets of the cluster report."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from moorage.apimachinery.resources import Obj
from moorage.clock import Clock
from moorage.errors import ApiError
from moorage.server.cluster import Cluster

KEPT_SECONDS = 30.0  # nodes are asked again after that
NODE_SECONDS = 5.0  # patience with one node
NODES_AT_ONCE = 32

Used = dict[tuple[str, str], int]
"""(namespace, claim) → bytes in use."""


class Summaries(Protocol):
    """See `moorage.kube.kubelets.Kubelets`."""

    async def summary(self, node: Obj) -> Any:
        """Raises ApiError, OSError, ValueError."""
        ...


class NoKubelets:
    """For a connection that reaches no kubelet: nothing is known."""

    async def summary(self, _node: Obj) -> Any:
        return {}

    async def close(self) -> None:
        return


class VolumeUse:
    """Asks all nodes at most once in KEPT_SECONDS.

    https://kubernetes.io/docs/reference/instrumentation/node-metrics/#summary-api-source
    """

    def __init__(self, cluster: Cluster, kubelets: Summaries, *, clock: Clock) -> None:
        self._cluster, self._kubelets, self._clock = cluster, kubelets, clock
        self._used: Used = {}
        self._asked_at: float | None = None  # monotonic

    async def used(self) -> Used:
        """Only of volumes that are mounted somewhere. A node that does not answer is left out."""
        now = self._clock.monotonic()
        if self._asked_at is not None and now - self._asked_at < KEPT_SECONDS:
            return self._used
        nodes, used = self._cluster.nodes.all(), Used()
        for first in range(0, len(nodes), NODES_AT_ONCE):
            for report in await asyncio.gather(
                *(self._ask(node) for node in nodes[first : first + NODES_AT_ONCE])
            ):
                for claim, size in report.items():
                    used[claim] = max(size, used.get(claim, 0))
        self._used, self._asked_at = used, now
        return used

    async def _ask(self, node: Obj) -> Used:
        try:
            async with asyncio.timeout(NODE_SECONDS):
                return used_of(await self._kubelets.summary(node))
        except (ApiError, ValueError, TimeoutError, OSError):
            return {}


def used_of(summary: Any) -> Used:
    """The claims in a kubelet's summary. Parts of another shape are left out."""
    used: Used = {}
    for pod in (summary.get("pods") or ()) if isinstance(summary, dict) else ():
        for volume in pod.get("volume") or ():
            ref, size = volume.get("pvcRef") or {}, volume.get("usedBytes")
            if ref.get("name") and isinstance(size, int) and size >= 0:
                used[str(ref.get("namespace") or ""), str(ref["name"])] = size
    return used
