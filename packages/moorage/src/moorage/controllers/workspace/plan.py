"""Decide the next steps of a workspace, its status and its events.

Nothing here reads the clock, the network or a setting. Steps are in a safe order: objects that a pod refers to
are made before the pod. Safe to stop after any step: planning again finishes the work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.controllers.workspace.objects import (
    is_like,
    made_from,
    make_deployment,
    make_gateway_service,
    make_gateway_slice,
    make_home,
    make_ingress,
    make_service,
)
from moorage.decide.runs.gputypes import GpuType, matches_type
from moorage.decide.runs.kueue import QueueWait, is_held, queue_of
from moorage.model.kueue import ADMISSION_GATE
from moorage.model.names import (
    MACHINE_GATE,
    MADE_FROM_ANNOTATION,
    MEMORY_GATE,
    MEMORY_HELD_ANNOTATION,
    SCHEDULED_ANNOTATION,
)
from moorage.model.schedule import last_moment, next_moment, zone_named
from moorage.model.workspace import (
    FAILED,
    LOGIN,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    WAITING,
    App,
    Platform,
    Schedule,
    WorkspaceView,
    allowed_types,
)
from moorage_kube.meta import (
    annotations_of,
    condition,
    controller_ref,
    is_condition_true,
    is_deleting,
    with_condition,
)
from moorage_kube.moments import moment, rfc3339
from moorage_kube.resources import DEPLOYMENTS, ENDPOINTSLICES, INGRESSES, PVCS, SERVICES, Obj, Resource
from moorage_kube.scheduling import has_gate

IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageNotRunnable",
    "RegistryUnavailable",
)
CONFIG_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
LOOK_AGAIN = timedelta(seconds=10)  # while it waits: its place in line may change while its objects do not
NO_CONTAINER = ("", "ContainerCreating", "PodInitializing")


class Verb(Enum):
    """The kind of a step. SECRET: create the Secret with the token, which is not known here."""

    CREATE = "create"
    REPLACE = "replace"
    PATCH = "patch"
    DELETE = "delete"
    SECRET = "secret"


class Seen(Struct, frozen=True, kw_only=True):
    """One workspace and all data that was read about it, at one moment."""

    view: WorkspaceView
    obj: Obj
    now: datetime
    app: App | None  # the application; None if there is no such template
    platform: Platform = field(default_factory=Platform)
    fault: str = ""  # why it cannot be made, in the words of the schema or of the API server
    fault_reason: str = "Invalid"
    deployment: Obj | None = None
    service: Obj | None = None
    gateway_service: Obj | None = None
    gateway_slice: Obj | None = None
    ingress: Obj | None = None
    home: Obj | None = None
    secret_made: bool = False
    missing_claims: tuple[str, ...] = ()  # of spec.volumes
    pods: Sequence[Obj] = ()
    gateway: Mapping[str, Any] | None = None  # EndpointSlice of the server; None: it is not known where that is
    gpu_types: tuple[GpuType, ...] = ()
    on_processes: bool = False
    line: str = ""  # why the newest pod has no node, from all pods on nodes
    queue: QueueWait | None = None  # of the pod that Kueue holds; None: it holds none
    templates: tuple[str, ...] = ()  # names of those there are


class Step(Struct, frozen=True):
    """One write, to the Workspace itself if it has no resource.

    PATCH (merge) and DELETE carry the uid that was seen, REPLACE the version. A Deployment is deleted after
    its pods.
    """

    verb: Verb
    resource: Resource | None = None
    obj: Obj = field(default_factory=dict)
    name: str = ""
    uid: str = ""


class Event(Struct, frozen=True):
    """An event."""

    type: str
    reason: str
    message: str


class Standing(Struct, frozen=True):
    """The workspace's phase, with its reason."""

    phase: str
    reason: str
    message: str
    pod: Obj | None = None
    is_ready: bool = False


class Plan(Struct, frozen=True):
    """The steps in order; the status, None if it is unchanged; and the events."""

    steps: tuple[Step, ...] = ()
    status: Obj | None = None
    events: tuple[Event, ...] = ()
    look_again_in: timedelta | None = None


