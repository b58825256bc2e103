"""Values of one snapshot that the explanations of many pods need, each computed once."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime, timedelta

from moorage.decide.explain.nodeconstraints import may_use, placing, wanted_types
from moorage.decide.explain.snapshot import ParsedPod, Snapshot
from moorage.decide.runs.forecast import Like, Usual, work_of
from moorage.decide.usage.gpus import owner_of
from moorage.model.names import RUN_LABEL
from moorage_kube.scheduling import NodeInfo, PodInfo


class Lookup:
    """Caches its answers as long as it exists; for one snapshot, and one thread at a time."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._usable: dict[Hashable, tuple[NodeInfo, ...]] = {}
        self._usual: dict[tuple[str, datetime], Usual | None] = {}
        types = set(snapshot.types.values())
        self._only_type = types.pop() if len(types) == 1 else ""

    def usable(self, pod: PodInfo) -> tuple[NodeInfo, ...]:
        """The ready nodes whose labels, taints and cordons allow the pod."""
        key = placing(pod)
        if key not in self._usable:
            self._usable[key] = tuple(node for node in self.snapshot.nodes if node.ready and may_use(pod, node))
        return self._usable[key]

    def usual(self, parsed: ParsedPod, now: datetime) -> Usual | None:
        """The usual duration of similar pods; the elapsed time of this one is from its start to `now`."""
        key = (parsed.pod.uid or f"{parsed.pod.namespace}/{parsed.pod.name}", now)
        if key not in self._usual:
            since = parsed.holder.since if parsed.holder else None
            elapsed = max(timedelta(), now - since) if since else timedelta()
            self._usual[key] = self.snapshot.history.usual(self.like(parsed), elapsed)
        return self._usual[key]

    def like(self, parsed: ParsedPod) -> Like:
        """The values by which pods compare. A pod without a node counts as on the first type that it names."""
        pod, kind = parsed.pod, ""
        if pod.gpus:
            named = wanted_types(pod)
            kind = self.snapshot.types.get(pod.node) or (named[0] if named else self._only_type)
        name = pod.labels.get(RUN_LABEL) or pod.name
        return Like(owner=owner_of(pod), name=name, work=work_of(parsed.obj.get("spec") or {}), gpu_type=kind)
