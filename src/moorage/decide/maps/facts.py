"""What was planned before a map was created, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage.apimachinery.documents import parse_json
from moorage.apimachinery.meta import annotations_of, condition
from moorage.apimachinery.moments import moment, parse_rfc3339
from moorage.apimachinery.resources import Obj
from moorage.model.names import MAP_PLAN_ANNOTATION

Shown = Mapping[str, Any]


def plan_of(mapjob: Obj) -> dict[str, Any]:
    """What was planned before the map was created; empty when nothing was."""
    in_status = (mapjob.get("status") or {}).get("plan")
    if in_status:
        return dict(in_status)
    try:
        read = parse_json(annotations_of(mapjob).get(MAP_PLAN_ANNOTATION) or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def fact_of(actual: Shown, plan: Shown, ended: datetime | None, now: datetime) -> dict[str, Any]:
    """What came of a plan so far; `actual` is the map as the server shows it.

    Money: the items' time at the plan's price of a pod's share.
    """
    created = parse_rfc3339(actual["createdAt"])
    counts = actual["counts"]
    fact: dict[str, Any] = {
        "items": counts["done"] + counts["dead"],
        "seconds": round(((ended or now) - created).total_seconds(), 1),
        "meanSeconds": actual.get("meanSeconds"),
    }
    price, share = plan.get("pricePerHour"), plan.get("podsPerNode")
    if isinstance(price, int | float) and isinstance(share, int | float) and share > 0:
        fact["money"] = round(actual["spentSeconds"] / 3600 * price / share, 4)
        fact["currency"] = plan.get("currency", "")
    return fact


def end_of(mapjob: Obj) -> datetime | None:
    """When the workers of a map were done, or given up."""
    for kind in ("Complete", "Failed"):
        stated = condition(mapjob, kind)
        if stated and stated.get("status") == "True":
            return moment(stated.get("lastTransitionTime"))
    return None
