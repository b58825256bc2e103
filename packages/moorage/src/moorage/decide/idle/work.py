"""All work that holds GPUs through its pods, or held some according to its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import is_
from typing import Any

import msgspec
from msgspec import Struct

from moorage.decide.idle.evidence import Connection
from moorage.decide.idle.plan import Work
from moorage.decide.idle.readings import HeldPod
from moorage.decide.idle.states import Record, read_record
from moorage.decide.runs.kueue import queue_of
from moorage.decide.runs.state import attempt_of
from moorage.decide.usage.gpus import device_ids
from moorage.model.argo import WORKFLOW_LABEL, WORKFLOWS
from moorage.model.idle import MAP, RUN, WORKFLOW, WORKSPACE
from moorage.model.labels import user_labels
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import (
    CHECKPOINT_AT_ANNOTATION,
    IDLE_ANNOTATION,
    MAP_LABEL,
    NOTIFY_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    RUN_LABEL,
    USED_ANNOTATION,
    WORKSPACE_LABEL,
)
from moorage.model.tenant import tenant_names
from moorage.model.workspace import WORKSPACES
from moorage_kube.errors import MoorageError
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.moments import readable_moment
from moorage_kube.resources import JOBS, Obj, Resource
from moorage_kube.scheduling import gpus_in, pod_requests

RESOURCES: Mapping[str, Resource] = {WORKSPACE: WORKSPACES, RUN: JOBS, MAP: MAPJOBS, WORKFLOW: WORKFLOWS}
_LABELS = ((MAP_LABEL, MAP), (WORKFLOW_LABEL, WORKFLOW), (WORKSPACE_LABEL, WORKSPACE), (RUN_LABEL, RUN))

WorkKey = tuple[str, str, str]  # kind, namespace, name


class Held(Struct, frozen=True, kw_only=True):
    """A piece of work, its object (for a run: the first Job) and its running pods with GPUs."""

    work: Work
    obj: Obj
    record: Record
    pods: tuple[HeldPod, ...] = ()
    connection: Connection | None = None
    notify: tuple[str, ...] = ()  # targets that the object itself names

    @property
    def key(self) -> WorkKey:
        return (self.work.kind, self.work.namespace, self.work.name)


def key_of_pod(pod: Mapping[str, Any]) -> WorkKey | None:
    """The work that a pod belongs to; None if it belongs to no known kind of work."""
    labels = labels_of(pod)
    for label, kind in _LABELS:
        if name := labels.get(label):
            return kind, pod["metadata"].get("namespace") or "default", name
    return None


class HeldWork:
    """All work that holds GPUs. A piece of work is not parsed again while its objects are the same.

    For objects that are never changed in place, such as those of informers. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[WorkKey, tuple[_Seen, Held | None]] = {}

    def of(
        self,
        pods: Iterable[Obj],
        jobs: Iterable[Obj],
        workspaces: Iterable[Obj],
        maps: Iterable[Obj],
        workflows: Iterable[Obj],
        tenants: Iterable[Obj] = (),
    ) -> list[Held]:
        """All work that holds GPUs or has a record, sorted by kind, namespace and name."""
        objects: dict[WorkKey, list[Obj]] = {}
        for kind, listed in ((WORKSPACE, workspaces), (MAP, maps), (WORKFLOW, workflows)):
            for obj in listed:
                objects[kind, _namespace(obj), obj["metadata"]["name"]] = [obj]
        for job in jobs:
            if name := labels_of(job).get(RUN_LABEL):
                objects.setdefault((RUN, _namespace(job), name), []).append(job)
        pods_of: dict[WorkKey, list[Obj]] = {}
        for pod in pods:
            if (key := key_of_pod(pod)) in objects:
                pods_of.setdefault(key, []).append(pod)
        names, before, after = tenant_names(tenants), self._known, {}
        for key in objects:
            seen = _Seen(objects[key], pods_of.get(key, []), names.get(key[1], ""))
            known = before.get(key)
            after[key] = known if known is not None and known[0].is_same(seen) else (seen, _read(key, seen))
        self._known = after
        return [held for key in sorted(after) if (held := after[key][1]) is not None]


class _Seen(Struct, frozen=True):
    """The objects that a piece of work is derived from."""

    objects: Sequence[Obj]
    pods: Sequence[Obj]
    tenant: str

    def is_same(self, other: _Seen) -> bool:
        return (
            self.tenant == other.tenant
            and len(self.objects) == len(other.objects)
            and len(self.pods) == len(other.pods)
            and all(map(is_, self.objects, other.objects))
            and all(map(is_, self.pods, other.pods))
        )


