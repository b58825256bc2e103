"""Convert between a MapJob's objects and its decision: read Jobs and pods, build the Job and its ConfigMap."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from moorage.controllers.mapjob.bundle import NAME as WORKER_FILE
from moorage.controllers.mapjob.bundle import worker_zip
from moorage.controllers.mapjob.plan import GRACE_SECONDS, JobSeen, PodSeen
from moorage.decide.admission.templates import is_guest
from moorage.decide.runs.kueue import is_held
from moorage.decide.runs.request import DEFAULT_CPU, DEFAULT_MEMORY, unexpanded
from moorage.model.kueue import ADMISSION_GATE, QUEUE_LABEL
from moorage.model.manifests import HOSTNAME, ZONE, spread
from moorage.model.mapjob import FUNCTION_FILE, MAPJOBS, MOUNT, MapView, function_file
from moorage.model.names import (
    MAP_LABEL,
    MAP_RELEASED_ANNOTATION,
    MAP_ROUND_LABEL,
    MAP_SCALED_ANNOTATION,
    MAP_TEMPLATE_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    attempt_name,
)
from moorage_kube.errors import QuantityError
from moorage_kube.integers import integer_or
from moorage_kube.meta import (
    annotations_of,
    condition,
    controller_ref,
    is_condition_true,
    is_deleting,
    labels_of,
    owner_reference,
    variable_of,
)
from moorage_kube.moments import moment, rfc3339
from moorage_kube.quantity import amount
from moorage_kube.resources import JOBS, Obj
from moorage_kube.scheduling import NodeInfo, parse_pod, refusal_by_labels, refusal_by_taints

BACKOFF_LIMIT = 2**31 - 1  # the limit is ours: see plan
WORKER_PATH, FUNCTION_PATH = f"{MOUNT}/worker", f"{MOUNT}/function"
SPOT_TAINTS = (  # of preemptible nodes
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "kubernetes.azure.com/scalesetpriority",
    "node.moorage.dev/spot",
)
TRACKING = "batch.kubernetes.io/job-tracking"  # finalizer of a pod that its Job has not counted
BY_KUBELET = "TerminationByKubelet"  # a disruption that may be for the pod's own memory
_WORKER, _FUNCTION = "moorage-worker", "moorage-function"


def template_hash(view: MapView) -> str:
    """A hash of everything that a worker pod is built from. The worker of a newer Moorage does not change it."""
    spec = view.spec
    function = None if spec.function is None else [spec.function.config_map, function_file(spec.function)]
    preflight = None if spec.preflight is None else [spec.preflight.read, spec.preflight.write]
    parts: list[Any] = [spec.template, spec.command, function, view.slots, preflight, spec.spot]
    parts += [view.local_queue] if view.local_queue else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def config_name(view: MapView) -> str:
    """The name of the ConfigMap with the worker. Another worker or another MapJob gives another name."""
    digest = hashlib.sha256(view.uid.encode() + worker_zip()).hexdigest()[:8]
    return f"{view.name}-worker-{digest}"


def make_config(view: MapView, obj: Obj) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_name(view),
            "namespace": view.namespace,
            "labels": {MAP_LABEL: view.name},
            "ownerReferences": [owner_reference(_typed(obj), controller=False)],
        },
        "immutable": True,
        "binaryData": {WORKER_FILE: base64.b64encode(worker_zip()).decode()},
    }


def make_job(view: MapView, obj: Obj, *, number: int, parallelism: int) -> Obj:
    """The Job of one round. Its pods, not the Job, are in the Kueue queue.

    Kueue would suspend the Job at each change of its scale.
    """
    labels = {MAP_LABEL: view.name} | ({OWNER_LABEL: view.owner_label} if view.owner_label else {})
    notes = {OWNER_ANNOTATION: view.owner} if view.owner else {}
    given = view.spec.template.get("metadata") or {}
    queue = {QUEUE_LABEL: view.local_queue} if view.local_queue else {}
    pod_meta: Obj = {"labels": (given.get("labels") or {}) | queue | labels}
    if pod_notes := (given.get("annotations") or {}) | notes:
        pod_meta["annotations"] = pod_notes
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": attempt_name(view.name, number),
            "namespace": view.namespace,
            "labels": labels | {MAP_ROUND_LABEL: str(number)},
            "annotations": notes | {MAP_TEMPLATE_ANNOTATION: template_hash(view)},
            "ownerReferences": [owner_reference(_typed(obj))],
        },
        "spec": {
            "parallelism": parallelism,
            "backoffLimit": BACKOFF_LIMIT,
            "template": {"metadata": pod_meta, "spec": make_pod_spec(view)},
        },
    }


def make_pod_spec(view: MapView) -> Obj:
    """The worker's pod: the MapJob's template, with the worker's command in its first container."""
    spec: Obj = json.loads(json.dumps(view.spec.template.get("spec") or {}))
    spec["restartPolicy"] = "Never"
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    worker = spec["containers"][0]
    has_machine = is_guest(view.spec.template)  # which gives the worker its size, at admission
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        _equalise(container, fill=container is worker and not has_machine)
    worker.setdefault("name", "worker")
    worker["command"] = ["python3", f"{WORKER_PATH}/{WORKER_FILE}"]
    worker.pop("args", None)
    worker["env"] = [*(worker.get("env") or ()), *_environment(view, spec, worker, has_machine=has_machine)]
    volumes = [*(spec.get("volumes") or ()), {"name": _WORKER, "configMap": {"name": config_name(view)}}]
    mounts = [
        *(worker.get("volumeMounts") or ()),
        {"name": _WORKER, "mountPath": WORKER_PATH, "readOnly": True},
    ]
    if view.spec.function is not None:
        file = function_file(view.spec.function)
        source = {"name": view.spec.function.config_map, "items": [{"key": file, "path": FUNCTION_FILE}]}
        volumes.append({"name": _FUNCTION, "configMap": source})
        mounts.append({"name": _FUNCTION, "mountPath": FUNCTION_PATH, "readOnly": True})
    spec["volumes"], worker["volumeMounts"] = volumes, mounts
    if view.spec.spot:
        _allow_spot(view, spec)
    return spec


