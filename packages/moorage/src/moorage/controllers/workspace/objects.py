"""The objects of a Workspace, built from its spec: Deployment, Services, Ingress, Secret and claim."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from moorage.decide.runs.deviceclaims import add_claim
from moorage.decide.runs.gputypes import DEFAULT_GPU_RESOURCE, gpu_taints
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.names import (
    GPU_PRESENT_LABEL,
    HOST_ENV_ANNOTATION,
    HOST_IMAGE,
    MACHINE_CONTAINER_LABEL,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    MADE_FROM_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    WORKSPACE_LABEL,
)
from moorage.model.workspace import (
    CONTAINER,
    DEFAULT_CPU,
    DEFAULT_HOME_SIZE,
    DEFAULT_MEMORY,
    ENTER,
    LOGIN,
    WORKSPACES,
    App,
    Platform,
    Variable,
    WorkspaceView,
)
from moorage_kube.meta import owner_reference, variable_of
from moorage_kube.resources import DEPLOYMENTS, ENDPOINTSLICES, INGRESSES, PVCS, SECRETS, SERVICES, Obj, Resource

HOME_VOLUME = "home"
DEFAULT_HOME = "/home/workspace"
SERVICE_PORT = 80
PORT_NAME = "http"
LONG = "3600"  # seconds without a byte before an ingress gives up: a notebook may be silent long
TUNED = {  # for the controllers that know them; others ignore them
    "nginx.ingress.kubernetes.io/proxy-body-size": "0",  # uploads
    "nginx.ingress.kubernetes.io/proxy-read-timeout": LONG,
    "nginx.ingress.kubernetes.io/proxy-send-timeout": LONG,
}


def made_from(view: WorkspaceView, app: App) -> str:
    """Hash of the user's and the template's settings of the pod.

    Changes in a newer Moorage do not affect it: an upgrade does not restart kernels.
    """
    spec = view.spec
    sections = [
        msgspec.to_builtins(section)
        for section in (app, spec.machine, spec.resources, spec.env, spec.volumes, spec.image_pull_secrets)
    ]
    parts = [*sections, spec.image, view.home_claim, home_path(view, app), view.is_host_env]
    parts += [view.queue] if view.queue else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def home_path(view: WorkspaceView, app: App) -> str:
    return view.spec.home.mount_path or app.home or DEFAULT_HOME


def labels(view: WorkspaceView) -> dict[str, str]:
    """The labels of all objects of a workspace."""
    return {WORKSPACE_LABEL: view.name} | ({OWNER_LABEL: view.owner_label} if view.owner_label else {})


def queue_label(view: WorkspaceView) -> dict[str, str]:
    """The label that puts its pod into a queue of Kueue.

    Its Deployment has it too: otherwise Kueue, which may look for it there, adds the label of queue `default`.
    """
    return {QUEUE_LABEL: view.queue} if view.queue else {}


def make_deployment(
    view: WorkspaceView, obj: Obj, app: App, *, gpu_terms: Sequence[Obj], on_processes: bool
) -> Obj:
    """The Deployment of a workspace.

    It runs one pod at a time: two pods cannot share the volume and the kernels.
    """
    made = _object(view, obj, DEPLOYMENTS, view.object_name)
    made["metadata"]["annotations"] = _notes(view) | {MADE_FROM_ANNOTATION: made_from(view, app)}
    made["metadata"]["labels"] |= queue_label(view)
    made["spec"] = {
        "replicas": 1 if view.spec.running else 0,
        "revisionHistoryLimit": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {WORKSPACE_LABEL: view.name}},
        "template": make_template(view, app, gpu_terms=gpu_terms, on_processes=on_processes),
    }
    return made


def make_template(view: WorkspaceView, app: App, *, gpu_terms: Sequence[Obj], on_processes: bool) -> Obj:
    """The pod template. `gpu_terms`: node selector terms for the requested GPU type."""
    # on process nodes an image may be left out
    spec, notes = view.spec, _notes(view)
    image = spec.image or (HOST_IMAGE if on_processes else app.image) or app.image
    if on_processes and view.is_host_env:
        notes[HOST_ENV_ANNOTATION] = "true"
    path = home_path(view, app)
    # ready as soon as the application answers
    container: Obj = {
        "name": CONTAINER,
        "image": image,
        "env": _environment(view, app, path),
        "ports": [{"name": PORT_NAME, "containerPort": app.port}],
        "readinessProbe": _probe(app) | {"periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 3},
        "volumeMounts": [
            {"name": HOME_VOLUME, "mountPath": path},
            *(_mount(at, mount) for at, mount in enumerate(spec.volumes)),
        ],
    }
    if app.command:
        container["command"] = list(app.command)
    if app.args:
        container["args"] = list(app.args)
    # the pod with the home and further volumes
    pod_labels = labels(view) | queue_label(view)
    pod: Obj = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
        "volumes": [
            {"name": HOME_VOLUME, "persistentVolumeClaim": {"claimName": view.home_claim}},
            *(
                {"name": f"volume-{at}", "persistentVolumeClaim": {"claimName": mount.claim_name}}
                for at, mount in enumerate(spec.volumes)
            ),
        ],
    }
    # settings of the template and of the user
    if app.fs_group is not None:
        pod["securityContext"] = {"fsGroup": app.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    if spec.machine is not None:  # admission gives it the machine's size, its nodes, and its place in line
        pod_labels |= {
            MACHINE_GROUP_LABEL: spec.machine.group,
            MACHINE_TYPE_LABEL: spec.machine.type,
            MACHINE_CONTAINER_LABEL: CONTAINER,
        }
    else:
        _size(view, pod, gpu_terms)
    meta: Obj = {"labels": pod_labels}
    return {"metadata": meta | ({"annotations": notes} if notes else {}), "spec": pod}


def make_service(view: WorkspaceView, obj: Obj, app: App) -> Obj:
    made = _object(view, obj, SERVICES, view.object_name)
    port = {"name": PORT_NAME, "port": SERVICE_PORT, "targetPort": app.port, "protocol": "TCP"}
    made["spec"] = {"selector": {WORKSPACE_LABEL: view.name}, "ports": [port]}
    return made


def make_gateway_service(view: WorkspaceView, obj: Obj) -> Obj:
    """The gateway's Service in this namespace. It has no selector, because the gateway is in another namespace.

    An Ingress can only route to Services in the same namespace.
    """
    made = _object(view, obj, SERVICES, view.gateway_name)
    made["spec"] = {"ports": [{"name": PORT_NAME, "port": SERVICE_PORT, "protocol": "TCP"}]}
    return made


def make_gateway_slice(view: WorkspaceView, obj: Obj, gateway: Mapping[str, Any]) -> Obj:
    """The gateway's addresses, copied from the EndpointSlice of the server's Service.

    https://kubernetes.io/docs/concepts/services-networking/service/#services-without-selectors
    """
    made = _object(view, obj, ENDPOINTSLICES, view.gateway_name)
    made["metadata"]["labels"] |= {
        "kubernetes.io/service-name": view.gateway_name,
        "endpointslice.kubernetes.io/managed-by": "moorage.dev",
    }
    port = (gateway.get("ports") or [{}])[0].get("port")
    made["addressType"] = gateway.get("addressType") or "IPv4"
    made["ports"] = [{"name": PORT_NAME, "port": port, "protocol": "TCP"}]
    made["endpoints"] = [
        {"addresses": list(endpoint.get("addresses") or ()), "conditions": {"ready": True}}
        for endpoint in gateway.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready") is not False
    ]
    return made


def make_ingress(view: WorkspaceView, obj: Obj, platform: Platform) -> Obj:
    host = platform.host(view.namespace, view.name)
    by_login = view.access(platform) == LOGIN
    service = {
        "name": view.gateway_name if by_login else view.object_name,
        "port": {"number": SERVICE_PORT},
    }
    # with login, the path of codes is named too, so that no more specific path can precede it
    paths = [("/", "Prefix"), *([(ENTER, "Exact")] if by_login else [])]
    backend = {"service": service}
    rule = {
        "host": host,
        "http": {"paths": [{"path": path, "pathType": kind, "backend": backend} for path, kind in paths]},
    }
    made = _object(view, obj, INGRESSES, view.object_name)
    made["metadata"]["annotations"] = dict(TUNED)
    made["spec"] = {"rules": [rule]}
    if platform.ingress_class:
        made["spec"]["ingressClassName"] = platform.ingress_class
    if platform.scheme == "https":
        made["spec"]["tls"] = [
            {"hosts": [host]} | ({"secretName": platform.tls_secret} if platform.tls_secret else {})
        ]
    return made


def make_secret(view: WorkspaceView, obj: Obj, token: str) -> Obj:
    made = _object(view, obj, SECRETS, view.secret_name)
    digest = hashlib.sha256(token.encode()).hexdigest()
    made["type"] = "Opaque"
    made["immutable"] = True  # the gateway knows the token too
    made["data"] = {"token": _encoded(token), "tokenSha256": _encoded(digest)}
    return made


def make_home(view: WorkspaceView) -> Obj:
    """The claim of its home. It has no owner: the data remains when the workspace is deleted."""
    home = view.spec.home
    spec: Obj = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(home.size or DEFAULT_HOME_SIZE)}},
    }
    if home.storage_class:
        spec["storageClassName"] = home.storage_class
    meta: Obj = {"name": view.home_claim, "namespace": view.namespace, "labels": labels(view)}
    return {
        "apiVersion": PVCS.api_version,
        "kind": PVCS.kind,
        "metadata": meta | ({"annotations": _notes(view)} if view.owner else {}),
        "spec": spec,
    }


def is_like(wanted: Any, actual: Any) -> bool:
    """Whether the actual object has all wanted fields; fields that the API server adds are ignored."""
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(is_like(value, actual.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(wanted) == len(actual)
            and all(is_like(item, other) for item, other in zip(wanted, actual, strict=True))
        )
    return bool(wanted == actual) or (wanted in ({}, [], "") and actual is None)


def _object(view: WorkspaceView, obj: Obj, resource: Resource, name: str) -> Obj:
    typed = {"apiVersion": WORKSPACES.api_version, "kind": WORKSPACES.kind} | obj
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": view.namespace,
            "labels": labels(view),
            "ownerReferences": [owner_reference(typed)],
        },
    }


def _notes(view: WorkspaceView) -> dict[str, str]:
    return {OWNER_ANNOTATION: view.owner} if view.owner else {}


def _environment(view: WorkspaceView, app: App, home: str) -> list[Obj]:
    def secret(key: str) -> Obj:
        return {"secretKeyRef": {"name": view.secret_name, "key": key}}

    ours: list[Obj] = [
        variable_of("POD_IP", "status.podIP"),
        {"name": "HOME", "value": home},
        {"name": "MOORAGE_WORKSPACE", "value": view.name},
        {"name": "MOORAGE_NAMESPACE", "value": view.namespace},
        {"name": "MOORAGE_PORT", "value": str(app.port)},
        {"name": "MOORAGE_TOKEN", "valueFrom": secret("token")},
        {"name": "MOORAGE_TOKEN_SHA256", "valueFrom": secret("tokenSha256")},
    ]
    theirs = {variable.name: variable for variable in (*app.env, *view.spec.env)}
    return [*ours, *(_variable(variable) for variable in theirs.values())]


def _variable(variable: Variable) -> Obj:
    if variable.value_from is not None:
        return {"name": variable.name, "valueFrom": variable.value_from}
    return {"name": variable.name, "value": variable.value or ""}


def _probe(app: App) -> Obj:
    if app.ready:
        return {"httpGet": {"path": app.ready, "port": app.port}}
    return {"tcpSocket": {"port": app.port}}


def _mount(at: int, mount: Any) -> Obj:
    volume_mount: Obj = {"name": f"volume-{at}", "mountPath": mount.mount_path}
    if mount.read_only:
        volume_mount["readOnly"] = True
    return volume_mount | ({"subPath": mount.sub_path} if mount.sub_path else {})


def _size(view: WorkspaceView, pod: Obj, gpu_terms: Iterable[Obj]) -> None:
    """Set requests equal to limits, so that other pods are not affected.

    Pods without GPUs prefer nodes without GPUs.
    """
    asked = view.spec.resources
    limits = {"cpu": str(asked.cpu or DEFAULT_CPU), "memory": str(asked.memory or DEFAULT_MEMORY)}
    pod["containers"][0]["resources"] = {}
    if asked.gpu_claim:
        add_claim(pod, pod["containers"][0], asked.gpu_claim)
        pod["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in gpu_taints(DEFAULT_GPU_RESOURCE)
        ]
    elif asked.gpus:
        resource = asked.gpu_resource or DEFAULT_GPU_RESOURCE
        limits[resource] = str(asked.gpus)
        pod["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in gpu_taints(resource)
        ]
        if terms := list(gpu_terms):
            pod["affinity"] = {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            }
    else:
        preference = {"matchExpressions": [{"key": GPU_PRESENT_LABEL, "operator": "NotIn", "values": ["true"]}]}
        weighted = [{"weight": 100, "preference": preference}]
        pod["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
    pod["containers"][0]["resources"] |= {"limits": limits, "requests": dict(limits)}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
