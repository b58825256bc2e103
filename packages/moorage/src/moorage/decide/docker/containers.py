"""The pods of a namespace as Docker containers: each container is a guarded pod.

A container that was created but not started is a pod with the scheduling gate `moorage.dev/container`. Stopping a
container sets the pod's deadline to one second: the kubelet ends it with its grace period, and logs and exit code
stay. Starting a container again creates its next pod, with the same name. A container never moves to another node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from moorage.model.names import CONTAINER_GATE, CONTAINER_LABEL
from moorage_kube.documents import parse_json
from moorage_kube.integers import integer_or
from moorage_kube.meta import annotations_of, condition, is_deleting, labels_of
from moorage_kube.resources import Obj

API_VERSION, MIN_API_VERSION = "1.41", "1.24"
CONFIG_ANNOTATION = CONTAINER_LABEL  # JSON: the body it was made from
ID_ANNOTATION = f"{CONTAINER_LABEL}-id"  # hex, 64; missing on the first pod: it is computed from that pod's uid
START_LABEL = f"{CONTAINER_LABEL}-start"  # "1", "2", …: which of its pods
REMOVE_ANNOTATION = f"{CONTAINER_LABEL}-remove"  # "true": deleted once it has ended
REQUEST_ANNOTATION = f"{CONTAINER_LABEL}-request"  # sha256 of the idempotency key and the body
MAIN = "main"
NEVER_STARTED = 125  # exit code, as of `docker run` for an image that cannot be pulled
NEVER_STARTING = frozenset(
    {"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "ImageNotRunnable"}
)
"""Reasons of a waiting container. `ErrImagePull` is left out: the kubelet tries again."""


# --- a pod in Docker's words


def container_name(pod: Mapping[str, Any]) -> str:
    return labels_of(pod).get(CONTAINER_LABEL, "")


def start_of(pod: Mapping[str, Any]) -> int:
    text = labels_of(pod).get(START_LABEL, "")
    return integer_or(text, 1)


def container_id(pod: Mapping[str, Any]) -> str:
    """The container id: 64 hexadecimal digits, the same after each start."""
    known = annotations_of(pod).get(ID_ANNOTATION)
    return known or hashlib.sha256(str(pod["metadata"].get("uid")).encode()).hexdigest()


def config_of(pod: Mapping[str, Any]) -> Obj:
    """The body that a container was made from; empty if it is unreadable."""
    try:
        body = parse_json(annotations_of(pod).get(CONFIG_ANNOTATION) or "{}")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def containers(pods: Iterable[Obj]) -> list[Obj]:
    """The newest pod of each container; the newest container comes first."""
    newest: dict[tuple[str, str], Obj] = {}
    for pod in pods:
        if name := container_name(pod):
            key = (str(pod["metadata"].get("namespace")), name)
            if key not in newest or start_of(pod) > start_of(newest[key]):
                newest[key] = pod
    return sorted(newest.values(), key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)


def find(pods: Iterable[Obj], word: str) -> Obj | None:
    """The container with this name, id or id prefix. None if there is none.

    Raises LookupError if several ids have the prefix.
    """
    known, word = containers(pods), word.removeprefix("/")
    for pod in known:
        if word in (container_name(pod), container_id(pod)):
            return pod
    fitting = [pod for pod in known if len(word) >= 2 and container_id(pod).startswith(word)]
    if len(fitting) > 1:
        raise LookupError(f"the id {word} is ambiguous: {len(fitting)} containers have ids that begin with it")
    return fitting[0] if fitting else None


def is_gated(pod: Mapping[str, Any]) -> bool:
    """Whether the container was created but not started."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(gate.get("name") == CONTAINER_GATE for gate in gates)


def is_ended(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def never_starts(pod: Mapping[str, Any]) -> str:
    """Why the container can never start; empty: it runs, has ended, or may start."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in NEVER_STARTING:
            return f"{waiting['reason']}: {waiting.get('message') or 'the image cannot be pulled'}"
    return ""


def is_starting(pod: Mapping[str, Any]) -> bool:
    """Whether a started container is about to run: it waits for neither a turn nor room, and can start."""
    gates = [gate.get("name") for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if is_ended(pod) or is_deleting(pod) or never_starts(pod) or gates not in ([], [CONTAINER_GATE]):
        return False
    refused = condition(pod, "PodScheduled", status="False") or {}
    if refused.get("reason") == "Unschedulable":  # "SchedulingGated" stays until the scheduler looks at it
        return False
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return not any((status.get("state") or {}).get("running") or status.get("restartCount") for status in statuses)


def is_removed_at_end(pod: Mapping[str, Any]) -> bool:
    return annotations_of(pod).get(REMOVE_ANNOTATION) == "true"
