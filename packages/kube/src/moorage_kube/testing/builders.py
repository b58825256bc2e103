"""Objects of Kubernetes for tests: pods, nodes, jobs, and any other resource.

An absent or empty argument leaves its field out. The mappings `metadata`, `spec` and `status` are merged last and
replace whole fields. Times are datetimes, or text as Kubernetes writes it. `gpus` is a limit of nvidia.com/gpu.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from moorage_kube.clock import rfc3339
from moorage_kube.resources import (
    CRDS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICASETS,
    SERVICES,
    STATEFULSETS,
    Obj,
    Resource,
)
from moorage_kube.testing.clock import NOON

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
Fields = Mapping[str, Any]
Time = datetime | str
_API_VERSIONS = {
    kind.kind: kind.api_version for kind in (DEPLOYMENTS, JOBS, NODES, PODS, REPLICASETS, SERVICES, STATEFULSETS)
}


class Meta(TypedDict, total=False):
    """Arguments that all objects take. `deleting`: True for NOON, or the time. `owner`: one of `an_owner`."""

    namespace: str
    uid: str
    labels: Fields | None
    annotations: Fields | None
    owner: Fields | None
    created: Time | None
    deleting: Time | bool
    finalizers: Iterable[str]
    resource_version: int | str
    generation: int
    metadata: Fields | None


def given(**fields: Any) -> Obj:
    """The fields that are neither None nor empty; 0 and False stay."""
    return {key: value for key, value in fields.items() if value is not None and value not in ("", [], (), {})}


def time_of(time: Time | None) -> str | None:
    return rfc3339(time) if isinstance(time, datetime) else time


def an_object(
    resource: Resource,
    name: str,
    *,
    spec: Fields | None = None,
    status: Fields | None = None,
    namespace: str = "lab",
    uid: str = "",
    labels: Fields | None = None,
    annotations: Fields | None = None,
    owner: Fields | None = None,
    created: Time | None = None,
    deleting: Time | bool = False,
    finalizers: Iterable[str] = (),
    resource_version: int | str = "",
    generation: int | None = None,
    metadata: Fields | None = None,
    **fields: Any,
) -> Obj:
    """An object of any resource; in namespace "lab" where the resource has namespaces. `fields`: at the top."""
    meta = given(
        name=name,
        namespace=namespace if resource.namespaced else None,
        uid=uid,
        labels=dict(labels or {}),
        annotations=dict(annotations or {}),
        ownerReferences=[dict(owner)] if owner else None,
        creationTimestamp=time_of(created),
        deletionTimestamp=time_of(NOON if deleting is True else deleting or None),
        finalizers=list(finalizers),
        resourceVersion=str(resource_version),
        generation=generation,
    ) | dict(metadata or {})
    kind = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
    return kind | given(spec=spec, status=status) | fields


def a_pod(
    name: str = "p",
    *,
    node: str = "",
    phase: str = "",
    ready: bool | None = None,
    conditions: Iterable[Fields] = (),
    tolerations: Iterable[Fields] = (),
    claims: Iterable[str] = (),
    gates: Iterable[str] = (),
    containers: Iterable[str | Fields] = (),
    container: Fields | None = None,
    started: Time | None = None,
    finished: Time | None = None,
    exit_code: int | None = None,
    statuses: Iterable[Fields] = (),
    image: str = "",
    command: Iterable[str] = (),
    requests: Fields | None = None,
    limits: Fields | None = None,
    gpus: int | str = 0,
    spec: Fields | None = None,
    status: Fields | None = None,
    **meta: Unpack[Meta],
) -> Obj:
    """Pod lab/p with one container, "main", and no status.

    `image` to `gpus` and the fields of `container` are the container's; `containers` replaces it: names, or whole
    containers. `claims`: a volume for each, with the claim's name. `exit_code` or `finished`: the container has
    ended, and the default of `phase` is Succeeded or Failed.
    """
    given_main = {"image": image, "command": command, "requests": requests, "limits": limits, "gpus": gpus}
    main = a_container(**given_main | dict(container or {}))
    # an ended container implies a phase, which a test may still set
    if exit_code is not None or finished:
        phase = phase or ("Failed" if exit_code else "Succeeded")
        statuses = [a_container_status(main["name"], exit_code=exit_code or 0, started=started, finished=finished)]
    made = given(
        nodeName=node,
        containers=[{"name": each} if isinstance(each, str) else dict(each) for each in containers] or [main],
        tolerations=list(tolerations),
        volumes=[{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims],
        schedulingGates=[{"name": gate} for gate in gates],
    )
    state = given(
        phase=phase,
        startTime=time_of(started),
        conditions=[*conditions, *([] if ready is None else [a_condition("Ready", ready)])],
        containerStatuses=list(statuses),
    )
    return an_object(PODS, name, spec=made | dict(spec or {}), status=state | dict(status or {}), **meta)


def a_container(name: str = "main", *, gpus: int | str = 0, **fields: Any) -> Obj:
    """A container; `requests` and `limits` of the `fields` become its resources, as `gpus` does."""
    limits = dict(fields.pop("limits", None) or {}) | ({GPU: str(gpus)} if gpus else {})
    resources = given(requests=fields.pop("requests", None), limits=limits)
    fields["command"] = list(fields.get("command") or ())
    return given(**{"name": name, "resources": resources} | fields)


def a_container_status(
    name: str = "main",
    *,
    exit_code: int | None = None,
    reason: str = "",
    message: str = "",
    started: Time | None = None,
    finished: Time | None = None,
    devices: Iterable[str] = (),
    resource: str = GPU,
    **fields: Any,
) -> Obj:
    """Status of a container: terminated with `exit_code`, running with `started`, waiting with `reason`.

    `devices`: ids of the devices of `resource` that it has.
    """
    words = given(reason=reason, message=message)
    began = given(startedAt=time_of(started))
    state: Obj = {}
    if exit_code is not None:
        state = {"terminated": {"exitCode": exit_code} | words | began | given(finishedAt=time_of(finished))}
    elif started:
        state = {"running": began}
    elif reason:
        state = {"waiting": words}
    listed = [{"resourceID": device} for device in devices]
    allocated = [{"name": resource, "resources": listed}] if listed else None
    return given(**{"name": name, "state": state, "allocatedResourcesStatus": allocated} | fields)


def a_node(
    name: str = "n1",
    *,
    gpus: int | str = 0,
    gpu_type: str = "",
    cpu: str = "4",
    memory: str = "8Gi",
    pods: str = "110",
    allocatable: Fields | None = None,
    capacity: Fields | None = None,
    ready: bool | None = True,
    conditions: Iterable[Fields] = (),
    cordoned: bool = False,
    taints: Iterable[Fields] = (),
    spec: Fields | None = None,
    status: Fields | None = None,
    **meta: Unpack[Meta],
) -> Obj:
    """Node n1, ready, with 4 CPUs, 8Gi and 110 pods, and always with a spec.

    An empty amount leaves that resource out. `allocatable`: more resources. `capacity`: differences to
    `allocatable`; None leaves the field out. `gpu_type`: the label nvidia.com/gpu.product.
    """
    amounts = (
        given(cpu=cpu, memory=memory, pods=pods) | ({GPU: str(gpus)} if gpus else {}) | dict(allocatable or {})
    )
    made = given(unschedulable=cordoned or None, taints=list(taints))
    state = given(
        allocatable=amounts,
        capacity=None if capacity is None else amounts | dict(capacity),
        conditions=[*([] if ready is None else [a_condition("Ready", ready)]), *conditions],
    )
    meta["labels"] = ({PRODUCT: gpu_type} if gpu_type else {}) | dict(meta.get("labels") or {})
    node = an_object(NODES, name, status=state | dict(status or {}), **meta)
    return node | {"spec": made | dict(spec or {})}


def a_job(
    name: str = "train",
    *,
    suspend: bool | None = None,
    end: str = "",
    reason: str = "",
    message: str = "",
    started: Time | None = None,
    finished: Time | None = None,
    pod_labels: Fields | None = None,
    pod_annotations: Fields | None = None,
    pod: Fields | None = None,
    container: Fields | None = None,
    spec: Fields | None = None,
    status: Fields | None = None,
    image: str = "",
    command: Iterable[str] = (),
    requests: Fields | None = None,
    limits: Fields | None = None,
    gpus: int | str = 0,
    **meta: Unpack[Meta],
) -> Obj:
    """Job lab/train with one container, "main", that is never restarted, and no status.

    The container is as in `a_pod`; `pod` is merged into the template's spec. The template's labels are
    `pod_labels`, else `labels`. `end`: type of a true condition, such as Complete or Failed, since `finished`.
    """
    given_main = {"image": image, "command": command, "requests": requests, "limits": limits, "gpus": gpus}
    main = a_container(**given_main | dict(container or {}))
    labels = meta.get("labels") if pod_labels is None else pod_labels
    template = given(
        metadata=given(labels=dict(labels or {}), annotations=dict(pod_annotations or {})),
        spec={"restartPolicy": "Never", "containers": [main]} | dict(pod or {}),
    )
    state = given(startTime=time_of(started))
    if end:
        state |= {"conditions": [a_condition(end, reason=reason, message=message, since=finished)]}
        state |= given(completionTime=time_of(finished if end == "Complete" else None))
    # `spec` replaces the fields of the other arguments
    made = given(suspend=suspend, template=template) | dict(spec or {})
    return an_object(JOBS, name, spec=made, status=state | dict(status or {}), **meta)


def a_deployment(
    name: str = "web",
    replicas: int | None = 1,
    *,
    resource: Resource = DEPLOYMENTS,
    app: str = "x",
    image: str = "",
    container: Fields | None = None,
    pod: Fields | None = None,
    spec: Fields | None = None,
    **meta: Any,
) -> Obj:
    """Deployment lab/web of one pod with the label app=x; `resource`: REPLICASETS or STATEFULSETS for those.

    `pod` is merged into the template's spec. `meta`: as in `an_object`.
    """
    labels = {"app": app}
    pods = {"containers": [a_container(**{"image": image} | dict(container or {}))]} | dict(pod or {})
    made = given(
        replicas=replicas,
        selector={"matchLabels": labels},
        template={"metadata": {"labels": labels}, "spec": pods},
    )
    return an_object(resource, name, spec=made | dict(spec or {}), **meta)


def a_definition(resource: Resource, *versions: str, short_names: Iterable[str] = (), **fields: Any) -> Obj:
    """CustomResourceDefinition of the resource, with these versions (its own by default); the first is stored.

    All versions allow all fields; `fields`: other fields of each version, such as schema and subresources.
    """
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = [
        {"name": version, "served": True, "storage": at == 0, "schema": schema} | fields
        for at, version in enumerate(versions or (resource.version,))
    ]
    names = {"plural": resource.plural, "kind": resource.kind} | given(shortNames=list(short_names))
    scope = "Namespaced" if resource.namespaced else "Cluster"
    spec = {"group": resource.group, "scope": scope, "names": names, "versions": served}
    return an_object(CRDS, f"{resource.plural}.{resource.group}", spec=spec)


def an_owner(kind: str = "Job", name: str = "train", uid: str = "", *, api_version: str = "") -> Obj:
    """Reference to a controller; the default of `uid` is `uid-` with the name."""
    return {
        "apiVersion": api_version or _API_VERSIONS.get(kind, "apps/v1"),
        "kind": kind,
        "name": name,
        "uid": uid or f"uid-{name}",
        "controller": True,
    }


def a_condition(
    kind: str, status: bool | str = True, *, reason: str = "", message: str = "", since: Time | None = None
) -> Obj:
    """A condition; `since` is its lastTransitionTime."""
    text = str(status) if isinstance(status, bool) else status
    return given(type=kind, status=text, reason=reason, message=message, lastTransitionTime=time_of(since))
