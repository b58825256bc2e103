"""Each node and a pod that waits: the verdict, the missing resources, their holders, and the obstacles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from moorage.decide.explain.nodeconstraints import TRANSIENT_TAINTS, could_use
from moorage.decide.explain.pendingpod import PendingPod
from moorage.decide.explain.snapshot import ParsedPod
from moorage.decide.explain.types import HeldBy, Missing, Verdict
from moorage.decide.usage.gpus import gpu_type, is_reservation
from moorage.model.names import MACHINE_GROUP_LABEL, MACHINE_TYPE_LABEL
from moorage_kube.scheduling import NodeInfo, PodInfo, gpus_in, is_extended, is_gpu, refusals, shortages


def verdict(pending: PendingPod, node: NodeInfo) -> Verdict:
    there, used = pending.snapshot.on_node[node.name], pending.snapshot.used[node.name]
    held = gpus_in(used)
    reasons = refusals(pending.me, node, there, used)
    if refusal := pending.volumes.refusal(node):
        reasons.append(refusal)
    return Verdict(
        node=node.name,
        gpu_type=gpu_type(node.labels) if node.gpus else "",
        gpus=node.gpus,
        gpus_free=max(0, node.gpus - held) if node.ready and not node.unschedulable else 0,
        reasons=tuple(reasons),
    )


def holds(pod: PodInfo, node: NodeInfo) -> bool:
    """Whether the pod would fit on the node if the node were empty."""
    return not shortages(pod, node, {})


def obstacles(pending: PendingPod) -> tuple[str, ...]:
    """The temporary trouble of each node that could serve once the trouble is over."""
    if any(holds(pending.me, node) for node in pending.usable):
        return ()
    texts = []
    for node in pending.snapshot.nodes:
        if not could_use(pending.me, node) or not holds(pending.me, node):
            continue
        if not node.ready:
            texts.append(f"node {node.name} is not Ready")
        elif node.unschedulable:
            texts.append(f"node {node.name} is cordoned")
        elif trouble := pending.volumes.refusal(node):
            texts.append(f"node {node.name}: {trouble}")
        else:
            taints = [str(taint) for taint in node.taints if taint.key.startswith(TRANSIENT_TAINTS)]
            texts.append(f"node {node.name} has the taint {', '.join(taints)}")
    return tuple(texts)


def missing(pending: PendingPod) -> tuple[Missing, ...]:
    """The resources that are short on every usable node. If there are none: those that are short on some node."""
    me, used = pending.me, pending.snapshot.used
    short = [set(shortages(me, node, used[node.name])) for node in pending.usable]
    names = (set.intersection(*short) or set.union(*short)) if short else _asked_first(me)
    rows = []
    for name in sorted(names, key=lambda name: (not is_gpu(name), name)):
        free = {node.name: _free(node, used[node.name], name) for node in pending.usable}
        best = min(free, key=lambda node: (-free[node], node), default="")
        rows.append(
            Missing(
                resource=name,
                gpu_types=pending.base.gpu_types if is_gpu(name) else (),
                asks=me.requests[name],
                most_free=free.get(best, 0),
                most_free_node=best,
                free_in_total=sum(free.values()),
            )
        )
    return tuple(rows)


def _asked_first(pod: PodInfo) -> set[str]:
    """The resources to name where the pod may not use any node: its GPUs, else all that it asks for."""
    return {name for name in pod.requests if is_extended(name)} or set(pod.requests) - {"pods"}


def _free(node: NodeInfo, used: Mapping[str, int], resource: str) -> int:
    return max(0, node.allocatable.get(resource, 0) - used.get(resource, 0))


# -- holders of missing resources


def held_by(pending: PendingPod, short: Sequence[Missing]) -> tuple[HeldBy, ...]:
    """Holders of the missing resources on nodes that the pod may use, sorted by their ends."""
    names = {node.name for node in pending.usable}
    return sorted_holders(
        hold_of(pending, other, wanted.resource)
        for other in pending.others
        if other.holder is not None and other.pod.node in names
        for wanted in short
        if other.pod.requests.get(wanted.resource, 0)
    )


def hold_of(pending: PendingPod, other: ParsedPod, resource: str) -> HeldBy:
    assert other.holder is not None
    usual = None if is_reservation(other.pod) else pending.lookup.usual(other, pending.now)
    has_forecast = usual is not None and usual.total is not None
    labels = other.pod.labels
    return HeldBy(
        holder=other.holder,
        node=other.pod.node,
        resource=resource,
        amount=other.pod.requests.get(resource, 0),
        sure="limit" if other.holder.expected_until else "usual" if has_forecast else "unknown",
        usual=usual,
        reserved_for=f"{labels.get(MACHINE_GROUP_LABEL, '')}/{labels.get(MACHINE_TYPE_LABEL, '')}"
        if is_reservation(other.pod)
        else "",
    )


def sorted_holders(holders: Iterable[HeldBy]) -> tuple[HeldBy, ...]:
    """Sort holders by their ends; those without an end by their start, the oldest first."""
    far = datetime.max

    def order(held: HeldBy) -> tuple[datetime, datetime, str, str, str]:
        ends = [end for end in (held.holder.expected_until, held.usual_until) if end is not None]
        return (
            min(ends).replace(tzinfo=None) if ends else far,
            (held.holder.since or far).replace(tzinfo=None),
            held.holder.namespace,
            held.holder.pod,
            held.resource,
        )

    return tuple(sorted(holders, key=order))
