"""The used bytes of mounted volumes, as reported by the kubelets of the cluster."""

from __future__ import annotations

from typing import Any

from moorage.server.cluster import Cluster
from moorage.server.summaries import Summaries, ask_nodes
from moorage_kube.clock import Clock

CACHE_SECONDS = 30.0  # nodes are asked again after that

Used = dict[tuple[str, str], int]
"""(namespace, claim) → bytes in use."""


class VolumeUse:
    """The used bytes of volumes; asks all nodes at most once in CACHE_SECONDS."""

    def __init__(self, cluster: Cluster, kubelets: Summaries, *, clock: Clock) -> None:
        self._cluster, self._kubelets, self._clock = cluster, kubelets, clock
        self._used: Used = {}
        self._asked_at: float | None = None  # monotonic

    async def used(self) -> Used:
        """The used bytes of all mounted volumes. A node that does not answer is skipped."""
        now = self._clock.monotonic()
        if self._asked_at is not None and now - self._asked_at < CACHE_SECONDS:
            return self._used
        used = Used()
        async for _, summary in ask_nodes(self._kubelets, self._cluster.nodes.all()):
            for claim, size in used_of(summary).items():
                used[claim] = max(size, used.get(claim, 0))
        self._used, self._asked_at = used, now
        return used


def used_of(summary: Any) -> Used:
    """The used bytes of claims in a kubelet's summary. Parts with an unexpected shape are skipped."""
    used: Used = {}
    for pod in (summary.get("pods") or ()) if isinstance(summary, dict) else ():
        for volume in pod.get("volume") or ():
            ref, size = volume.get("pvcRef") or {}, volume.get("usedBytes")
            if ref.get("name") and isinstance(size, int) and size >= 0:
                used[str(ref.get("namespace") or ""), str(ref["name"])] = size
    return used
