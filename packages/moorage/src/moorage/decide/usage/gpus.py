"""The free GPUs of each node, and the holders of the others.

Nothing here reads the clock or the network: nodes and pods in, one view out. The view has only the fields that all
users may see: owner, run, since when, expected until.

A free GPU may be of little use. It is *fragmented* when others of its node are taken, so that a pod cannot have
the whole node, and *stranded* when the node lacks CPU, memory or a pod slot for it: less than SHARE_CPU and
SHARE_MEMORY (the defaults of `moor run`) for each free GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.model.argo import NODE_NAME_ANNOTATION, WORKFLOW_LABEL, bare_path, step_path
from moorage.model.names import (
    EXPECTED_SECONDS_ANNOTATION,
    GPU_TYPE_LABELS,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    RESERVATION_LABEL,
    RUN_LABEL,
    SYSTEM_NAMESPACE,
)
from moorage_kube.moments import moment
from moorage_kube.quantity import parse_count
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, PodInfo, is_gpu, parse_node, parse_pod, used_on

NOBODY = "-"  # owner of a pod without an owner label
SHARE_CPU = 1000  # millicores
SHARE_MEMORY = 2 * 2**30  # bytes
UNKNOWN_TYPE = "gpu"  # type of a GPU on a node without any of GPU_TYPE_LABELS


class GpuState(StrEnum):
    FREE = "free"
    USED = "used"
    RESERVED = "reserved"  # a reservation pod holds it until a machine's guest comes
    UNAVAILABLE = "unavailable"  # it is free, but pods cannot be placed there now


class Holder(Struct, frozen=True, kw_only=True):
    """A pod that holds GPUs: the fields that all users may see."""

    owner: str
    run: str  # empty: the pod is of no run
    namespace: str
    pod: str
    since: datetime | None  # None: bound, not yet started by its node
    expected_until: datetime | None  # None: not stated
    step: str = ""  # "WORKFLOW/STEP"; empty: the pod is of no workflow

    @property
    def title(self) -> str:
        """The name that users know."""
        return self.run or self.step or self.pod


class Gpu(Struct, frozen=True, kw_only=True):
    """One device of one node."""

    node: str
    index: int  # 0, 1, … within the node, over all of its GPU resources
    type: str
    resource: str
    state: GpuState
    device: str = ""  # the id its node gave it (KEP-4680); empty: the holder is counted, not identified
    why: str = ""  # why it is unavailable, its reservation, or the missing resource of a stranded one
    holder: Holder | None = None  # set exactly when used
    fragmented: bool = False  # free, on a node with taken ones
    stranded: bool = False  # free, on a node without other free resources


class Counts(Struct, frozen=True, kw_only=True):
    """Counts of GPUs: used + reserved + free + unavailable = total. Fragmented and stranded GPUs are also free."""

    total: int = 0
    used: int = 0
    free: int = 0
    unavailable: int = 0
    reserved: int = 0
    fragmented: int = 0
    stranded: int = 0
    together: int = 0  # the most that are free on one node

    def plus(self, gpu: Gpu) -> Counts:
        return Counts(
            total=self.total + 1,
            used=self.used + (gpu.state is GpuState.USED),
            free=self.free + (gpu.state is GpuState.FREE),
            unavailable=self.unavailable + (gpu.state is GpuState.UNAVAILABLE),
            reserved=self.reserved + (gpu.state is GpuState.RESERVED),
            fragmented=self.fragmented + gpu.fragmented,
            stranded=self.stranded + gpu.stranded,
            together=self.together,
        )


class NodeGpus(Struct, frozen=True, kw_only=True):
    """A node that has GPUs."""

    name: str
    type: str
    ready: bool
    cordoned: bool
    gpus: tuple[Gpu, ...]
    counts: Counts


class GpuView(Struct, frozen=True, kw_only=True):
    """All GPUs of all nodes, with their sums."""

    nodes: tuple[NodeGpus, ...] = ()
    totals: Counts = field(default_factory=Counts)
    by_type: Mapping[str, Counts] = field(default_factory=dict)
    by_user: Mapping[str, int] = field(default_factory=dict)  # owner → GPUs held, most first
    types_of_user: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # the same by GPU type

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for node in self.nodes for gpu in node.gpus)


def gpu_type(labels: Mapping[str, str]) -> str:
    """The GPU type in a node's labels; UNKNOWN_TYPE if there is none."""
    return next((labels[key] for key in GPU_TYPE_LABELS if labels.get(key)), UNKNOWN_TYPE)


