"""`moor map status`, `list`, `items`, `logs`: output about maps for people and programs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from moorage.actions import maps
from moorage.actions.maps import WORDS
from moorage.api.maps import Map, MapItem, MapState
from moorage.cli import console
from moorage.cli.session import Session
from moorage.decide.maps.facts import MapPlan, end_of, fact_of, plan_of, read_plan
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import COMMAND_ANNOTATION
from moorage_kube.errors import Forbidden, NotFound
from moorage_kube.meta import annotations_of
from moorage_kube.moments import format_duration, parse_rfc3339, rfc3339
from moorage_kube.quantity import counted, format_bytes
from moorage_kube.resources import Obj
from moorage_kube.texts import as_lines

if TYPE_CHECKING:
    from moorage.client.maps import MapClient

WATCH_SECONDS = 2.0
ROWS = 100  # default number of rows in a table of items
FAILURES_SHOWN = 5
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red", "bright_cyan", "bright_yellow")

Shown = Mapping[str, Any]


async def status(session: Session, name: str, *, output: str, watch: bool) -> int:
    """Print the status of a map; with `watch` repeatedly until it has ended."""
    drawn = 0
    async with await session.maps() as client:
        while True:
            current = await client.show(session.namespace, name, patient=True)
            mapjob = await _mapjob(session, name)
            document = as_document(current, mapjob, session.clock.now())
            ended = current.has_ended
            if output != "text":
                console.print_document(document, output)
            else:
                failed = await _failures(client, session.namespace, name) if current.counts.dead else []
                text = as_text(document, failed, session.clock.now())
                if drawn and sys.stdout.isatty():
                    console.raw(f"\x1b[{drawn}F\x1b[J", nl=False)
                elif drawn:
                    console.show("")
                console.show_text(text)
                drawn = text.count("\n") + 1
            if not watch or ended:
                return 0
            await session.clock.sleep(WATCH_SECONDS)


async def _mapjob(session: Session, name: str) -> Obj | None:
    """Return the MapJob of a map; None if it does not exist, or may not be read."""
    try:
        return await session.api.get(MAPJOBS, name, session.namespace)
    except (NotFound, Forbidden):
        return None


async def _failures(client: MapClient, namespace: str, name: str) -> list[MapItem]:
    failures: list[MapItem] = []
    async for item in client.items(namespace, name, states=("failed",)):
        failures.append(item)
        if len(failures) >= FAILURES_SHOWN:
            break
    return failures


def as_document(map_: Map, mapjob: Obj | None, now: datetime) -> dict[str, Any]:
    """Return a map for programs: the server's answer, its workers, and the plan with the real figures."""
    document = as_json(map_)
    document["executions"] = map_.counts.executions
    if mapjob is not None:
        has = mapjob.get("status") or {}
        document["workers"] = dict(has.get("workers") or {})
        document["parallelism"] = (mapjob.get("spec") or {}).get("parallelism")
        document["command"] = annotations_of(mapjob).get(COMMAND_ANNOTATION, "")
        document["conditions"] = [dict(condition) for condition in has.get("conditions") or ()]
        plan = plan_of(mapjob)
        if plan:
            document["plan"] = plan
            fact = fact_of(map_, read_plan(plan) or MapPlan(), end_of(mapjob), now)
            document["fact"] = msgspec.to_builtins(fact)
    return document


