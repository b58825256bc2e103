"""The plan from before a map was created, and its actual figures."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from moorage.api.maps import Map
from moorage.model.names import MAP_PLAN_ANNOTATION
from moorage_kube.documents import parse_json
from moorage_kube.meta import annotations_of, condition
from moorage_kube.moments import moment
from moorage_kube.resources import Obj

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class MapPlan(msgspec.Struct, frozen=True, rename="camel"):
    """The choice of `moor plan` for a map; None and empty if not set."""

    items: int = 0
    seconds: Amount | None = None
    mean_seconds: Amount | None = None
    money: Amount | None = None
    currency: str = ""
    machine: str = ""
    market: str = ""
    price_per_hour: Amount | None = None  # of a node
    nodes: int | None = None
    pods: int | None = None
    pods_per_node: Amount | None = None


class MapFact(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The actual figures of a plan so far. `money` None: the plan names no price."""

    items: int
    seconds: float
    mean_seconds: float | None
    money: float | None = None
    currency: str = ""


def plan_of(mapjob: Obj) -> dict[str, Any]:
    """The plan from before the map was created; empty if there was none."""
    in_status = (mapjob.get("status") or {}).get("plan")
    if in_status:
        return dict(in_status)
    try:
        read = parse_json(annotations_of(mapjob).get(MAP_PLAN_ANNOTATION) or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def read_plan(document: Mapping[str, Any]) -> MapPlan | None:
    """Parse a plan for decisions and pages. None if there is none, or if it is invalid."""
    try:
        return msgspec.convert(document, MapPlan) if document else None
    except msgspec.ValidationError:
        return None


def fact_of(shown: Map, plan: MapPlan, ended: datetime | None, now: datetime) -> MapFact:
    """The actual figures of a plan so far. Money: the items' time at the plan's price of a pod's share."""
    money, price, share = None, plan.price_per_hour, plan.pods_per_node
    if price is not None and share:
        money = round(shown.spent_seconds / 3600 * price / share, 4)
    return MapFact(
        items=shown.counts.ended,
        seconds=round(((ended or now) - shown.created_at).total_seconds(), 1),
        mean_seconds=shown.mean_seconds,
        money=money,
        currency=plan.currency if money is not None else "",
    )


def end_of(mapjob: Obj) -> datetime | None:
    """The time at which the workers of a map completed it or gave it up."""
    for kind in ("Complete", "Failed"):
        stated = condition(mapjob, kind)
        if stated and stated.get("status") == "True":
            return moment(stated.get("lastTransitionTime"))
    return None
