"""Pure helpers for pods that several controllers share, and the pod from a template."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.clock import parse_rfc3339
from moorage_kube.integers import INT32_MAX, integer_or
from moorage_kube.meta import condition, is_condition_true, is_deleting, owner_reference
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.podspecs import sidecar_names

SAFE = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so that no word comes out; the alphabet of Kubernetes' rand
NAME_MAX = 63
SUFFIX = 5


def phase_of(pod: Mapping[str, Any]) -> str:
    return (pod.get("status") or {}).get("phase") or "Pending"


def is_finished(pod: Mapping[str, Any]) -> bool:
    return phase_of(pod) in ("Succeeded", "Failed")


def is_active(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is neither finished nor being deleted."""
    return not is_finished(pod) and not is_deleting(pod)


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is being deleted but not finished."""
    return is_deleting(pod) and not is_finished(pod)


def is_ready(pod: Mapping[str, Any]) -> bool:
    return is_condition_true(pod, "Ready")


def is_available(pod: Mapping[str, Any], min_ready: timedelta, now: datetime) -> bool:
    """Whether the pod has been ready for at least `min_ready`."""
    return is_ready(pod) and available_in(pod, min_ready, now) <= timedelta(0)


def available_in(pod: Mapping[str, Any], min_ready: timedelta, now: datetime) -> timedelta:
    """Return the time until a ready pod counts as available; zero or less if it already does."""
    ready = condition(pod, "Ready")
    if not min_ready or ready is None:
        return timedelta(0)
    since = moment_of(ready.get("lastTransitionTime"))
    return min_ready - (now - since) if since else min_ready


def moment_of(text: str | None) -> datetime | None:
    """Parse a timestamp of an object; None if there is none."""
    return parse_rfc3339(text) if text else None


def finished_at(pod: Mapping[str, Any]) -> datetime:
    """Return when a pod ended.

    This is the end of its last container. Without it: the time when the pod stopped being ready, else the
    time of the deletion request, else its creation.
    """
    status, meta = pod.get("status") or {}, pod["metadata"]
    sidecars = sidecar_names(pod.get("spec") or {})
    containers = list(status.get("containerStatuses") or ())
    containers += [init for init in status.get("initContainerStatuses") or () if init.get("name") in sidecars]
    ends: list[str] = [
        ((container.get("state") or {}).get("terminated") or {}).get("finishedAt") or ""
        for container in containers
    ]
    if ends and all(ends):
        return max(parse_rfc3339(end) for end in ends)
    ready = condition(pod, "Ready")
    if ready is not None and ready.get("status") == "False" and ready.get("lastTransitionTime"):
        return parse_rfc3339(ready["lastTransitionTime"])
    if meta.get("deletionTimestamp"):
        grace = span_of(meta.get("deletionGracePeriodSeconds") or 0)
        return parse_rfc3339(meta["deletionTimestamp"]) - grace
    return parse_rfc3339(meta["creationTimestamp"])


def removal_order(pods: Iterable[Obj], *, crowd: Mapping[str, int] | None = None) -> list[Obj]:
    """Sort pods by removal order.

    Removed first: unbound before bound, pending before running, not ready before ready, lower
    `pod-deletion-cost` first, pods on more crowded nodes first (`crowd`: node → pods), younger first.

    https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-a-replicaset
    """

    def rank(pod: Obj) -> tuple[Any, ...]:
        meta, spec = pod["metadata"], pod.get("spec") or {}
        node = spec.get("nodeName") or ""
        annotation = (meta.get("annotations") or {}).get("controller.kubernetes.io/pod-deletion-cost") or "0"
        is_strict = annotation == "0" or annotation[0] in "-123456789"  # upstream takes neither +5 nor 05
        cost = integer_or(annotation, 0, minimum=-INT32_MAX - 1, maximum=INT32_MAX) if is_strict else 0
        restarts = max(
            (
                int(status.get("restartCount") or 0)
                for status in (pod.get("status") or {}).get("containerStatuses") or ()
            ),
            default=0,
        )
        ready = condition(pod, "Ready")
        since = moment_of((ready or {}).get("lastTransitionTime")) if is_ready(pod) else None
        created = moment_of(meta.get("creationTimestamp"))
        return (
            bool(node),
            {"Pending": 0, "Unknown": 1}.get(phase_of(pod), 2),
            is_ready(pod),
            cost,
            -(crowd or {}).get(node, 0),
            -(since.timestamp() if since else 0.0),
            -restarts,
            -(created.timestamp() if created else 0.0),
            meta["name"],
        )

    return sorted(pods, key=rank)


def suffix(*parts: Any, length: int = SUFFIX) -> str:
    """Return `length` characters that depend only on `parts`."""
    number = int.from_bytes(hashlib.sha256(repr(parts).encode()).digest(), "big")
    out = []
    for _ in range(length):
        number, digit = divmod(number, len(SAFE))
        out.append(SAFE[digit])
    return "".join(out)


def stable(value: Any) -> Any:
    """Return a form of a value whose repr does not depend on the order of keys; `suffix` uses the repr."""
    if isinstance(value, Mapping):
        return sorted((key, stable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [stable(item) for item in value]
    return value


def child_names(base: str, owner: Mapping[str, Any], children: Sequence[Obj], count: int) -> list[str]:
    """Return names `<base>-<5 characters>` for new children, computed from the observed state.

    The same observation gives the same names, so a creation whose answer was lost and which is decided again
    from an unchanged view meets AlreadyExists, not a twin; a view that has changed contains the child. A name
    is never used again, as the owner's version and the children's uids go into it.
    """
    meta = owner["metadata"]
    taken = {child["metadata"]["name"] for child in children}
    uids = sorted(child["metadata"].get("uid") or "" for child in children)
    stem = base[: NAME_MAX - SUFFIX - 1].rstrip("-.")
    names: list[str] = []
    serial = 0
    while len(names) < count:
        name = f"{stem}-{suffix(base, meta.get('uid'), meta.get('resourceVersion'), uids, serial)}"
        serial += 1
        if name not in taken:
            taken.add(name)
            names.append(name)
    return names


def pod_from_template(
    owner: Mapping[str, Any],
    template: Mapping[str, Any],
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    base: str | None = None,
) -> Obj:
    """Return the pod of a workload: the metadata and spec of its template, with the workload as owner.

    The caller may change the top level of metadata and spec: the template does not share it.
    """
    given = template.get("metadata") or {}
    meta: Obj = {
        "name": name,
        "generateName": f"{base or owner['metadata']['name']}-",
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(given.get("labels") or {}) | dict(labels or {}),
        "ownerReferences": [owner_reference(owner)],
    }
    merged = dict(given.get("annotations") or {}) | dict(annotations or {})
    if merged:
        meta["annotations"] = merged
    held = [*(given.get("finalizers") or ()), *finalizers]
    if held:
        meta["finalizers"] = list(dict.fromkeys(held))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": dict(template.get("spec") or {})}