def _read(key: WorkKey, seen: _Seen) -> Held | None:
    """None if the work is being deleted, or neither asks for GPUs nor has a record."""
    pods = [_GpuPod(pod, gpus, tuple(_changes(pod))) for pod in seen.pods if (gpus := _gpus(pod))]
    ordered = sorted(seen.objects, key=attempt_of)
    if is_deleting(ordered[0]) or not (pods or IDLE_ANNOTATION in annotations_of(ordered[0])):
        return None
    return _held(key, ordered, pods, seen.tenant)


class _GpuPod(Struct, frozen=True):
    """A pod that requests GPUs."""

    obj: Obj
    gpus: int
    changes: tuple[datetime, ...]  # when its containers started and ended

    @property
    def is_running(self) -> bool:
        is_started = (self.obj.get("status") or {}).get("phase") == "Running" and bool(self.changes)
        return is_started and not is_deleting(self.obj)


def _held(key: WorkKey, objects: Sequence[Obj], pods: Sequence[_GpuPod], tenant: str) -> Held:
    kind, namespace, name = key
    # the record is on the first Job of a run, the spec that counts is that of the last
    first, last = objects[0], objects[-1]
    notes, spec = annotations_of(first), last.get("spec") or {}
    live = [pod for pod in pods if pod.is_running]
    record = read_record(notes.get(IDLE_ANNOTATION))
    suspended = {
        WORKSPACE: spec.get("running") is False,
        RUN: bool(spec.get("suspend")),
        MAP: bool(spec.get("suspend")),
    }.get(kind, False)
    # work that was created without our webhook has no owner: its pods may have one
    owner = notes.get(OWNER_ANNOTATION) or labels_of(first).get(OWNER_LABEL) or ""
    if not owner and pods:
        pod = pods[0].obj
        owner = annotations_of(pod).get(OWNER_ANNOTATION) or labels_of(pod).get(OWNER_LABEL) or ""
    work = Work(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=first["metadata"]["uid"],
        owner=owner,
        tenant=tenant,
        gpus=sum(pod.gpus for pod in live) or record.gpus,
        nodes=tuple(sorted({str(pod.obj["spec"].get("nodeName") or "") for pod in live} - {""})),
        devices=tuple(sorted({device for pod in live for device in devices_of(pod.obj)})),
        labels=user_labels(labels_of(first)),
        suspended=suspended,
        queued=kind == RUN and bool(queue_of(last)),
        started=max((at for pod in pods for at in pod.changes), default=None),
        checkpoint_at=readable_moment(notes.get(CHECKPOINT_AT_ANNOTATION)) if kind == RUN else None,
    )
    # the reader of measurements needs the running pods only
    return Held(
        work=work,
        obj=first,
        record=record,
        pods=tuple(
            HeldPod(uid=pod.obj["metadata"]["uid"], gpus=pod.gpus, started=max(pod.changes)) for pod in live
        ),
        connection=read_used(notes.get(USED_ANNOTATION)) if kind == WORKSPACE else None,
        notify=tuple(notes.get(NOTIFY_ANNOTATION, "").split()),
    )


class Used(msgspec.Struct, frozen=True, omit_defaults=True):
    """The use of a Workspace, as the gateway records it in an annotation."""

    seen: datetime | None = None
    acted: datetime | None = None


def read_used(text: str | None) -> Connection:
    """Parse the times of browser connections. An invalid text counts as no connection."""
    try:
        used = msgspec.json.decode(text or "{}", type=Used)
    except (msgspec.MsgspecError, ValueError):
        used = Used()
    return Connection(seen_at=used.seen, acted_at=used.acted)


def write_used(connection: Connection) -> str:
    return msgspec.json.encode(Used(connection.seen_at, connection.acted_at)).decode()


def devices_of(pod: Obj) -> list[str]:
    """The GPUs of a pod as "NODE/ID"; empty if the node does not report them."""
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    return [f"{node}/{device}" for ids in device_ids(pod).values() for device in ids]


def _namespace(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"].get("namespace") or "default")


def _gpus(pod: Obj) -> int:
    try:
        return gpus_in(pod_requests(pod.get("spec") or {}))
    except MoorageError:  # an unreadable quantity
        return 0


def _changes(pod: Obj) -> list[datetime]:
    """The times at which the pod's containers started and ended. Each counts as activity."""
    moments: list[datetime] = []
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        state = container.get("state") or {}
        for text in (
            (state.get("running") or {}).get("startedAt"),
            (state.get("terminated") or {}).get("startedAt"),
            (state.get("terminated") or {}).get("finishedAt"),
        ):
            if (at := readable_moment(text)) is not None:
                moments.append(at)
    return moments