def owner_of(pod: PodInfo) -> str:
    """The user as authenticated, else the label-safe form of the name, else `NOBODY`."""
    return pod.annotations.get(OWNER_ANNOTATION) or pod.labels.get(OWNER_LABEL) or NOBODY


def step_of(pod: PodInfo) -> str:
    """The step of a workflow that a pod belongs to, as "WORKFLOW/STEP"; empty if none.

    Without the item of a loop, which may contain a value that not all users may read.
    """
    workflow = pod.labels.get(WORKFLOW_LABEL, "")
    if not workflow:
        return ""
    path = step_path(pod.annotations.get(NODE_NAME_ANNOTATION) or workflow, workflow)
    return workflow if path == workflow else f"{workflow}/{bare_path(path)}"


def expected_until(obj: Mapping[str, Any], started: datetime | None) -> datetime | None:
    """The expected end: by the owner's `moor run --time` or by `activeDeadlineSeconds`, whichever is first.

    None if neither is set, if the annotation is not a number, or if the pod has not started.
    """
    if started is None:
        return None
    text = (obj["metadata"].get("annotations") or {}).get(EXPECTED_SECONDS_ANNOTATION, "")
    deadline = (obj.get("spec") or {}).get("activeDeadlineSeconds")
    spans = [int(text)] if text.isascii() and text.isdigit() and len(text) < 10 else []
    spans += [int(deadline)] if deadline else []
    return started + timedelta(seconds=min(spans)) if spans else None


def holder_of(obj: Mapping[str, Any], pod: PodInfo | None = None) -> Holder:
    """The public fields of a pod that holds GPUs."""
    pod = parse_pod(obj) if pod is None else pod
    since = started_at(obj)
    return Holder(
        owner=owner_of(pod),
        run=pod.labels.get(RUN_LABEL, ""),
        namespace=pod.namespace,
        pod=pod.name,
        since=since,
        expected_until=expected_until(obj, since),
        step=step_of(pod),
    )


def started_at(obj: Mapping[str, Any]) -> datetime | None:
    """The time at which the node accepted the pod and the pod got its devices. None before that.

    `status.startTime`, or the earliest start of a container if a node agent does not set it.
    """
    status = obj.get("status") or {}
    if status.get("startTime"):
        return moment(status["startTime"])
    starts = [
        started
        for status in status.get("containerStatuses") or ()
        for state in (status.get("state") or {}, status.get("lastState") or {})
        for kind in ("running", "terminated")
        if (started := moment((state.get(kind) or {}).get("startedAt"))) is not None
    ]
    return min(starts, default=None)


def device_ids(obj: Mapping[str, Any]) -> dict[str, list[str]]:
    """GPU resource → device ids of the pod's containers, as the kubelet reports them. Empty without a report.

    https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#device-plugin-and-unhealthy-devices
    """
    by_resource: dict[str, list[str]] = {}
    status = obj.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        for resource in container.get("allocatedResourcesStatus") or ():
            if is_gpu(str(resource.get("name"))):
                ids = by_resource.setdefault(resource["name"], [])
                ids.extend(
                    device["resourceID"]
                    for device in resource.get("resources") or ()
                    if device.get("resourceID") not in (None, "", *ids)
                )
    return by_resource


