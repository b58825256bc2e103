"""Nodes as a user chooses between them: the offered and used resources of each, and whether it takes pods.

Nothing here reads the clock or the network. The view has only the fields that all users may see: of pods, only the
runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from moorage.decide.usage.gpus import gpu_type
from moorage.model.names import RUN_LABEL
from moorage.model.prices import REGION_LABEL, TYPE_LABEL, market_of
from moorage_kube.meta import condition
from moorage_kube.moments import moment
from moorage_kube.resources import Obj
from moorage_kube.scheduling import PodInfo, gpus_in, parse_node, parse_pod, used_on

PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


class NodeState(StrEnum):
    READY = "Ready"
    CORDONED = "Cordoned"  # ready, and takes no new pods
    NOT_READY = "NotReady"


class NodeView(Struct, frozen=True, kw_only=True):
    """One node. `used`: the requests of its unfinished pods; CPU in millicores, memory in bytes."""

    name: str
    state: NodeState
    reason: str  # why it takes no pods, or the missing resource; empty: it is fine
    cordoned: bool
    created: datetime | None
    instance_type: str  # by its label, as are the next two; empty: no label
    region: str
    market: str  # spot or on-demand
    gpu_type: str  # empty: it has no GPUs
    gpus: int
    gpus_used: int
    cpu: int
    cpu_used: int
    memory: int
    memory_used: int
    pods: int
    runs: tuple[str, ...]  # NAMESPACE/NAME of the runs with a pod on it, sorted
    taints: tuple[str, ...]  # KEY=VALUE:EFFECT, as kubectl writes them
    version: str  # of its kubelet; empty: not reported


def view_nodes(nodes: Iterable[Obj], pods: Iterable[Obj]) -> tuple[NodeView, ...]:
    """All nodes, sorted by name."""
    objs = sorted(nodes, key=lambda node: str(node["metadata"]["name"]))
    on_node: dict[str, list[PodInfo]] = {obj["metadata"]["name"]: [] for obj in objs}
    for obj in pods:
        pods_there = on_node.get((obj.get("spec") or {}).get("nodeName") or "")
        if pods_there is not None and not (pod := parse_pod(obj)).finished:
            pods_there.append(pod)
    return tuple(_view(obj, on_node[obj["metadata"]["name"]]) for obj in objs)


def _view(obj: Obj, pods: list[PodInfo]) -> NodeView:
    node, used = parse_node(obj), used_on(pods)
    info = (obj.get("status") or {}).get("nodeInfo") or {}
    return NodeView(
        name=node.name,
        state=NodeState.NOT_READY
        if not node.ready
        else NodeState.CORDONED
        if node.unschedulable
        else NodeState.READY,
        reason=_reason(obj, ready=node.ready, cordoned=node.unschedulable),
        cordoned=node.unschedulable,
        created=moment(obj["metadata"].get("creationTimestamp")),
        instance_type=node.labels.get(TYPE_LABEL, ""),
        region=node.labels.get(REGION_LABEL, ""),
        market=market_of(node.labels),
        gpu_type=gpu_type(node.labels) if node.gpus else "",
        gpus=node.gpus,
        gpus_used=gpus_in(used),
        cpu=node.allocatable.get("cpu", 0),
        cpu_used=used.get("cpu", 0),
        memory=node.allocatable.get("memory", 0),
        memory_used=used.get("memory", 0),
        pods=len(pods),
        runs=tuple(sorted({f"{pod.namespace}/{run}" for pod in pods if (run := pod.labels.get(RUN_LABEL))})),
        taints=tuple(
            f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            for taint in node.taints
        ),
        version=str(info.get("kubeletVersion") or ""),
    )


def _reason(obj: Obj, *, ready: bool, cordoned: bool) -> str:
    reasons = []
    if not ready:
        reported = condition(obj, "Ready") or {}
        reasons.append(str(reported.get("reason") or "its kubelet has not reported"))
    if cordoned:
        reasons.append("takes no new pods")
    return ", ".join([*reasons, *pressures_of(obj)])


def pressures_of(obj: Obj) -> list[str]:
    """The conditions of a Node that are true and should not be, such as DiskPressure."""
    return [kind for kind in PRESSURES if (condition(obj, kind) or {}).get("status") == "True"]
