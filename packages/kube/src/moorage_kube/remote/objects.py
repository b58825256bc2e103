"""Pure functions that build objects for several modules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from moorage_kube.clock import rfc3339
from moorage_kube.resources import Obj, Resource

EventType = Literal["Normal", "Warning"]
NOTE_MAX = 1024  # characters; the API server refuses longer messages


def make_meta(name: str, namespace: str | None = None, **more: Any) -> Obj:
    """Make an ObjectMeta of the given fields; empty and None values are left out."""
    meta: Obj = {"name": name}
    if namespace:
        meta["namespace"] = namespace
    return meta | {key: value for key, value in more.items() if value}


def make_object(resource: Resource, name: str, namespace: str | None = None, **fields: Any) -> Obj:
    """Make an object of that resource; `labels` and `annotations` are metadata, other fields are top-level."""
    meta = make_meta(
        name,
        namespace,
        labels=fields.pop("labels", None),
        annotations=fields.pop("annotations", None),
        ownerReferences=fields.pop("owners", None),
    )
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta} | fields


def object_reference(obj: Mapping[str, Any]) -> Obj:
    """The reference of an event to its object."""
    meta = obj["metadata"]
    reference = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "name": meta.get("name"),
        "namespace": meta.get("namespace"),
        "uid": meta.get("uid"),
        "resourceVersion": meta.get("resourceVersion"),
    }
    return {key: value for key, value in reference.items() if value}


def event_name(about: Mapping[str, Any], type_: EventType, reason: str, message: str) -> str:
    """Return the name of an event.

    The same event about the same object has the same name: it is counted, not repeated.
    """
    meta = about["metadata"]
    text = "\0".join((str(meta.get("uid") or ""), type_, reason, message))
    return f"{meta['name'][:200]}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def make_event(
    about: Mapping[str, Any],
    *,
    type_: EventType,
    reason: str,
    message: str,
    component: str,
    now: datetime,
) -> Obj:
    """Return a core/v1 Event for its first occurrence.

    Events about cluster-scoped objects must be in `default`.
    """
    moment = rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(about, type_, reason, message),
            "namespace": about["metadata"].get("namespace") or "default",
        },
        "involvedObject": object_reference(about),
        "type": type_,
        "reason": reason,
        "message": message[:NOTE_MAX],
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