def plan(seen: Seen) -> Plan:
    """Return the steps that bring the workspace closer to its spec. A settled one has no steps and no status."""
    if seen.view.deleting:
        return Plan()  # its owned objects are deleted with it
    if not seen.fault and (step := _by_schedule(seen)):
        # the next pass sees the change; decisions on the old state would be wrong
        return Plan((step,), look_again_in=None)
    foreign = _foreign(seen)
    standing = _standing(seen, foreign)
    if standing.reason == "Config":
        seen = replace(seen, secret_made=False)  # the Secret may be missing; a second creation is a conflict
    steps = () if seen.fault or seen.app is None or foreign else tuple(_steps(seen, seen.app))
    made = seen.secret_made or any(step.verb is Verb.SECRET for step in steps)
    status = make_status(seen, standing, secret_made=made)
    events = tuple(_events_of(seen, standing)) if status is not None else ()
    again = _moments(seen)
    if standing.phase == WAITING:
        again.append(LOOK_AGAIN)
    return Plan(steps, status, events, min(again, default=None))


# --- the schedule


def _by_schedule(seen: Seen) -> Step | None:
    """Start or stop the workspace at the newest time of its schedule. Each time is handled once.

    A new or changed schedule applies from now on.
    """
    schedule, note = seen.view.spec.schedule, seen.view.notes.get(SCHEDULED_ANNOTATION, "")
    if schedule is None:
        return _note(seen, None) if note else None
    digest, _, text = note.partition(" ")
    if digest != schedule_hash(schedule):
        return _note(seen, f"{schedule_hash(schedule)} {rfc3339(seen.now)}")
    try:
        heard = moment(text)
    except ValueError:
        heard = None
    if heard is None:
        return _note(seen, f"{digest} {rfc3339(seen.now)}")
    last = _last(schedule, seen.now, heard)
    if last is None:
        return None
    running, at = last
    return _note(seen, f"{digest} {rfc3339(at)}", running=running)


def schedule_hash(schedule: Schedule) -> str:
    text = json.dumps([schedule.start, schedule.stop, schedule.time_zone])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _last(schedule: Schedule, now: datetime, after: datetime) -> tuple[bool, datetime] | None:
    """The newest scheduled time in (after, now], and whether it starts the workspace.

    At equal times, the stop wins.
    """
    zone = _zone(schedule)
    moments = [
        (at, running)
        for text, running in ((schedule.start, True), (schedule.stop, False))
        if text and (at := last_moment(text, now, after, zone)) is not None
    ]
    if not moments:
        return None
    at, running = max(moments, key=lambda moment: (moment[0], not moment[1]))
    return running, at


def _zone(schedule: Schedule) -> Any:
    return zone_named(schedule.time_zone)


def _note(seen: Seen, text: str | None, *, running: bool | None = None) -> Step:
    """One patch for the state and for the scheduled time, so that both change together."""
    meta: Obj = {"annotations": {SCHEDULED_ANNOTATION: text}, "uid": seen.view.uid}
    if version := seen.obj["metadata"].get("resourceVersion"):
        meta["resourceVersion"] = version
    patch: Obj = {"metadata": meta}
    if running is not None:
        patch["spec"] = {"running": running}
    return Step(Verb.PATCH, None, patch, seen.view.name, seen.view.uid)