def grace_of(view: MapView) -> float:
    """The grace period of a worker in seconds."""
    given = (view.spec.template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return GRACE_SECONDS if given is None else float(given)


def hold_of(view: MapView, nodes: Iterable[NodeInfo]) -> int:
    """The number of workers that fit on all nodes if they were empty."""
    pod = parse_pod({"metadata": {"name": view.name, "namespace": view.namespace}, "spec": make_pod_spec(view)})
    total = 0
    for node in nodes:
        if not node.ready or refusal_by_labels(pod, node) or refusal_by_taints(pod, node):
            continue
        fits = [
            node.allocatable.get(name, 0) // asked
            for name, asked in pod.requests.items()
            if asked > 0 and (name != "pods" or name in node.allocatable)
        ]
        total += min(fits, default=0)
    return total


def quota_of(view: MapView, quotas: Iterable[Mapping[str, Any]]) -> int | None:
    """The number of additional workers within the namespace's quotas; None: no limit.

    Scoped quotas are ignored.
    """
    spec = make_pod_spec(view)
    pod = parse_pod({"metadata": {"name": view.name, "namespace": view.namespace}, "spec": spec})
    needs: dict[str, int] = {"pods": 1, "count/pods": 1}
    for name, asked in pod.requests.items():
        if name != "pods":
            needs |= {f"requests.{name}": asked, f"limits.{name}": asked, name: asked}
    allowed: list[int] = []
    for quota in quotas:
        if (quota.get("spec") or {}).get("scopes") or (quota.get("spec") or {}).get("scopeSelector"):
            continue
        status = quota.get("status") or {}
        for name, hard in (status.get("hard") or {}).items():
            need = needs.get(name)
            if not need:
                continue
            plain = name.removeprefix("requests.").removeprefix("limits.")
            try:
                left = amount(plain, str(hard)) - amount(plain, str((status.get("used") or {}).get(name, "0")))
            except QuantityError:
                continue
            allowed.append(max(0, left // need))
    return min(allowed, default=None)


def uncounted_of(job: Obj, pods: Iterable[Obj]) -> int:
    """The number of ending pods that the Job has not counted yet: it counts them only when it may create others.

    Pods that the Job itself gives up are not included: they have already lost its finalizer.
    """
    noted = (job.get("status") or {}).get("uncountedTerminatedPods") or {}
    known = {uid for outcome in ("succeeded", "failed") for uid in noted.get(outcome) or ()}
    return sum(
        1
        for pod in pods
        if TRACKING in (pod["metadata"].get("finalizers") or ())
        and pod["metadata"]["uid"] not in known
        and (controller_ref(pod) or {}).get("uid") == job["metadata"]["uid"]
        and not is_alive(pod)
    )


def is_alive(pod: Mapping[str, Any]) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return phase not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")


def job_seen(job: Obj, *, uncounted_pods: int = 0, alive: int = 0) -> JobSeen:
    """Parse a Job.

    `uncounted_pods`: the result of `uncounted_of`; `alive`: its pods that are not ended or ending.
    """
    meta, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    uncounted = status.get("uncountedTerminatedPods") or {}
    failed = condition(job, "Failed") if is_condition_true(job, "Failed") else None
    counted = int(status.get("succeeded") or 0) + int(status.get("failed") or 0)
    noted = sum(len(uncounted.get(outcome) or ()) for outcome in ("succeeded", "failed"))
    number = labels_of(job).get(MAP_ROUND_LABEL, "1")
    return JobSeen(
        round=integer_or(number, 1),
        name=meta["name"],
        uid=meta["uid"],
        template=annotations_of(job).get(MAP_TEMPLATE_ANNOTATION, ""),
        parallelism=int(spec.get("parallelism", 1)),
        active=max(alive, int(status.get("active") or 0) - uncounted_pods),
        ready=int(status.get("ready") or 0),
        ended=counted + uncounted_pods + noted,
        finished=is_condition_true(job, "Complete") or failed is not None,
        deleting=is_deleting(job),
        failure=str((failed or {}).get("message") or ""),
        scaled_at=_when(annotations_of(job).get(MAP_SCALED_ANNOTATION)),
        released=integer_or(annotations_of(job).get(MAP_RELEASED_ANNOTATION), 0, minimum=0),
    )


def is_noteworthy(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has information that the counts of its Job lack."""
    status = pod.get("status") or {}
    if not is_alive(pod):
        return True
    if is_held(pod):
        return True
    return any((status.get("state") or {}).get("waiting") for status in status.get("containerStatuses") or ())


def keep_pod(pod: Obj) -> Obj:
    """The fields needed of a worker's pod; thousands are cached."""
    meta, status = pod["metadata"], pod.get("status") or {}
    wanted = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences", "creationTimestamp")
    kept_meta = {key: meta[key] for key in (*wanted, "deletionTimestamp", "finalizers") if key in meta}
    kept = {key: status[key] for key in ("phase", "reason", "message") if key in status}
    if is_noteworthy(pod):
        kept |= {key: status[key] for key in ("conditions", "containerStatuses") if key in status}
    gates = {"spec": {"schedulingGates": [{"name": ADMISSION_GATE}]}} if is_held(pod) else {}
    return {"metadata": kept_meta, "status": kept} | gates


def pod_seen(pod: Obj) -> PodSeen:
    meta, status = pod["metadata"], pod.get("status") or {}
    owner = controller_ref(pod)
    waiting, reason, message = "", str(status.get("reason") or ""), ""
    code: int | None = None
    ended: datetime | None = None
    for container_status in status.get("containerStatuses") or ():
        state = container_status.get("state") or {}
        if waiting_state := state.get("waiting"):
            waiting = waiting or str(waiting_state.get("reason") or "")
            message = message or str(waiting_state.get("message") or "")
        if (over := state.get("terminated")) and (code is None or not code):
            code = int(over.get("exitCode") or 0)
            if over.get("reason") not in (None, "Completed", "Error"):
                reason = reason or str(over["reason"])
            message = str(over.get("message") or "") or message
            ended = _when(over.get("finishedAt")) or ended
    disruption = condition(pod, "DisruptionTarget") if is_condition_true(pod, "DisruptionTarget") else None
    return PodSeen(
        name=meta["name"],
        job=str((owner or {}).get("uid") or ""),
        created=_when(meta.get("creationTimestamp")) or datetime.min.replace(tzinfo=UTC),
        phase=str(status.get("phase") or "Pending"),
        held=is_held(pod),
        deleting=is_deleting(pod),
        disrupted=disruption is not None and disruption.get("reason") != BY_KUBELET,
        waiting=waiting,
        reason=reason,
        code=code,
        message=message or str(status.get("message") or ""),
        ended=ended,
    )


def scaled(job: JobSeen, parallelism: int, now: datetime) -> Obj:
    """The patch that scales a Job. It is a Conflict for another Job of that name."""
    patch: Obj = {"metadata": {"uid": job.uid}, "spec": {"parallelism": parallelism}}
    if parallelism < job.parallelism:
        patch["metadata"]["annotations"] = {
            MAP_SCALED_ANNOTATION: rfc3339(now),
            MAP_RELEASED_ANNOTATION: str(job.released_at(parallelism)),
        }
    return patch


def _environment(view: MapView, spec: Obj, worker: Obj, *, has_machine: bool) -> list[Obj]:
    settings: Obj = {"slots": view.slots}
    if view.spec.function is not None:
        settings["function"] = f"{FUNCTION_PATH}/{FUNCTION_FILE}"
    else:
        settings["command"] = view.spec.command
    if view.spec.preflight is not None:
        settings["preflight"] = {"read": view.spec.preflight.read, "write": view.spec.preflight.write}
    memory = ((worker.get("resources") or {}).get("limits") or {}).get("memory")
    limit: Obj = {"value": str(amount("memory", str(memory)) if memory else 0)}
    if has_machine and not memory:
        limit = {"valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}
    token = {"secretKeyRef": {"name": view.status.queue.secret, "key": "token"}}
    return [
        {"name": "MOORAGE_SERVER", "value": view.status.queue.url},
        {"name": "MOORAGE_MAP_TOKEN", "valueFrom": token},
        {"name": "MOORAGE_MAP", "value": unexpanded(json.dumps(settings, ensure_ascii=False))},
        variable_of("MOORAGE_POD", "metadata.name"),
        {"name": "MOORAGE_MEMORY"} | limit,
        {"name": "MOORAGE_GRACE", "value": f"{spec.get('terminationGracePeriodSeconds', GRACE_SECONDS):g}"},
    ]


def _equalise(container: Obj, *, fill: bool) -> None:
    """Set requests equal to limits, for CPU and memory. `fill`: missing ones get defaults."""
    resources = container.setdefault("resources", {})
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    for name, usual in (("cpu", DEFAULT_CPU), ("memory", DEFAULT_MEMORY)):
        value = limits.get(name) or requests.get(name) or (usual if fill else None)
        if value is not None:
            limits[name] = requests[name] = value
    amounts: Obj = {"limits": limits, "requests": requests} if limits or requests else {}
    container["resources"] = amounts | {key: resources[key] for key in ("claims",) if resources.get(key)}


def _allow_spot(view: MapView, spec: Obj) -> None:
    tolerations = list(spec.get("tolerations") or ())
    known = {toleration.get("key") for toleration in tolerations}
    tolerations += [{"key": key, "operator": "Exists"} for key in SPOT_TAINTS if key not in known]
    spec["tolerations"] = tolerations
    if not spec.get("topologySpreadConstraints"):
        spec["topologySpreadConstraints"] = [spread({MAP_LABEL: view.name}, by) for by in (ZONE, HOSTNAME)]


def _typed(obj: Obj) -> Obj:
    return {"apiVersion": MAPJOBS.api_version, "kind": MAPJOBS.kind} | obj


def _when(text: str | None) -> datetime | None:
    """Any user may have written it: an unreadable value counts as missing."""
    try:
        return moment(text)
    except ValueError:
        return None
