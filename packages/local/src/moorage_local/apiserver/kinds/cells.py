"""Table cells of several kinds, in the format of the real server's printers.

https://github.com/kubernetes/kubernetes/blob/master/pkg/printers/internalversion/printers.go
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from moorage_kube.clock import format_duration, parse_rfc3339
from moorage_kube.resources import Obj

NONE = "<none>"
UNSET = "<unset>"
UNKNOWN = "<unknown>"


def spec_of(obj: Obj) -> Mapping[str, Any]:
    return obj.get("spec") or {}


def status_of(obj: Obj) -> Mapping[str, Any]:
    return obj.get("status") or {}


def age(moment: str | None, now: datetime) -> str:
    """Format the time since a moment like `kubectl`; `<unknown>` if the moment is None."""
    if not moment:
        return UNKNOWN
    try:
        return format_duration(now - parse_rfc3339(moment))
    except ValueError:
        return "<invalid>"


def created(obj: Obj, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def selector_text(spec: Mapping[str, Any] | None) -> str:
    """As `metav1.FormatLabelSelector`."""
    if not spec:
        return NONE
    parts = [f"{key}={value}" for key, value in sorted((spec.get("matchLabels") or {}).items())]
    for expression in spec.get("matchExpressions") or ():
        values = ",".join(sorted(expression.get("values") or ()))
        match expression.get("operator"):
            case "In":
                parts.append(f"{expression['key']} in ({values})")
            case "NotIn":
                parts.append(f"{expression['key']} notin ({values})")
            case "Exists":
                parts.append(expression["key"])
            case "DoesNotExist":
                parts.append(f"!{expression['key']}")
    return ",".join(parts) or NONE


def labels_text(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def template_containers(template: Mapping[str, Any] | None) -> tuple[str, str]:
    containers = ((template or {}).get("spec") or {}).get("containers") or ()
    return ",".join(container.get("name", "") for container in containers), ",".join(
        container.get("image", "") for container in containers
    )


def with_more(items: Sequence[str], empty: str = UNSET, most: int = 3) -> str:
    text = ",".join(items[:most])
    if len(items) > most:
        return f"{text} + {len(items) - most} more..."
    return text or empty


def size(obj: Obj, key: str) -> int:
    return len(obj.get(key) or ())


def name_age(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], created(obj, now)


def name_date(obj: Obj, _: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")
