"""Why the volumes of a pod that has its node cannot be mounted, by the events of its kubelet. Pure.

The pod's status is only ContainerCreating then: events name the missing object.
https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from moorage.decide.runs.events import time_of

FAILED_MOUNT = "FailedMount"
FAILED_ATTACH = "FailedAttachVolume"
UNMOUNTED = frozenset({FAILED_MOUNT, FAILED_ATTACH})
CAUSE_LENGTH = 300  # characters of a cause on one line
_ATTACHED = "SuccessfulAttachVolume"
_LATER = frozenset({"Pulling", "Pulled", "Created", "Started"})  # a kubelet does this after it has mounted all
_NEVER = datetime.min.replace(tzinfo=UTC)
_NAMED = re.compile(r'volume "([^"]+)"')
_LISTED = re.compile(r"unmounted volumes=\[([^\]]*)\]")  # of a kubelet that gave up waiting: no cause in it
_PREFIX = re.compile(r'^(?:[\w.]+ failed for volume|Unable to attach or mount volume) "[^"]+" ?: ?', re.DOTALL)
_KINDS = (
    ("secret", "secretName", "Secret"),
    ("configMap", "name", "ConfigMap"),
    ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
)


class Source(Struct, frozen=True, kw_only=True):
    """The object that a volume of a pod is made from."""

    kind: str  # Secret, ConfigMap or PersistentVolumeClaim
    name: str


class FailedMount(Struct, frozen=True, kw_only=True):
    """The newest event that says that a volume cannot be mounted, or cannot be attached to the node."""

    reason: str  # FAILED_MOUNT or FAILED_ATTACH
    message: str  # the kubelet's, or the attaching controller's
    volume: str = ""  # its name in the pod, else as the message has it; empty: none is named
    source: Source | None = None  # None: of another kind, or not known

    @property
    def cause(self) -> str:
        """The message on one line, without the prefix with the name of the volume."""
        text = " ".join(_PREFIX.sub("", self.message).split())
        return text if len(text) <= CAUSE_LENGTH else f"{text[: CAUSE_LENGTH - 1]}…"


def failed_mount(
    events: Iterable[Mapping[str, Any]], *, uid: str, volumes: Sequence[Mapping[str, Any]] = ()
) -> FailedMount | None:
    """Why the volumes of the pod with this uid are not mounted. None: no such event, or they are mounted by now.

    `volumes`: those of its spec. An event that names a cause is preferred to a later one that only names volumes.
    """
    of_pod = sorted((event for event in events if _is_about(event, uid)), key=_time)
    mounted = max((_time(event) for event in of_pod if event.get("reason") in _LATER), default=_NEVER)
    failures = [
        event
        for event in of_pod
        if event.get("reason") in UNMOUNTED and _time(event) > mounted and not _is_attached(event, of_pod)
    ]
    if not failures:
        return None
    newest: Mapping[str, Any] = failures[-1]
    if (listed := _LISTED.search(_message(newest))) is not None:
        newest = _with_cause(failures, listed[1].split(), volumes) or newest
    return _failure(newest, volumes)


def _with_cause(
    failures: Sequence[Mapping[str, Any]], unmounted: Sequence[str], volumes: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The newest event with the cause for an unmounted volume. Volumes of claims have other names in events."""
    known = {volume.get("name") for volume in volumes}
    newest: Mapping[str, Any] | None = None
    for event in failures:  # oldest first
        named = _NAMED.search(_message(event))
        if named is not None and (named[1] in unmounted or named[1] not in known):
            newest = event
    return newest


def _failure(event: Mapping[str, Any], volumes: Sequence[Mapping[str, Any]]) -> FailedMount:
    message = _message(event)
    named, listed = _NAMED.search(message), _LISTED.search(message)
    name = named[1] if named is not None else next(iter(listed[1].split()), "") if listed is not None else ""
    match = next((volume for volume in volumes if volume.get("name") == name), None)
    if match is None and name:  # a kubelet names a claim's volume by its PersistentVolume
        claims = [volume for volume in volumes if volume.get("persistentVolumeClaim")]
        match = claims[0] if len(claims) == 1 else None
    return FailedMount(
        reason=str(event.get("reason")),
        message=message,
        volume=str(match.get("name") or "") if match is not None else name,
        source=_source(match) if match is not None else None,
    )


def _source(volume: Mapping[str, Any]) -> Source | None:
    for kind, name, word in _KINDS:
        if (value := volume.get(kind)) and value.get(name):
            return Source(kind=word, name=str(value[name]))
    return None


def _is_attached(failure: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the volume was attached after the failure."""
    named = _NAMED.search(_message(failure))
    return (
        failure.get("reason") == FAILED_ATTACH
        and named is not None
        and any(
            event.get("reason") == _ATTACHED
            and _time(event) >= _time(failure)
            and f'"{named[1]}"' in _message(event)
            for event in events
        )
    )


def _is_about(event: Mapping[str, Any], uid: str) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("kind") == "Pod" and bool(uid) and about.get("uid") == uid


def _message(event: Mapping[str, Any]) -> str:
    return str(event.get("message") or "").strip()


def _time(event: Mapping[str, Any]) -> datetime:
    return time_of(event) or _NEVER
