"""Why a pod that has its node does not run yet, by its kubelet's report on its containers and volumes.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-states
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.decide.explain.mounts import FailedMount, failed_mount
from moorage.decide.runs.terminationmessage import split_termination_message
from moorage_kube.meta import is_condition_true

UNPULLED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
USUAL = frozenset({"ContainerCreating", "PodInitializing"})  # of every start; nothing is wrong
BEING_STARTED = "being started"


class Starting(Struct, frozen=True, kw_only=True):
    """The reason of the first container that blocks the start, or of all containers."""

    reason: str  # the kubelet's word, of a container or in an event; or BEING_STARTED
    container: str = ""
    image: str = ""
    is_init: bool = False
    message: str = ""  # the kubelet's sentence, or how the container ended before
    mount: FailedMount | None = None  # the volume for which all containers wait

    @property
    def is_trouble(self) -> bool:
        """Whether a user or administrator has to act."""
        return self.reason not in USUAL and self.reason != BEING_STARTED

    @property
    def is_unpulled(self) -> bool:
        return self.reason in UNPULLED


def starting_of(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()) -> Starting | None:
    """Why the pod does not run; None when it does. A failing container is preferred to those that wait for it.

    `events`: the pod's, and perhaps others. Only they show that a volume cannot be mounted.
    """
    waiting = list(_waiting(pod))
    if trouble := next((each for each in waiting if each.is_trouble), None):
        return trouble
    is_pending = (pod.get("status") or {}).get("phase") == "Pending"
    if is_pending and not _has_begun(pod):
        volumes = (pod.get("spec") or {}).get("volumes") or ()
        mount = failed_mount(events, uid=str(pod["metadata"].get("uid") or ""), volumes=volumes)
        if mount is not None:
            return Starting(reason=mount.reason, message=mount.message, mount=mount)
    if waiting:
        return waiting[0]
    return Starting(reason=BEING_STARTED) if is_pending else None


def _has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's volumes are mounted: its sandbox is ready, or a container has started."""
    status = pod.get("status") or {}
    if is_condition_true(pod, "PodReadyToStartContainers"):
        return True
    rows = (*_listed(status, "initContainerStatuses"), *_listed(status, "containerStatuses"))
    return any(not {"running", "terminated"}.isdisjoint(row.get("state") or ()) for row in rows)


def _waiting(pod: Mapping[str, Any]) -> Iterator[Starting]:
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    tables = (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers"))
    for statuses, containers in tables:
        images = {each.get("name"): each.get("image") for each in _listed(spec, containers)}
        for container in _listed(status, statuses):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if not waiting.get("reason"):
                continue
            name = container.get("name")
            yield Starting(
                reason=str(waiting["reason"]),
                container=str(name or ""),
                image=str(images.get(name) or container.get("image") or ""),
                is_init=containers == "initContainers",
                message=_ended_before(container) or str(waiting.get("message") or ""),
            )


def _ended_before(container: Mapping[str, Any]) -> str:
    """The last end of the container: more useful than "back-off 5m0s restarting failed container"."""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    if "exitCode" not in ended:
        return ""
    reason = str(ended.get("reason") or "")
    why = f" ({reason})" if reason not in ("", "Error") else ""
    _, message = split_termination_message(str(ended.get("message") or ""))
    return f"it ended with exit code {ended['exitCode']}{why}" + (f": {message}" if message else "")


def _listed(table: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    return table.get(key) or ()