def as_text(document: Shown, failed: Iterable[MapItem], now: datetime) -> str:
    """Return all facts of a map as text for people."""
    from moorage.sdk.progress import share_bar

    counts = document["counts"]
    # items that have ended count as progress, also failed ones
    total, done, dead = counts["total"], counts["done"], counts["dead"]
    share = (done + dead) / total if total else 0.0
    left = document.get("secondsLeft")
    rate, mean = document.get("itemsPerSecond"), document.get("meanSeconds")
    ready, running = counts["ready"] + counts["large"], counts["leased"]
    # executions that did not end an item: retries, lost workers, twins
    extra = document["executions"] - done - dead - running
    more = [f"{counts[key]:,} {word}" for key, word in _EXTRA.items() if counts.get(key)]
    # workers as the operator sees them; a map without a MapJob has none
    workers = document.get("workers")
    made = ""
    if workers:
        made = f"{workers.get('active', 0):,} of at most {document.get('parallelism') or 0:,}"
        if workers.get("restarts"):
            made += f", {workers['restarts']:,} replaced"
        if (unready := workers.get("active", 0) - workers.get("ready", 0)) > 0:
            made += f"; {unready:,} not started: moor explain {document['name']} -n {document['namespace']}"
    # facts; empty ones are left out
    fields = [
        ("map", f"{document['namespace']}/{document['name']}"),
        ("state", str(document["state"]) + ("" if document["closed"] else ", open for more items")),
        ("owner", document["owner"]),
        ("command", str(document.get("command") or "")),
        ("created", f"{format_duration(now - parse_rfc3339(document['createdAt']))} ago"),
        ("progress", f"{share_bar(share)} {share:.1%}"),
        ("items", f"{total:,}: {done:,} done, {dead:,} failed, {running:,} running, {ready:,} ready"),
        ("", f"{counts['waiting']:,} wait to be tried again" if counts["waiting"] else ""),
        ("rate", f"{rate:,.3g} items/s" if rate else ""),
        ("left", format_duration(timedelta(seconds=left)) if left is not None and share < 1 else ""),
        ("item", f"{mean:,.3g} s on average" if mean is not None else ""),
        ("executions", f"{document['executions']:,}" + (f", {extra:,} beyond the items" if extra > 0 else "")),
        ("", ", ".join(more)),
        ("workers", f"{counts['workers']:,} at work" + (f"; {made}" if made else "")),
        ("limits", ", ".join(f"{name} ×{many}" for name, many in document["limits"].items())),
    ]
    width = max(len(name) for name, _ in fields)
    lines = [f"{name:<{width}}  {text}" for name, text in fields if text]
    # conditions that need attention
    for condition in document.get("conditions") or ():
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            lines += ["", f"warning: {condition.get('message') or condition.get('reason')}"]
        elif (
            condition.get("type") in ("Accepted", "Working")
            and (condition.get("status") == "False" or condition.get("reason") == "Queue")
            and condition.get("message")
        ):
            lines += ["", f"note: {condition['message']}"]
    if document.get("plan"):
        lines += ["", *_plan_lines(document["plan"], document["fact"])]
    # the first failed items, with the command for the rest
    shown = [f"  index {item.item}: {_short(_value_text(item), 40)}  {_why(item)}" for item in failed]
    if shown:
        lines += ["", "Failed items", *shown]
        if dead > len(shown):
            lines.append(f"  … and {dead - len(shown):,} more: moor map items --failed {document['name']}")
    return as_lines(lines)


_EXTRA = {
    "failed": "tries failed",
    "lost": "lost with their workers",
    "twinned": "doubled, being slow",
    "refused": "answers came too late",
}


def _plan_lines(plan: Shown, fact: Shown) -> list[str]:
    def time(seconds: Any) -> str:
        return format_duration(timedelta(seconds=seconds)) if isinstance(seconds, int | float) else ""

    def mean(seconds: Any) -> str:
        return f"{seconds:,.3g} s" if isinstance(seconds, int | float) else ""

    def money(of: Shown) -> str:
        return f"{of['money']:,.2f} {plan.get('currency', '')}" if isinstance(of.get("money"), int | float) else ""

    rows = [
        ["items", f"{plan.get('items', 0):,}", f"{fact['items']:,}"],
        ["time", time(plan.get("seconds")), time(fact["seconds"])],
        ["an item", mean(plan.get("meanSeconds")), mean(fact.get("meanSeconds"))],
        ["cost", money(plan), f"{money(fact)}, of items alone" if money(fact) else ""],
    ]
    lines = console.table(("", "PLAN", "SO FAR"), rows).replace("-  ", "   ", 1).splitlines()
    message = (
        f"on {counted(plan.get('nodes', 0), 'node')} {plan.get('machine')}, {plan.get('market')},"
        f" {counted(plan.get('pods', 0), 'worker')}"
    )
    return [f"Plan: {message}", *(f"  {line}" for line in lines)]


def _why(item: MapItem) -> str:
    if item.failure is None:
        return ""
    return f"{item.failure.cause}: {item.failure.message}".strip(": ").replace("\n", " ")


