"""Write the shim's `spec.json`: a pod with all references resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from moorage_kube.clock import parse_rfc3339
from moorage_kube.images import ImageRule, rule_of
from moorage_kube.meta import annotations_of
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.nodeagent import gpus as gpu
from moorage_local.nodeagent.addresses import HOST_IP
from moorage_local.nodeagent.environment import ConfigError, Lookup, Room, expand, memory_limit, variables
from moorage_local.nodeagent.probes import port_of, request_of
from moorage_local.nodeagent.shim.hooks import POST_START, PRE_STOP
from moorage_local.podspecs import containers_of

HOST_IMAGE = "localhost/host"
HOST_ENV_ANNOTATION = "localcluster.moorage.dev/host-env"
PRIVATE_ROOT_ANNOTATION = "localcluster.moorage.dev/private-root"
DEFAULT_GRACE_SECONDS = 30
MESSAGE_PATH = "/dev/termination-log"
OOM_BEST_EFFORT, OOM_OTHERS = 1000, 500  # the kernel's own killer takes pods before the control plane

_IMAGE = re.compile(re.escape(HOST_IMAGE) + r"(?::[\w.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The facts about the node and the pod's folder that the spec needs."""

    node: str
    folder: str  # the pod's folder
    socket: str  # the socket at which the shim reports changes
    base_env: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    real_gpu_uuids: Sequence[str] | None = None
    hidden: str = ""  # the folder of the platform, which pods do not see; "": nothing is hidden
    hidden_inode: tuple[int, int] | None = None  # device and inode of `hidden`, which identify the folder
    images: Sequence[ImageRule] = ()  # rules for images that run as processes of this machine
    fence_error: str = ""  # why this machine cannot hide `hidden` from pods; "": it can
    installation: Sequence[str] = ()  # folders in /tmp with Moorage and its Python; private roots show them too


def unrunnable(pod: Mapping[str, Any], images: Sequence[ImageRule] = ()) -> dict[str, tuple[str, str]]:
    """Return the containers that this runtime refuses, each with (reason, message) for its waiting state.

    `images`: rules for images that run as processes of this machine without an annotation of the pod.
    """
    out: dict[str, tuple[str, str]] = {}
    allowed = annotations_of(pod).get(HOST_ENV_ANNOTATION) == "true"
    spec = pod["spec"]
    for container in containers_of(spec):
        image = container.get("image") or ""
        rule = rule_of(images, image)
        if not allowed and rule is None and not _IMAGE.fullmatch(image):
            out[container["name"]] = (
                "ImageNotRunnable",
                f'image "{image}" cannot be run: this cluster runs commands as processes of this machine and pulls'
                f' no images; use image {HOST_IMAGE}, or annotate the pod with {HOST_ENV_ANNOTATION}: "true" to'
                " run its command in this machine's environment",
            )
        elif not _argv(container, rule):
            out[container["name"]] = ("CreateContainerConfigError", "no command specified")
    return out


def is_privileged(container: Mapping[str, Any]) -> bool:
    """Whether the container is privileged: it is not fenced, even if this machine can fence pods."""
    return bool((container.get("securityContext") or {}).get("privileged"))


