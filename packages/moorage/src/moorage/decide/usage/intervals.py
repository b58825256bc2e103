"""GPU use as intervals: their starts and ends, and their sums in a window.

One pod is one interval, under the pod's uid, so it cannot be counted twice, however often it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from moorage.decide.runs.forecast import Like, Stay, work_of
from moorage.decide.usage.devices import Counts, counts_of
from moorage.decide.usage.gpus import (
    NOBODY,
    UNKNOWN_TYPE,
    device_ids,
    is_reservation,
    owner_of,
    place_of,
    started_at,
)
from moorage.model.argo import WORKFLOW_LABEL
from moorage.model.names import (
    ATTEMPT_LABEL,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    MAP_LABEL,
    RUN_LABEL,
    WORKSPACE_LABEL,
)
from moorage_kube.moments import moment
from moorage_kube.scheduling import PodInfo, parse_pod

HOUR = timedelta(hours=1)
GIB = 2**30
_PARTS = (("map", MAP_LABEL), ("workspace", WORKSPACE_LABEL))


class Interval(Struct, frozen=True, kw_only=True):
    """The resources that one pod held, and when. `ended_at` None: it still holds them."""

    pod_uid: str
    namespace: str
    pod: str
    run: str  # empty: of no run
    attempt: int
    owner: str
    node: str
    gpu_type: str
    gpus: int
    cpu_milli: int
    memory_bytes: int
    started_at: datetime
    ended_at: datetime | None
    last_seen_at: datetime
    devices: tuple[str, ...] = ()  # ids of the GPUs as the kubelet names them; empty when it does not
    work: str = ""  # `forecast.work_of`; empty: not known
    workflow: str = ""  # its workflow, if it is a step; else empty
    gpu_counts: Counts = ()  # `gpus` by resource; empty: not recorded, or none
    storage_bytes: int = 0  # scratch disk that it asks for
    reserved_for: str = ""  # "GROUP/TYPE" of the machine whose place it keeps; empty: it keeps none
    part_of: str = ""  # "map/NAME" or "workspace/NAME"; empty: of neither

    @property
    def is_counted(self) -> bool:
        """Whether `moor top` counts the interval: it has GPUs, or belongs to a run or workflow.

        Others count only for costs.
        """
        return bool(self.gpus or self.run or self.workflow)


class Open(Struct, frozen=True):
    """Write a new interval (with its end, when the pod started and ended unseen)."""

    interval: Interval

    @property
    def pod_uid(self) -> str:
        return self.interval.pod_uid


class Close(Struct, frozen=True):
    pod_uid: str
    ended_at: datetime


class Reopen(Struct, frozen=True):
    """The pod was thought deleted and is not."""

    pod_uid: str


Step = Open | Close | Reopen


def use_of(obj: Mapping[str, Any], gpu_types: Mapping[str, str], *, now: datetime) -> Interval | None:
    """Convert a `v1.Pod` to an interval. None if the pod does not hold anything (yet).

    An interval starts when the node accepts the pod; it is recorded once the pod runs or has ended.
    A finished pod ends with its last container, or `now` if containers do not report it. `gpu_types`: node → type.
    """
    pod = parse_pod(obj)
    started = started_at(obj)
    if not pod.uid or not pod.node or started is None or pod.phase == "Pending":
        return None
    attempt = pod.labels.get(ATTEMPT_LABEL, "")
    ended = None
    if pod.finished:
        ended = max(started, _finished_at(obj) or now)
    return Interval(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        run=pod.labels.get(RUN_LABEL, ""),
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 1,
        owner=owner_of(pod),
        node=pod.node,
        gpu_type=gpu_types.get(pod.node, UNKNOWN_TYPE) if pod.gpus else "",
        gpus=pod.gpus,
        cpu_milli=pod.requests.get("cpu", 0),
        memory_bytes=pod.requests.get("memory", 0),
        started_at=started,
        ended_at=ended,
        last_seen_at=max(now, started),
        devices=tuple(device for ids in device_ids(obj).values() for device in ids) if pod.gpus else (),
        work=work_of(obj.get("spec") or {}),
        workflow=pod.labels.get(WORKFLOW_LABEL, ""),
        gpu_counts=counts_of(pod.requests),
        storage_bytes=pod.requests.get("ephemeral-storage", 0),
        reserved_for=_reserved_for(pod),
        part_of=next((f"{kind}/{pod.labels[label]}" for kind, label in _PARTS if pod.labels.get(label)), ""),
    )


def _reserved_for(pod: PodInfo) -> str:
    if not is_reservation(pod):
        return ""
    return f"{pod.labels.get(MACHINE_GROUP_LABEL, '')}/{pod.labels.get(MACHINE_TYPE_LABEL, '')}"


def stay_of(interval: Interval) -> Stay | None:
    """Convert an interval to a stay, for the comparison with other stays. None while the pod runs."""
    if interval.ended_at is None:
        return None
    like = Like(
        owner=interval.owner, name=interval.run or interval.pod, work=interval.work, gpu_type=interval.gpu_type
    )
    return Stay(like=like, ended=interval.ended_at, took=interval.ended_at - interval.started_at)


def next_step(known: Interval | None, seen: Interval | None) -> Step | None:
    """The step to write for a pod that exists, given its stored interval; None if nothing is new.

    `seen` None means that it holds nothing (yet). After the step, the same call returns None.
    """
    if seen is None:
        return None
    if known is None:
        return Open(seen)
    if known.ended_at is None:
        return Close(seen.pod_uid, max(known.started_at, seen.ended_at)) if seen.ended_at else None
    return Reopen(seen.pod_uid) if seen.ended_at is None else None


def end_of_deleted(known: Interval, last: Mapping[str, Any] | None, *, now: datetime) -> Close | None:
    """How to close the interval of a deleted pod; None if it is closed already.

    `last` is the pod as last seen when its deletion was watched: it ended with its containers, else at its
    deletion time (request plus grace) or `now`, whichever is earlier. None means that it was deleted while the
    cluster was not watched: it is charged up to when it was last seen, no further.
    """
    if known.ended_at is not None:
        return None
    if last is None:
        end = known.last_seen_at
    else:
        deleted = moment(last["metadata"].get("deletionTimestamp"))
        end = _finished_at(last) or (min(now, deleted) if deleted else now)
    return Close(known.pod_uid, max(known.started_at, end))


def stepped(known: Mapping[str, Interval], step: Step) -> dict[str, Interval]:
    """The stored intervals after a step: the specification of a store, in one line each."""
    after = dict(known)
    match step:
        case Open(interval):
            after.setdefault(interval.pod_uid, interval)
        case Close(uid, ended):
            if after[uid].ended_at is None:
                after[uid] = replace(after[uid], ended_at=ended)
        case Reopen(uid):
            after[uid] = replace(after[uid], ended_at=None)
    return after


class By(StrEnum):
    USER = "user"
    NAMESPACE = "namespace"
    RUN = "run"
    WORKFLOW = "workflow"
    TYPE = "type"
    GPU = "gpu"


class UsageRow(Struct, frozen=True, kw_only=True):
    """The use of one user, namespace, run, workflow, type, or user of one GPU in a window.

    The sums are exact; hours are for display.
    """

    name: str
    gpu_time: timedelta = timedelta()  # GPUs × time
    cpu_milli_time: timedelta = timedelta()  # millicores × time
    memory_byte_us: int = 0  # bytes × microseconds
    running_gpus: int = 0  # held at the end of the window
    pods: int = 0

    @property
    def gpu_hours(self) -> float:
        return self.gpu_time / HOUR

    @property
    def cpu_hours(self) -> float:
        return self.cpu_milli_time / HOUR / 1000

    @property
    def memory_gib_hours(self) -> float:
        return self.memory_byte_us / GIB / 3_600_000_000


def top(
    intervals: Iterable[Interval], *, since: datetime, until: datetime, by: By, now: datetime
) -> tuple[UsageRow, ...]:
    """Counted use within [since, until), largest GPU time first.

    Open intervals count to `now`, never beyond. Sums are additive: two adjacent windows have the same sum as the
    window over both.
    """
    rows: dict[str, UsageRow] = {}
    for interval in intervals:
        span = clipped(interval, since=since, until=min(until, now))
        if span <= timedelta() or not interval.is_counted:
            continue
        held = interval.started_at < until and (interval.ended_at is None or interval.ended_at >= until)
        for name, gpus, others in _shares(interval, by):
            row = rows.get(name) or UsageRow(name=name)
            rows[name] = replace(
                row,
                gpu_time=row.gpu_time + span * gpus,
                cpu_milli_time=row.cpu_milli_time + span * interval.cpu_milli * others,
                memory_byte_us=row.memory_byte_us
                + span // timedelta(microseconds=1) * interval.memory_bytes * others,
                running_gpus=row.running_gpus + (gpus if held else 0),
                pods=row.pods + 1,
            )
    return tuple(sorted(rows.values(), key=lambda row: (-row.gpu_time, -row.cpu_milli_time, row.name)))


def clipped(interval: Interval, *, since: datetime, until: datetime) -> timedelta:
    """The length of the part of the interval in [since, until)."""
    end = until if interval.ended_at is None else min(until, interval.ended_at)
    return max(timedelta(), end - max(since, interval.started_at))


def _shares(interval: Interval, by: By) -> list[tuple[str, int, int]]:
    """The rows that an interval is charged to: (row, GPUs, 1 if its CPU and memory are charged there too).

    By workflow, all pods outside of steps are one row. By GPU, each device and user is a row; unnamed devices
    share one, and pods without GPUs have none. The pod's CPU and memory are charged to its first device.
    """
    match by:
        case By.USER:
            return [(interval.owner, interval.gpus, 1)]
        case By.RUN:
            return [(f"{interval.namespace}/{interval.run or interval.pod}", interval.gpus, 1)]
        case By.NAMESPACE:
            return [(interval.namespace, interval.gpus, 1)]
        case By.WORKFLOW:
            name = f"{interval.namespace}/{interval.workflow}" if interval.workflow else NOBODY
            return [(name, interval.gpus, 1)]
        case By.TYPE:
            return [(interval.gpu_type or "cpu", interval.gpus, 1)]
        case By.GPU if interval.gpus == 0:
            return []
        case By.GPU if len(interval.devices) != interval.gpus:
            return [(f"{interval.node}/? {interval.owner}", interval.gpus, 1)]
        case By.GPU:
            return [
                (f"{interval.node}/{_device(device, interval.node)} {interval.owner}", 1, int(at == 0))
                for at, device in enumerate(interval.devices)
            ]


def _device(device: str, node: str) -> str:
    place = place_of(device, node)
    return device if place < 0 else str(place)


def _finished_at(obj: Mapping[str, Any]) -> datetime | None:
    """The time at which the last container ended. None unless all listed containers have ended."""
    statuses = (obj.get("status") or {}).get("containerStatuses") or ()
    ends = [
        moment(((container_status.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for container_status in statuses
    ]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None