def next_moments(schedule: Schedule | None, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The next scheduled start and stop; None without one."""
    if schedule is None:
        return None, None
    zone = _zone(schedule)
    return (
        next_moment(schedule.start, now, zone) if schedule.start else None,
        next_moment(schedule.stop, now, zone) if schedule.stop else None,
    )


def _moments(seen: Seen) -> list[timedelta]:
    if seen.fault:
        return []
    return [at - seen.now for at in next_moments(seen.view.spec.schedule, seen.now) if at is not None]


# --- objects


def _steps(seen: Seen, app: App) -> Iterator[Step]:
    view = seen.view
    if not seen.secret_made:
        yield Step(Verb.SECRET)
    if view.spec.running and seen.home is None:
        yield Step(Verb.CREATE, PVCS, make_home(view))
    yield from _kept(SERVICES, make_service(view, seen.obj, app), seen.service)
    yield from _entrance(seen)
    terms = gpu_terms(view.spec.resources.gpu_type, seen.gpu_types)
    if terms is None and seen.deployment is None:
        return  # the status has the reason: the GPU type is unknown
    wanted = make_deployment(view, seen.obj, app, gpu_terms=terms or (), on_processes=seen.on_processes)
    if seen.deployment is None:
        yield Step(Verb.CREATE, DEPLOYMENTS, wanted)
    elif is_deleting(seen.deployment):
        return  # it is created again after its deletion
    elif step := _changed(view, app, seen.deployment, wanted, known=terms is not None):
        yield step


def _changed(view: WorkspaceView, app: App, stored: Obj, wanted: Obj, *, known: bool) -> Step | None:
    """Replace a Deployment with other replicas or another spec; None if both are equal.

    It is read and replaced as a whole, because a merge patch does not remove fields that it leaves out.
    """
    replicas = 1 if view.spec.running else 0
    same = annotations_of(stored).get(MADE_FROM_ANNOTATION) == made_from(view, app) or not known
    if same and int((stored.get("spec") or {}).get("replicas", 1)) == replicas:
        return None
    if not same and queue_of(stored) != view.queue:
        return _gone(DEPLOYMENTS, stored)  # Kueue refuses to change the queue of a Deployment that has run
    spec = (stored.get("spec") or {}) | {"replicas": replicas}
    meta = dict(stored["metadata"])
    if not same:
        spec |= {"template": wanted["spec"]["template"], "strategy": wanted["spec"]["strategy"]}
        meta["annotations"] = (meta.get("annotations") or {}) | wanted["metadata"]["annotations"]
        meta["labels"] = (meta.get("labels") or {}) | wanted["metadata"]["labels"]
    changed = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "metadata": meta, "spec": spec}
    return Step(Verb.REPLACE, DEPLOYMENTS, changed, meta["name"], meta.get("uid") or "")


def _entrance(seen: Seen) -> Iterator[Step]:
    """The Ingress, and for access by login also the Service of the gateway."""
    view, platform = seen.view, seen.platform
    if platform.domain and view.access(platform) == LOGIN:
        yield from _kept(SERVICES, make_gateway_service(view, seen.obj), seen.gateway_service)
        if seen.gateway is not None:
            wanted = make_gateway_slice(view, seen.obj, seen.gateway)
            stored = seen.gateway_slice
            if stored is not None and stored.get("addressType") != wanted["addressType"]:
                yield _gone(ENDPOINTSLICES, stored)  # it cannot be changed
            else:
                yield from _kept(ENDPOINTSLICES, wanted, stored)
    else:
        for resource, stored in ((ENDPOINTSLICES, seen.gateway_slice), (SERVICES, seen.gateway_service)):
            if stored is not None:
                yield _gone(resource, stored)
    if platform.domain:
        yield from _kept(INGRESSES, make_ingress(view, seen.obj, platform), seen.ingress)
    elif seen.ingress is not None:
        yield _gone(INGRESSES, seen.ingress)


def _kept(resource: Resource, wanted: Obj, stored: Obj | None) -> Iterator[Step]:
    if stored is None:
        yield Step(Verb.CREATE, resource, wanted)
        return
    body = {key: value for key, value in wanted.items() if key not in ("apiVersion", "kind", "metadata")}
    marks = {key: wanted["metadata"].get(key) for key in ("labels", "annotations") if wanted["metadata"].get(key)}
    if not is_like(body, stored) or not is_like(marks, stored["metadata"]):
        uid = stored["metadata"].get("uid") or ""
        yield Step(
            Verb.PATCH, resource, {"metadata": marks | {"uid": uid}} | body, wanted["metadata"]["name"], uid
        )


def _gone(resource: Resource, stored: Obj) -> Step:
    return Step(Verb.DELETE, resource, {}, stored["metadata"]["name"], stored["metadata"].get("uid") or "")


def gpu_terms(asked: str, known: Iterable[GpuType]) -> list[Obj] | None:
    """Node selector terms of a GPU type as a user names it; [] for none; None if such GPUs do not exist."""
    if not asked:
        return []
    types = list(known)
    chosen = [gpu_type for gpu_type in types if gpu_type.value.lower() == asked.lower()]
    chosen = chosen or [gpu_type for gpu_type in types if matches_type(asked, gpu_type.value)]
    values: dict[str, set[str]] = {}
    for gpu_type in chosen:
        values.setdefault(gpu_type.label, set()).add(gpu_type.value)
    return [
        {"matchExpressions": [{"key": label, "operator": "In", "values": sorted(names)}]}
        for label, names in sorted(values.items())
    ] or None


def _foreign(seen: Seen) -> str:
    """Why an object cannot be made: another owner's object has its name."""
    for child in (
        seen.deployment, seen.service, seen.gateway_service, seen.gateway_slice, seen.ingress,
    ):  # fmt: skip
        if child is None:
            continue
        owner = controller_ref(child)
        if owner is None or owner.get("uid") != seen.view.uid:
            kind, name = child.get("kind") or "an object", child["metadata"]["name"]
            return f"{kind} {name} exists that is not of this workspace: remove or rename it"
    return ""


# --- phase


def _standing(seen: Seen, foreign: str) -> Standing:
    alive = sorted(
        (pod for pod in seen.pods if not _is_over(pod)),
        key=lambda pod: (not is_deleting(pod), pod["metadata"].get("creationTimestamp") or ""),
    )
    pod = alive[-1] if alive else None
    if not seen.view.spec.running and not seen.fault:
        if pod is None:
            return Standing(STOPPED, "Stopped", "it is stopped; its home remains")
        return Standing(STOPPING, "Stopping", "its processes are being asked to end", pod)
    if seen.fault:
        return Standing(FAILED, seen.fault_reason, seen.fault)
    if seen.app is None:
        name = seen.view.spec.type
        return Standing(FAILED, "UnknownType", f"spec.type: {name!r} {allowed_types(name, seen.templates)}")
    if foreign:
        return Standing(FAILED, "NameTaken", foreign)
    asked = seen.view.spec.resources.gpu_type
    if gpu_terms(asked, seen.gpu_types) is None:
        there = ", ".join(sorted({gpu_type.value for gpu_type in seen.gpu_types})) or "none"
        return Standing(WAITING, "UnknownGpuType", f"GPU type {asked!r} not found; available: {there}")
    if pod is None:
        return _without_pod(seen)
    if is_deleting(pod):
        return Standing(STARTING, "Replacing", "its former pod is being asked to end", pod)
    return _with_pod(seen, pod)


def _without_pod(seen: Seen) -> Standing:
    failure = condition(seen.deployment or {}, "ReplicaFailure")
    if failure is not None and failure.get("status") == "True":
        message = str(failure.get("message") or "its pod cannot be created")
        if "exceeded quota" in message:
            return Standing(WAITING, "Quota", message)
        return Standing(WAITING, "Refused", message)
    return Standing(STARTING, "Starting", "its pod is being made")


def _with_pod(seen: Seen, pod: Obj) -> Standing:
    status, gates = pod.get("status") or {}, (pod.get("spec") or {}).get("schedulingGates") or ()
    if is_condition_true(pod, "Ready"):
        return Standing(RUNNING, "Ready", "it can be opened", pod, is_ready=True)
    if not (pod.get("spec") or {}).get("nodeName"):
        names = [str(gate.get("name")) for gate in gates]
        if ADMISSION_GATE in names:  # before a machine: it gets none while Kueue holds it
            return Standing(WAITING, "Queue", _in_queue(seen.queue), pod)
        if MACHINE_GATE in names:
            return Standing(WAITING, "Machine", seen.line or "it waits for a machine", pod)
        if MEMORY_GATE in names:
            held = annotations_of(pod).get(MEMORY_HELD_ANNOTATION)
            return Standing(WAITING, "Memory", held or "it was killed for its memory, and is held", pod)
        if names:
            return Standing(WAITING, "Gate", f"held by gate {names[0]}", pod)
        return _unscheduled(seen, pod)
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, message = state.get("waiting") or {}, ""
        reason = str(waiting.get("reason") or "")
        if reason in IMAGE_REASONS:
            message = str(waiting.get("message") or reason)
            return Standing(WAITING, "Image", f"image {container.get('image')}: {message}", pod)
        if reason in CONFIG_REASONS:
            return Standing(WAITING, "Config", str(waiting.get("message") or reason), pod)
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
        if ended and (reason not in NO_CONTAINER or state.get("terminated")):
            return Standing(FAILED, "Crashes", _crash(ended, int(container.get("restartCount") or 0)), pod)
        if state.get("running"):
            return Standing(STARTING, "Starting", "its application is starting", pod)
    if failing := _trouble(pod):
        return Standing(WAITING, "Volume", failing, pod)
    return Standing(STARTING, "Starting", f"it has its place on {pod['spec']['nodeName']}", pod)


def _in_queue(wait: QueueWait | None) -> str:
    if wait is None:
        return "it waits in a queue of Kueue"
    return f"it waits in Kueue's queue {wait.queue}" + (f": {wait.message}" if wait.message else "")


def _unscheduled(seen: Seen, pod: Obj) -> Standing:
    if seen.missing_claims:
        names = ", ".join(seen.missing_claims)
        verb = "do" if len(seen.missing_claims) > 1 else "does"
        return Standing(WAITING, "Volume", f"volume {names} {verb} not exist", pod)
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        message = seen.line or str(scheduled.get("message") or "no node fits")
        is_volume = "PersistentVolumeClaim" in message or message.startswith("volume ")
        return Standing(WAITING, "Volume" if is_volume else "Unschedulable", message, pod)
    return Standing(STARTING, "Starting", "its pod is about to get a node", pod)


def _trouble(pod: Mapping[str, Any]) -> str:
    """The kubelet's message about a pod that it cannot set up."""
    stated = condition(pod, "PodReadyToStartContainers", status="False") or {}
    return str(stated.get("message") or "")


def _crash(ended: Mapping[str, Any], restarts: int) -> str:
    code, reason = ended.get("exitCode"), str(ended.get("reason") or "")
    if reason == "OOMKilled":
        return "it was killed for its memory: ask for more"
    message = str(ended.get("message") or "").strip()
    times = f", {restarts} times" if restarts > 1 else ""
    return f"its application ended with exit code {code}{times}" + (f": {message[:500]}" if message else "")


def _is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


# --- status and events


def make_status(seen: Seen, standing: Standing, *, secret_made: bool) -> Obj | None:
    """The new status; None if it is unchanged."""
    view, platform = seen.view, seen.platform
    before: Obj = seen.obj.get("status") or {}
    pod = standing.pod or {}
    starts, stops = next_moments(view.spec.schedule, seen.now) if not seen.fault else (None, None)
    ready_at = ""
    if standing.is_ready:
        ready_at = str((condition(pod, "Ready") or {}).get("lastTransitionTime") or "")
    path = seen.app.path if seen.app is not None else ""
    status: Obj = {
        "phase": standing.phase,
        "url": platform.url(platform.host(view.namespace, view.name), path or "/") if platform.domain else "",
        "access": view.access(platform),
        "pod": (pod.get("metadata") or {}).get("name") or "",
        "node": (pod.get("spec") or {}).get("nodeName") or "",
        "secret": view.secret_name if secret_made else "",
        "home": view.home_claim,
        "readyAt": ready_at,
        "nextStart": rfc3339(starts) if starts else "",
        "nextStop": rfc3339(stops) if stops else "",
        "observedGeneration": view.generation,
    }
    status = {key: value for key, value in status.items() if value not in ("", None)}
    if standing.phase in (WAITING, STARTING, FAILED):
        status["waitingFor"] = {"reason": standing.reason, "message": standing.message[:4000]}
    status["conditions"] = with_condition(
        before.get("conditions") or [],
        "Ready",
        "True" if standing.is_ready else "False",
        now=rfc3339(seen.now),
        reason=standing.reason,
        message=standing.message[:4000],
        observedGeneration=view.generation,
    )
    return None if before == status else status


def merge_of(before: Mapping[str, Any], status: Mapping[str, Any]) -> Obj:
    """The merge patch from one status to another: removed fields are set to null."""
    return {**dict.fromkeys(key for key in before if key not in status), **status}


def _events_of(seen: Seen, standing: Standing) -> Iterator[Event]:
    before = seen.view.status
    waited = before.waiting_for.reason if before.waiting_for is not None else ""
    if before.phase == standing.phase and (standing.phase not in (WAITING, FAILED) or waited == standing.reason):
        return
    match standing.phase:
        case "Running":
            yield Event("Normal", "Ready", "the workspace can be opened")
        case "Stopped" if before.phase:
            yield Event("Normal", "Stopped", "the workspace is stopped; its home remains")
        case "Waiting":
            yield Event("Normal", f"WaitsFor{standing.reason}", standing.message[:900])
        case "Failed":
            yield Event("Warning", standing.reason, standing.message[:900])


def waits_in_queue(pods: Iterable[Obj]) -> Obj | None:
    """The pod that Kueue holds, or None."""
    return next((pod for pod in pods if not is_deleting(pod) and is_held(pod)), None)


def waits_for_machine(pods: Iterable[Obj]) -> Obj | None:
    """The pod that waits for its machine, or None."""
    for pod in pods:
        if not is_deleting(pod) and has_gate(pod.get("spec") or {}, MACHINE_GATE):
            return pod
    return None