async def listing(session: Session, *, output: str, everywhere: bool) -> int:
    """Print the maps of a namespace, or of all namespaces."""
    async with await session.maps() as client:
        maps = await client.maps(None if everywhere else session.namespace)
    now = session.clock.now()

    def rows() -> list[list[str]]:
        made = []
        for map_ in maps:
            counts, rate = map_.counts, map_.items_per_second
            left = map_.seconds_left if map_.state == MapState.RUNNING else None
            row = [
                map_.name,
                map_.owner,
                map_.state,
                f"{counts.done:,}/{counts.total:,}",
                f"{counts.dead:,}",
                f"{counts.workers:,}",
                f"{rate:,.3g}/s" if rate else "",
                format_duration(timedelta(seconds=left)) if left is not None else "",
                format_duration(now - map_.created_at),
            ]
            made.append(([map_.namespace] if everywhere else []) + row)
        return made

    heads = ("NAME", "OWNER", "STATE", "DONE", "FAILED", "WORKERS", "RATE", "LEFT", "AGE")
    where = "in any namespace" if everywhere else f"in namespace {session.namespace}"
    console.print_listing(
        output,
        headers=("NAMESPACE", *heads) if everywhere else heads,
        rows=rows,
        items=[as_json(map_) for map_ in maps],
        names=[map_.name for map_ in maps],
        nothing=f"no maps {where}; create one: moor map create NAME -f FILE -- python make.py {{item}}",
    )
    return 0


async def items(session: Session, name: str, *, states: Iterable[str], limit: int | None, output: str) -> int:
    """Print items."""
    maps.parse_states(states := tuple(states))
    most = limit if limit is not None or output not in console.TABLES else ROWS
    listed: list[MapItem] = []
    more = False
    async with await session.maps() as client:
        async for item in client.items(session.namespace, name, states=tuple(states)):
            if most is not None and len(listed) >= most:
                more = True
                break
            listed.append(item)
    console.print_listing(
        output,
        headers=("INDEX", "ITEM", "STATE", "TRIES", "TIME", "MEMORY", "REASON"),
        rows=lambda: [_item_row(item) for item in listed],
        items=[_item_document(item) for item in listed],
        names=[str(item.item) for item in listed],
        nothing=f"the map {name} has no items in these states" if states else f"the map {name} has no items",
    )
    if more:
        console.say(f"the first {most:,}; --limit shows more")
    return 0


def _value_text(item: MapItem) -> str:
    value = json.loads(bytes(item.value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _item_row(item: MapItem) -> list[str]:
    text = _value_text(item)
    seconds, peak = item.seconds, item.peak_bytes
    return [
        str(item.item),
        _short(text, 40),
        WORDS.get(item.state, item.state),
        str(item.leases),
        f"{seconds:,.3g} s" if seconds is not None else "",
        format_bytes(peak) if peak else "",
        _short(_why(item), 80),
    ]


def _item_document(item: MapItem) -> dict[str, Any]:
    document = as_json(item)
    for key in ("finishedAtMs", "readyAtMs"):
        at = document.pop(key, None)
        if at:
            document[key.removesuffix("Ms")] = rfc3339(datetime.fromtimestamp(at / 1000, UTC))
    return document


def as_json(answer: msgspec.Struct) -> dict[str, Any]:
    """Convert an answer of the server to JSON."""
    return dict(msgspec.json.decode(msgspec.json.encode(answer)))


def _short(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


async def logs(session: Session, name: str, *, item: int | None, follow: bool, prefix: bool) -> int:
    """Print stored output, in the order of its arrival at the server; a prefix can name the item of each line."""
    coloured = prefix and console.has_colour(sys.stdout)
    async with await session.maps() as client:
        nothing = True
        try:
            async for part in client.output(session.namespace, name, item=item, follow=follow):
                nothing = False
                data = part.output
                sys.stdout.buffer.write(_marked(data, part.item, coloured=coloured) if prefix else data)
                sys.stdout.buffer.flush()
        except asyncio.CancelledError:
            console.say("")
            raise
        if nothing and item is not None:
            return await _last_output(client, session.namespace, name, item)
    if nothing:
        console.say(f"the items of {name} have printed nothing")
    return 0


async def _last_output(client: MapClient, namespace: str, name: str, item: int) -> int:
    """Print the output that is stored with an item's failure, after the output itself was deleted."""
    answer = await client.item(namespace, name, item)
    data = answer.output
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        console.say(f"item {item} of {name} has printed nothing")
    return 0


def _marked(data: bytes, item: int, *, coloured: bool) -> bytes:
    mark = "[worker] " if item < 0 else f"[{item}] "
    if coloured:
        mark = click.style(mark, fg=COLOURS[item % len(COLOURS)])
    return b"".join(mark.encode() + line + b"\n" for line in data.splitlines())