def view_gpus(nodes: Iterable[Obj], pods: Iterable[Obj]) -> GpuView:
    """Every GPU of every node exactly once; nodes by name, GPUs by index.

    A GPU is used while an unfinished pod bound to its node asks for it. Devices with small numbers as ids have
    that index; other holders take the lowest places left, in the order of their start. GPUs in `capacity` but not
    in `allocatable` are unavailable (the device plugin calls them unhealthy).
    """
    with_gpus = []
    for obj in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
        node = parse_node(obj)
        if sizes := _sizes(obj, node):
            with_gpus.append((node, sizes))
    on_node: dict[str, list[tuple[PodInfo, Obj]]] = {node.name: [] for node, _ in with_gpus}
    for obj in pods:
        there = on_node.get((obj.get("spec") or {}).get("nodeName") or "")
        if there is not None and (obj.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            there.append((parse_pod(obj), obj))
    return sum_gpus([_node_gpus(node, sizes, on_node[node.name]) for node, sizes in with_gpus])


def is_reservation(pod: PodInfo) -> bool:
    """Whether the pod is one of ours that holds a machine's place: its GPUs are not in use."""
    return RESERVATION_LABEL in pod.labels and pod.namespace == SYSTEM_NAMESPACE


def _sizes(obj: Mapping[str, Any], node: NodeInfo) -> dict[str, tuple[int, int]]:
    """GPU resource → (capacity, allocatable)."""
    capacity = (obj.get("status") or {}).get("capacity") or {}
    names = sorted({name for name in (*capacity, *node.allocatable) if is_gpu(name)})
    sizes = {}
    for name in names:
        allocatable = node.allocatable.get(name, 0)
        whole = max(allocatable, parse_count(capacity[name]) if name in capacity else 0)
        if whole > 0:
            sizes[name] = (whole, allocatable)
    return sizes


def _node_gpus(
    node: NodeInfo, sizes: Mapping[str, tuple[int, int]], pods: Sequence[tuple[PodInfo, Obj]]
) -> NodeGpus:
    kind = gpu_type(node.labels)
    idle = "" if node.ready and not node.unschedulable else "cordoned" if node.ready else "node not ready"
    gpus: list[Gpu] = []
    with_gpus = [pod for pod in pods if pod[0].gpus]
    for resource, (whole, allocatable) in sizes.items():
        placed = _places(resource, whole, with_gpus)
        spare = allocatable - len(placed)  # beyond these, devices without a holder are unhealthy
        for place in range(whole):
            device, holder, held_for = placed.get(place, ("", None, ""))
            why, state = held_for, GpuState.RESERVED if held_for else GpuState.USED
            if holder is None and not held_for:
                why = idle or ("" if spare > 0 else "device unhealthy")
                state = GpuState.UNAVAILABLE if why else GpuState.FREE
                spare -= 1
            gpus.append(
                Gpu(
                    node=node.name,
                    index=len(gpus),
                    type=device_type(kind, resource),
                    resource=resource,
                    state=state,
                    device=device,
                    why=why,
                    holder=holder,
                )
            )
    gpus = _judged(gpus, node, [pod for pod, _ in pods])
    return NodeGpus(
        name=node.name,
        type=kind,
        ready=node.ready,
        cordoned=node.unschedulable,
        gpus=tuple(gpus),
        counts=replace(_count(gpus), together=max(_free_by_type(gpus).values(), default=0)),
    )


def device_type(kind: str, resource: str) -> str:
    """The type of a device on a node of GPU type `kind`, with its MIG profile, or with "shared"."""
    if "/mig-" in resource:
        return f"{kind} {resource.partition('/mig-')[2]}"
    return f"{kind} shared" if resource.endswith(".shared") else kind


def _judged(gpus: Sequence[Gpu], node: NodeInfo, pods: Sequence[PodInfo]) -> list[Gpu]:
    """Mark the free GPUs that are fragmented or stranded."""
    free = sum(gpu.state is GpuState.FREE for gpu in gpus)
    if not free:
        return list(gpus)
    taken = any(gpu.state in (GpuState.USED, GpuState.RESERVED) for gpu in gpus)
    used = used_on(pods)
    room = {
        name: max(0, node.allocatable[name] - used.get(name, 0)) // share
        for name, share in (("cpu", SHARE_CPU), ("memory", SHARE_MEMORY), ("pods", 1))
        if name in node.allocatable
    }
    scarcest = min(room, key=lambda name: (room[name], name), default="")
    usable = room.get(scarcest, free)
    judged_gpus = []
    for gpu in gpus:
        if gpu.state is GpuState.FREE:
            stranded = usable <= 0
            usable -= 1
            why = f"no {scarcest} left on its node" if stranded else ""
            gpu = replace(gpu, fragmented=taken, stranded=stranded, why=why)
        judged_gpus.append(gpu)
    return judged_gpus


def _free_by_type(gpus: Iterable[Gpu]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for gpu in gpus:
        if gpu.state is GpuState.FREE:
            counts[gpu.type] = counts.get(gpu.type, 0) + 1
    return counts


def _places(
    resource: str, whole: int, pods: Sequence[tuple[PodInfo, Obj]]
) -> dict[int, tuple[str, Holder | None, str]]:
    """Index of the device → (its id, its holder, the machine type that a reservation holds it for)."""
    placed: dict[int, tuple[str, Holder | None, str]] = {}
    rest: list[tuple[str, Holder | None, str]] = []
    for pod, obj in sorted(pods, key=_steady):
        asked = pod.requests.get(resource, 0)
        if asked <= 0:
            continue
        held_for = _held_for(pod)
        holder = None if held_for else holder_of(obj, pod)
        ids = device_ids(obj).get(resource, [])[:asked]
        for device in ids + [""] * (asked - len(ids)):
            place = place_of(device, pod.node)
            if 0 <= place < whole and place not in placed:
                placed[place] = (device, holder, held_for)
            else:
                rest.append((device, holder, held_for))
    open_places = (place for place in range(whole) if place not in placed)
    placed.update(dict(zip(list(open_places), rest, strict=False)))
    return placed


def _held_for(pod: PodInfo) -> str:
    """The text "for machine GROUP/TYPE" for a reservation pod; "" for other pods."""
    if not is_reservation(pod):
        return ""
    return f"for machine {pod.labels.get(MACHINE_GROUP_LABEL, '')}/{pod.labels.get(MACHINE_TYPE_LABEL, '')}"


def place_of(device: str, node: str) -> int:
    """The index of the GPU on its node: "3" and "GPU-node-1-3" are the fourth. -1 if the id has no number."""
    number = device.removeprefix(f"GPU-{node}-")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 5 else -1


def _steady(pod_info: tuple[PodInfo, Obj]) -> tuple[str, str, str, str]:
    pod, obj = pod_info
    since = (obj.get("status") or {}).get("startTime") or "~"  # the unstarted come last
    return since, pod.namespace, pod.name, pod.uid


def _count(gpus: Iterable[Gpu]) -> Counts:
    counts = Counts()
    for gpu in gpus:
        counts = counts.plus(gpu)
    return counts


def sum_gpus(nodes: Sequence[NodeGpus]) -> GpuView:
    """The view of all these nodes. They must be sorted by name."""
    by_type: dict[str, Counts] = {}
    by_user: dict[str, int] = {}
    of_user: dict[str, dict[str, int]] = {}
    gpus = [gpu for node in nodes for gpu in node.gpus]
    for gpu in gpus:
        by_type[gpu.type] = by_type.get(gpu.type, Counts()).plus(gpu)
        if gpu.holder:
            by_user[gpu.holder.owner] = by_user.get(gpu.holder.owner, 0) + 1
            kinds = of_user.setdefault(gpu.holder.owner, {})
            kinds[gpu.type] = kinds.get(gpu.type, 0) + 1
    most: dict[str, int] = {}
    for node in nodes:
        for kind, free in _free_by_type(node.gpus).items():
            most[kind] = max(most.get(kind, 0), free)
    return GpuView(
        nodes=tuple(nodes),
        totals=replace(_count(gpus), together=max(most.values(), default=0)),
        by_type={kind: replace(by_type[kind], together=most.get(kind, 0)) for kind in sorted(by_type)},
        types_of_user=of_user,
        by_user=dict(sorted(by_user.items(), key=lambda item: (-item[1], item[0]))),
    )
