"""The content of the pages of maps: from the queue and the MapJob to words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from moorage.api.maps import FINISHED, Map, MapItem, MapState
from moorage.decide.maps.facts import MapFact, MapPlan
from moorage.model.mapjob import MapView
from moorage.model.names import COMMAND_ANNOTATION
from moorage.server.pages.board import When, owner_hues, span, time_left
from moorage.server.pages.texts import N_
from moorage_kube.moments import format_duration, rfc3339, span_of
from moorage_kube.quantity import counted

FAILURES_SHOWN = 10
VALUE_CHARACTERS = 200
OUTPUT_BYTES = 4096  # of a failed item's last output
STATE_ORDER: Mapping[str, int] = {MapState.RUNNING: 0, MapState.PAUSED: 1}
TONES: Mapping[str, str] = {
    MapState.RUNNING: "good",
    MapState.PAUSED: "wait",
    MapState.CANCELLED: "done",
    FINISHED: "done",
}
STATE_WORDS = (N_("running"), N_("paused"), N_("cancelled"), N_("finished"))  # said by the templates
MAP_STATES = (*(str(state) for state in MapState), FINISHED)
TROUBLES = (("Accepted", "False"), ("Working", "False"), ("Failed", "True"))  # conditions that the page shows


class MapRow(Struct, frozen=True, kw_only=True):
    """One map. Counts are the queue's; `share` is the percentage of ended items, rounded down."""

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


class Failed(Struct, frozen=True):
    """An item that failed for good; `output` is the end of its last output."""

    item: int
    value: str
    why: str
    output: str


class Planned(Struct, frozen=True):
    """A plan, and the figures so far."""

    plan: MapPlan
    fact: MapFact


class MapModel(Struct, frozen=True, kw_only=True):
    """The page of one map. `failed` is None for users who may not see the items."""

    row: MapRow
    command: str
    facts: tuple[tuple[str, str], ...]
    troubles: tuple[str, ...]
    plan_words: str
    plan: tuple[tuple[str, str, str], ...]  # subject, planned, so far
    failed: tuple[Failed, ...] | None
    failed_more: int
    most_workers: int  # 0: it has no own workers


def map_rows(maps: Sequence[Map], now: datetime) -> tuple[MapRow, ...]:
    """The rows of all maps: active maps first, then by creation, newest first."""
    order = sorted(maps, key=lambda shown: shown.created_at, reverse=True)
    order.sort(key=lambda shown: STATE_ORDER.get(shown.state, 2))
    hues = owner_hues(shown.owner for shown in order)
    return tuple(map_row(shown, now, hues[shown.owner]) for shown in order)


def map_row(shown: Map, now: datetime, hue: int) -> MapRow:
    counts, rate, left = shown.counts, shown.items_per_second, shown.seconds_left
    is_running = shown.state == MapState.RUNNING
    until = now + timedelta(seconds=left) if is_running and left and left < 1e8 else None
    has_failures = bool(counts.dead) and shown.is_finished
    return MapRow(
        namespace=shown.namespace,
        name=shown.name,
        owner=shown.owner,
        hue=hue,
        state=shown.state,
        tone="bad" if has_failures else TONES.get(shown.state, "busy"),
        total=counts.total,
        done=counts.done,
        failed=counts.dead,
        running=counts.leased,
        waiting=counts.total - counts.ended - counts.leased,
        share=100 * counts.ended // counts.total if counts.total else 0,
        rate=f"{rate:,.3g}/s" if rate and is_running else "",
        left=When(time_left(until, now, about=True), rfc3339(until)) if until else None,
        created=When(span(now - shown.created_at), rfc3339(shown.created_at)),
        workers=counts.workers,
    )


def map_model(
    shown: Map,
    mapjob: MapView | None,
    planned: Planned | None,
    failed: Sequence[tuple[MapItem, bytes]] | None,
    now: datetime,
) -> MapModel:
    """The data of a map's page."""
    counts, mean = shown.counts, shown.mean_seconds
    facts = [
        ("An item", f"{mean:,.3g} s on average" if mean is not None else ""),
        ("Executions", f"{counts.executions:,}"),
        ("Failed tries", f"{counts.failed:,}" if counts.failed else ""),
        ("Lost with their workers", f"{counts.lost:,}" if counts.lost else ""),
        ("Run twice, being slow", f"{counts.twinned:,}" if counts.twinned else ""),
        ("Answers that came too late", f"{counts.refused:,}" if counts.refused else ""),
        ("Workers", _workers(counts.workers, mapjob)),
        ("Limits", ", ".join(f"{name} × {tokens}" for name, tokens in shown.limits.items())),
        ("Priority", str(shown.priority) if shown.priority else ""),
        ("Items", "more may be added" if not shown.closed else ""),
    ]
    return MapModel(
        row=map_row(shown, now, owner_hues([shown.owner])[shown.owner]),
        command=mapjob.notes.get(COMMAND_ANNOTATION, "") if mapjob is not None and failed is not None else "",
        facts=tuple(fact for fact in facts if fact[1]),
        troubles=_troubles(mapjob) if mapjob is not None else (),
        plan_words=_plan_words(planned.plan) if planned is not None else "",
        plan=_plan_rows(planned) if planned is not None else (),
        failed=None if failed is None else tuple(_failed(item, output) for item, output in failed),
        failed_more=max(0, counts.dead - len(failed or ())),
        most_workers=mapjob.spec.parallelism if mapjob is not None else 0,
    )


def _workers(at_work: int, mapjob: MapView | None) -> str:
    words = f"{at_work:,} at work"
    if mapjob is None:
        return words
    restarts = mapjob.status.workers.restarts
    return f"{words}, at most {mapjob.spec.parallelism:,}" + (f", {restarts:,} replaced" if restarts else "")


def _troubles(mapjob: MapView) -> tuple[str, ...]:
    conditions = ((mapjob.condition(kind), bad) for kind, bad in TROUBLES)
    return tuple(
        condition.message
        for condition, bad in conditions
        if condition is not None
        and condition.status == bad
        and condition.message
        and condition.reason != "Finished"  # its state says so
    )


def _plan_words(plan: MapPlan) -> str:
    return f"{counted(plan.nodes or 0, 'node')} {plan.machine}, {plan.market}, {counted(plan.pods or 0, 'worker')}"


def _plan_rows(planned: Planned) -> tuple[tuple[str, str, str], ...]:
    plan, fact = planned.plan, planned.fact

    def time(seconds: float | None) -> str:
        return format_duration(span_of(seconds)) if seconds is not None else ""

    def mean(seconds: float | None) -> str:
        return f"{seconds:,.3g} s" if seconds is not None else ""

    def money(amount: float | None) -> str:
        return f"{amount:,.2f} {plan.currency}" if amount is not None else ""

    rows = [
        ("Items", f"{plan.items:,}", f"{fact.items:,}"),
        ("Time", time(plan.seconds), time(fact.seconds)),
        ("An item", mean(plan.mean_seconds), mean(fact.mean_seconds)),
        ("Cost", money(plan.money), f"{money(fact.money)} of items alone" if fact.money is not None else ""),
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
