"""Why a pod that has its node does not run yet, by what its kubelet says of its containers.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-states
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage.decide.runs.lastwords import split_last_words

UNPULLED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
USUAL = frozenset({"ContainerCreating", "PodInitializing"})  # of every start; nothing is wrong
BEING_STARTED = "being started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """What the first container that hinders the start waits for."""

    reason: str  # the kubelet's word, or BEING_STARTED
    container: str = ""
    image: str = ""
    is_init: bool = False
    message: str = ""  # the kubelet's sentence, or how the container ended before

    @property
    def is_trouble(self) -> bool:
        """Whether somebody has to do something."""
        return self.reason not in USUAL and self.reason != BEING_STARTED

    @property
    def is_unpulled(self) -> bool:
        return self.reason in UNPULLED


def starting_of(pod: Mapping[str, Any]) -> Starting | None:
    """Why it does not run; None when it does. A container with a trouble goes before those that wait for it."""
    waiting = list(_waiting(pod))
    if waiting:
        return next((each for each in waiting if each.is_trouble), waiting[0])
    is_pending = (pod.get("status") or {}).get("phase") == "Pending"
    return Starting(reason=BEING_STARTED) if is_pending else None


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
    """How it ended the last time: of more use than "back-off 5m0s restarting failed container"."""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    if "exitCode" not in ended:
        return ""
    reason = str(ended.get("reason") or "")
    why = f" ({reason})" if reason not in ("", "Error") else ""
    _, last_words = split_last_words(str(ended.get("message") or ""))
    return f"it ended with exit code {ended['exitCode']}{why}" + (f": {last_words}" if last_words else "")


def _listed(table: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    return table.get(key) or ()
