"""What the pages of maps show: from the queue and the MapJob to words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moorage.api.maps import MapItem
from moorage.apimachinery.meta import annotations_of, condition
from moorage.apimachinery.moments import format_duration, parse_rfc3339, rfc3339
from moorage.apimachinery.resources import Obj
from moorage.decide.maps.facts import end_of, fact_of, plan_of
from moorage.model.names import COMMAND_ANNOTATION
from moorage.server.pages.board import When, owner_hues, span

MAPS_SHOWN = 100
FAILURES_SHOWN = 10
VALUE_CHARACTERS = 200
OUTPUT_BYTES = 4096  # of a failed item's last output
STATE_ORDER = {"running": 0, "paused": 1}
TONES = {"running": "good", "paused": "wait", "cancelled": "done", "finished": "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """One map. Counts as the queue has them; `share` is of the items that ended, in percent, rounded down."""

    namespace: str
    name: str
    owner: str
    hue: int
    state: str
    tone: str
    total: int
    done: int
    failed: int
    running: int
    waiting: int
    share: int
    rate: str
    left: When | None
    created: When
    workers: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An item that failed for good; `output` is the end of what it printed last."""

    item: int
    value: str
    why: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapModel:
    """The page of one map. `failed` is None for those who may not see its items."""

    row: MapRow
    command: str
    facts: tuple[tuple[str, str], ...]
    troubles: tuple[str, ...]
    plan_words: str
    plan: tuple[tuple[str, str, str], ...]  # of what, reckoned, so far
    failed: tuple[Failed, ...] | None
    failed_more: int


def map_rows(maps: Sequence[Mapping[str, Any]], now: datetime) -> tuple[tuple[MapRow, ...], int]:
    """The first MAPS_SHOWN: those at work, then the newest; and how many more."""
    order = sorted(maps, key=lambda one: one["createdAt"], reverse=True)
    order.sort(key=lambda one: STATE_ORDER.get(one["state"], 2))
    shown = order[:MAPS_SHOWN]
    hues = owner_hues(one["owner"] for one in shown)
    return tuple(map_row(one, now, hues[one["owner"]]) for one in shown), len(order) - len(shown)


def map_row(found: Mapping[str, Any], now: datetime, hue: int) -> MapRow:
    """`found` is a map as the server tells it to programs."""
    counts, created = found["counts"], parse_rfc3339(found["createdAt"])
    total, ended = counts["total"], counts["done"] + counts["dead"]
    rate, left = found["itemsPerSecond"], found["secondsLeft"]
    running = found["state"] == "running"
    until = now + timedelta(seconds=left) if running and left and left < 1e8 else None
    failed = bool(counts["dead"]) and found["state"] == "finished"
    return MapRow(
        namespace=found["namespace"],
        name=found["name"],
        owner=found["owner"],
        hue=hue,
        state=found["state"],
        tone="bad" if failed else TONES.get(found["state"], "busy"),
        total=total,
        done=counts["done"],
        failed=counts["dead"],
        running=counts["leased"],
        waiting=total - ended - counts["leased"],
        share=100 * ended // total if total else 0,
        rate=f"{rate:,.3g}/s" if rate and running else "",
        left=When(f"~{span(until - now)} left", rfc3339(until)) if until else None,
        created=When(span(now - created), found["createdAt"]),
        workers=counts["workers"],
    )


def map_model(
    found: Mapping[str, Any],
    mapjob: Obj | None,
    failed: Sequence[tuple[MapItem, bytes]] | None,
    now: datetime,
) -> MapModel:
    """Everything on a map's page at one moment."""
    counts, plan = found["counts"], plan_of(mapjob) if mapjob else {}
    mean = found["meanSeconds"]
    facts = [
        ("An item", f"{mean:,.3g} s on average" if mean is not None else ""),
        ("Executions", f"{counts['granted'] - counts['returned']:,}"),
        ("Tries that failed", f"{counts['failed']:,}" if counts["failed"] else ""),
        ("Lost with their workers", f"{counts['lost']:,}" if counts["lost"] else ""),
        ("Doubled, being slow", f"{counts['twinned']:,}" if counts["twinned"] else ""),
        ("Answers that came too late", f"{counts['refused']:,}" if counts["refused"] else ""),
        ("Workers", _workers(counts["workers"], mapjob)),
        ("Limits", ", ".join(f"{name} × {many}" for name, many in found["limits"].items())),
        ("Priority", str(found["priority"]) if found["priority"] else ""),
        ("Items", "more may be added" if not found["closed"] else ""),
    ]
    return MapModel(
        row=map_row(found, now, owner_hues([found["owner"]])[found["owner"]]),
        command=annotations_of(mapjob).get(COMMAND_ANNOTATION, "") if mapjob and failed is not None else "",
        facts=tuple(fact for fact in facts if fact[1]),
        troubles=_troubles(mapjob) if mapjob else (),
        plan_words=_plan_words(plan) if plan else "",
        plan=_plan_rows(plan, fact_of(found, plan, end_of(mapjob) if mapjob else None, now)) if plan else (),
        failed=None if failed is None else tuple(_failed(one, output) for one, output in failed),
        failed_more=max(0, counts["dead"] - len(failed or ())),
    )


def _workers(at_work: int, mapjob: Obj | None) -> str:
    status = ((mapjob or {}).get("status") or {}).get("workers") or {}
    most = ((mapjob or {}).get("spec") or {}).get("parallelism")
    words = f"{at_work:,} at work"
    if most:
        words += f", at most {most:,}"
    return words + (f", {status['restarts']:,} replaced" if status.get("restarts") else "")


def _troubles(mapjob: Obj) -> tuple[str, ...]:
    troubles = []
    for kind, bad in (("Accepted", "False"), ("Working", "False"), ("Failed", "True")):
        told = condition(mapjob, kind)
        if told and told.get("status") == bad and told.get("message"):
            troubles.append(str(told["message"]))
    return tuple(troubles)


def _plan_words(plan: Mapping[str, Any]) -> str:
    return f"{plan.get('nodes')} nodes {plan.get('machine')}, {plan.get('market')}, {plan.get('pods')} workers"


def _plan_rows(plan: Mapping[str, Any], fact: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    def time(seconds: Any) -> str:
        return format_duration(timedelta(seconds=seconds)) if isinstance(seconds, int | float) else ""

    def mean(seconds: Any) -> str:
        return f"{seconds:,.3g} s" if isinstance(seconds, int | float) else ""

    def money(of: Mapping[str, Any]) -> str:
        return f"{of['money']:,.2f} {plan.get('currency', '')}" if isinstance(of.get("money"), int | float) else ""

    rows = [
        ("Items", f"{plan.get('items', 0):,}", f"{fact['items']:,}"),
        ("Time", time(plan.get("seconds")), time(fact["seconds"])),
        ("An item", mean(plan.get("meanSeconds")), mean(fact.get("meanSeconds"))),
        ("Cost", money(plan), f"{money(fact)} of items alone" if money(fact) else ""),
    ]
    return tuple(row for row in rows if row[1] or row[2])


def _failed(map_item: MapItem, output: bytes) -> Failed:
    value = map_item.key or bytes(map_item.value).decode("utf-8", "replace")
    failure = map_item.failure
    why = f"{failure.cause}: {failure.message}".strip(": ") if failure is not None else ""
    return Failed(
        map_item.item,
        value if len(value) <= VALUE_CHARACTERS else value[:VALUE_CHARACTERS] + "…",
        why,
        output[-OUTPUT_BYTES:].decode("utf-8", "replace").strip(),
    )
