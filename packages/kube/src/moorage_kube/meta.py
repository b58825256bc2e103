"""Helpers that read object metadata and conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moorage_kube.resources import Obj


class Key(NamedTuple):
    """The namespace (empty for cluster-scoped objects) and the name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Mapping[str, Any]) -> Key:
    meta = obj["metadata"]
    return Key(meta.get("namespace") or "", meta["name"])


def labels_of(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def is_deleting(obj: Mapping[str, Any]) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def controller_ref(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference with `controller: true`, or None."""
    refs: Sequence[Mapping[str, Any]] = obj["metadata"].get("ownerReferences") or ()
    for ref in refs:
        if ref.get("controller"):
            return ref
    return None


def owner_reference(owner: Mapping[str, Any], *, controller: bool = True) -> Obj:
    """Return an owner reference to `owner`, which must be a stored object (its uid is needed)."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": controller,
        "blockOwnerDeletion": controller,
    }


def condition(obj: Mapping[str, Any], kind: str, *, status: str | None = None) -> Mapping[str, Any] | None:
    """Return the condition of this type in `status.conditions`, or None.

    `status`: return it only with this status.
    """
    conditions: Sequence[Mapping[str, Any]] = (obj.get("status") or {}).get("conditions") or ()
    for entry in conditions:
        if entry.get("type") == kind and status in (None, entry.get("status")):
            return entry
    return None


def is_condition_true(obj: Mapping[str, Any], kind: str) -> bool:
    return condition(obj, kind, status="True") is not None


def with_condition(
    conditions: Sequence[Obj],
    kind: str,
    status: str,
    *,
    now: str,
    reason: str = "",
    message: str = "",
    **more: Any,
) -> list[Obj]:
    """Return the list with one condition set; `lastTransitionTime` (RFC 3339) changes only if `status` changes."""
    out, done = [], False
    for entry in conditions:
        if entry.get("type") != kind:
            out.append(entry)
            continue
        since = entry.get("lastTransitionTime", now) if entry.get("status") == status else now
        out.append(
            {
                "type": kind,
                "status": status,
                "lastTransitionTime": since,
                "reason": reason,
                "message": message,
            }
            | more
        )
        done = True
    if not done:
        out.append(
            {"type": kind, "status": status, "lastTransitionTime": now, "reason": reason, "message": message}
            | more
        )
    return out


def variable_of(name: str, field: str) -> Obj:
    """Return an environment variable that the kubelet sets from a field of the pod, such as `status.podIP`."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def names(objs: Iterable[Mapping[str, Any]]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objs]
