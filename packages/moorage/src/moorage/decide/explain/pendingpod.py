"""A pod without a node, and all data that its explanation depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from moorage.decide.explain.lookup import Lookup
from moorage.decide.explain.snapshot import ParsedPod, Snapshot
from moorage.decide.explain.storage import PodVolumes, Storage, volumes_of
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.kueue import QueueWait
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, PodInfo, refusals

Used = Mapping[str, Mapping[str, int]]
"""What is used on each node, by resource."""


class PendingPod(Struct, frozen=True, kw_only=True):
    """One pod without a node, and the other pods and nodes of the cluster."""

    me: PodInfo
    obj: Obj
    base: Explanation  # the facts that are known before anything is judged
    lookup: Lookup
    others: Sequence[ParsedPod]  # all pods but this one
    volumes: PodVolumes
    usable: Sequence[NodeInfo]  # nodes that labels, taints, cordons and volumes let it use
    events: Sequence[Obj]
    suspended: bool  # its Job is
    queue: QueueWait | None
    brief: bool  # leaves out holders of missing resources, and smaller requests

    @property
    def snapshot(self) -> Snapshot:
        return self.lookup.snapshot

    @property
    def now(self) -> datetime:
        return self.base.now

    @property
    def parsed(self) -> ParsedPod:
        return ParsedPod(self.me, self.obj, None)

    def takes(self, pod: PodInfo, node: NodeInfo, used: Used) -> bool:
        """Whether the node would accept the pod when the amounts `used` are in use on the nodes."""
        if self.volumes.refusal(node) is not None:
            return False
        return not refusals(pod, node, self.snapshot.on_node[node.name], used[node.name])


def make_pending_pod(
    parsed: ParsedPod,
    base: Explanation,
    lookup: Lookup,
    storage: Storage,
    events: Sequence[Obj],
    *,
    suspended: bool,
    queue: QueueWait | None,
    brief: bool,
) -> PendingPod:
    pod = parsed.pod
    others = [other for other in lookup.snapshot.pods if not _is_same(other.obj, parsed.obj)]
    bound = (other.pod for other in others if other.holder is not None)
    volumes = volumes_of(pod, storage, bound if pod.claims else (), events)
    return PendingPod(
        me=pod,
        obj=parsed.obj,
        base=base,
        lookup=lookup,
        others=others,
        volumes=volumes,
        usable=[node for node in lookup.usable(pod) if volumes.refusal(node) is None],
        events=events,
        suspended=suspended,
        queue=queue,
        brief=brief,
    )


def _is_same(pod: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    left, right = pod["metadata"], other["metadata"]
    if left.get("uid") and right.get("uid"):
        return bool(left["uid"] == right["uid"])
    return bool(
        right.get("uid")
        and left.get("name") == right.get("name")
        and left.get("namespace") == right.get("namespace")
    )