def gpu_counts(containers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of GPUs that each container requests."""
    out = {}
    for container in containers:
        resources = container.get("resources") or {}
        text = (resources.get("limits") or {}).get(gpu.RESOURCE) or (resources.get("requests") or {}).get(
            gpu.RESOURCE
        )
        out[container["name"]] = int(text or 0)
    return out


def container_gpus(spec: Mapping[str, Any], indices: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the GPU indices of each container, from those of the pod."""
    return gpu.share(
        indices, gpu_counts(spec.get("containers") or ()), gpu_counts(spec.get("initContainers") or ())
    )


def make_shim_spec(
    pod: Obj,
    *,
    place: Place,
    lookup: Lookup,
    volumes: Mapping[str, tuple[str, bool]],
    gpu_indices: Sequence[int],
    admitted_at: str,
) -> Obj:
    """Return the whole spec. `volumes`: name → (path on this machine, read-only). Raises ConfigError."""
    # init containers use the GPUs of the containers after them
    meta, spec = pod["metadata"], pod["spec"]
    shared = container_gpus(spec, gpu_indices)
    is_private = annotations_of(pod).get(PRIVATE_ROOT_ANNOTATION) == "true"
    shown = [_shown(path) for path in place.installation if is_private and not _holds(path, place.hidden)]
    # the deadline counts from the admission, over restarts of the agent
    active = spec.get("activeDeadlineSeconds")
    deadline = None
    if active is not None:
        deadline = (parse_rfc3339(admitted_at) + span_of(active)).timestamp()
    grace = spec.get("terminationGracePeriodSeconds")
    # one limit for the texts of all containers
    room = Room()

    def containers(field: str) -> list[Obj]:
        return [
            _container(
                pod,
                container,
                place=place,
                lookup=lookup,
                volumes=volumes,
                indices=shared[container["name"]],
                shown=shown,
                room=room,
            )
            for container in spec.get(field) or ()
        ]

    return {
        "uid": meta["uid"],
        "name": meta["name"],
        "namespace": meta.get("namespace") or "default",
        "restartPolicy": spec.get("restartPolicy") or "Always",
        "terminationGracePeriodSeconds": DEFAULT_GRACE_SECONDS if grace is None else int(grace),
        "deadlineEpoch": deadline,
        "notifySocket": place.socket,
        "gpuIndices": list(gpu_indices),
        "privateRoot": is_private,
        "fenceError": place.fence_error,
        "hiddenInode": place.hidden_inode and list(place.hidden_inode),
        "initContainers": containers("initContainers"),
        "containers": containers("containers"),
    }


def _container(
    pod: Obj,
    container: Mapping[str, Any],
    *,
    place: Place,
    lookup: Lookup,
    volumes: Mapping[str, tuple[str, bool]],
    indices: Sequence[int],
    shown: Sequence[Obj],
    room: Room,
) -> Obj:
    # later values override earlier ones: machine, image rule, the pod's own, GPUs
    own = variables(pod, container, lookup, place.allocatable, room)
    env = dict(place.base_env)
    env["HOSTNAME"] = (pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]
    rule = rule_of(place.images, container.get("image") or "")
    if rule is not None:
        env |= rule.env
    env |= own
    env |= gpu.environment(place.node, place.real_gpu_uuids, indices)
    if rule is not None and rule.path:
        env["PATH"] = ":".join((*rule.path, env.get("PATH", "")))
    # without a command the image's is used
    argv = [expand(text, own, room) for text in _argv(container, rule)]
    if not argv:
        raise ConfigError("no command specified")
    # a container without requests is killed first when the machine runs out of memory
    resources = container.get("resources") or {}
    best_effort = not resources.get("limits") and not resources.get("requests")
    order: Obj = {
        "name": container["name"],
        "argv": argv,
        "env": env,
        "workingDir": container.get("workingDir") or f"{place.folder}/work/{container['name']}",
        "hasWorkingDir": bool(container.get("workingDir")),
        "memoryLimitBytes": memory_limit(container),
        "mounts": [*shown, *(_mount(mount, own, volumes, room) for mount in container.get("volumeMounts") or ())],
        "messagePath": container.get("terminationMessagePath") or MESSAGE_PATH,
        "messageFromLogs": container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
        "oomScoreAdj": OOM_BEST_EFFORT if best_effort else OOM_OTHERS,
        "gpuIndices": list(indices),
        "hidden": "" if is_privileged(container) else place.hidden,
    }
    lifecycle = container.get("lifecycle") or {}
    hooks = {
        kind: _hook(lifecycle[kind], container, pod) for kind in (POST_START, PRE_STOP) if lifecycle.get(kind)
    }
    if hooks:
        order["hooks"] = hooks
    if container.get("stdin") and not container.get("stdinOnce"):
        order["stdin"] = True
    if container.get("restartPolicy"):
        order["restartPolicy"] = container["restartPolicy"]
    return order


def _hook(hook: Mapping[str, Any], container: Mapping[str, Any], pod: Mapping[str, Any]) -> Obj:
    """A lifecycle hook for the shim. Raises ConfigError."""
    if command := (hook.get("exec") or {}).get("command"):
        return {"exec": list(command)}
    if "sleep" in hook:
        return {"sleep": int(hook["sleep"].get("seconds") or 0)}
    if http := hook.get("httpGet"):
        host = http.get("host") or (pod.get("status") or {}).get("podIP") or HOST_IP
        try:
            port = port_of(container, http["port"])
        except ValueError as error:
            raise ConfigError(f"invalid lifecycle hook: {error}") from error
        is_tls = str(http.get("scheme") or "").lower() == "https"
        request = request_of(http, host, port, agent="kube-lifecycle/1.32")
        return {"http": {"host": host, "port": port, "tls": is_tls, "request": request}}
    raise ConfigError("unsupported lifecycle hook: use exec, httpGet or sleep")


def _argv(container: Mapping[str, Any], rule: ImageRule | None) -> list[str]:
    """Command and arguments; those of the image if the container sets none."""
    command, args = list(container.get("command") or ()), list(container.get("args") or ())
    if command or rule is None:
        return command + args
    return [*rule.entrypoint, *(args or rule.cmd)]


def _shown(path: str) -> Obj:
    """Return the mount that shows a folder of this machine in a private root."""
    return {"mountPath": path, "hostPath": path, "subPath": "", "readOnly": True}


def _holds(path: str, hidden: str) -> bool:
    """Whether the folder that pods do not see lies in `path`."""
    return bool(hidden) and PurePosixPath(hidden).is_relative_to(path)


def _mount(
    mount: Mapping[str, Any], env: Mapping[str, str], volumes: Mapping[str, tuple[str, bool]], room: Room
) -> Obj:
    name = mount["name"]
    if name not in volumes:
        raise ConfigError(f'volume "{name}" is mounted but not declared', reason="CreateContainerError")
    path, read_only = volumes[name]
    wanted = mount.get("subPathExpr")
    below = expand(wanted, env, room) if wanted else mount.get("subPath") or ""
    pure = PurePosixPath(below)
    if pure.is_absolute() or ".." in pure.parts:
        raise ConfigError(f'subPath "{below}" of volume "{name}" must be relative and without ".."')
    target = PurePosixPath(mount["mountPath"])
    return {
        "mountPath": str(target if target.is_absolute() else PurePosixPath("/") / target),
        "hostPath": path,
        "subPath": str(pure) if below else "",
        "readOnly": bool(mount.get("readOnly")) or read_only,
    }
