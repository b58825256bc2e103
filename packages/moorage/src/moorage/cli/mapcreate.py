"""`moor map create` and `add`."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from moorage.actions import mapjobs, maps
from moorage.actions.runinputs import read_caller, read_cluster_nodes
from moorage.api.maps import MapState
from moorage.cli import console
from moorage.cli.mapitems import Sources, parse_range, read
from moorage.cli.session import Session
from moorage.client.itemspool import Spool
from moorage.decide.maps.mapjob import FUNCTION_WORD, MapJobPlan, MapRequest
from moorage.decide.runs.request import RunRequest
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import MAP_PLAN_ANNOTATION
from moorage_kube.errors import ApiError, MoorageError, NotFound, UsageError
from moorage_kube.quantity import counted

if TYPE_CHECKING:
    from moorage.client.maps import MapClient

Given = Mapping[str, Any]
LOOK_SECONDS = 1.0  # between two looks at a map that is waited for


async def create(session: Session, given: Given) -> int:
    """Read the items, create the MapJob and add the items. All errors are reported before anything is created."""
    _check_command(given)
    if given["sample"] is not None and given["machines"] is None:
        raise UsageError("--sample needs --machines", hint="the plan of the rest needs machine types and prices")
    if given["sample"] is not None and given["open_"]:
        raise UsageError("--sample and --open cannot be used together: the rest of the items would be unknown")
    sources = _sources_of(given)
    if given["machines"] is not None:
        from moorage.cli.plan import load_sheet

        load_sheet(given["machines"])  # errors in it are reported before the sample runs
    request = request_of(given, session.namespace)
    plan = await _plan_of(session, request)
    spool = read(sources, may_be_none=given["open_"], command=request.run.command)
    try:
        for note in plan.notes:
            console.note(note)
        notes = _price(given, spool, _hinted(spool, sources)) if given["machines"] and not given["sample"] else {}
        plan.mapjob["metadata"]["annotations"].update(notes)
        if given["dry_run"]:
            return await _dry_run(session, plan, spool, sources)
        return await _make(session, given, plan, spool, sources)
    finally:
        spool.close()


async def add(session: Session, name: str, given: Given, *, resume: bool, close: bool) -> int:
    """Add items. With `resume`, continue the upload of the same file where it was interrupted."""
    sources = _sources_of(given)
    spool = read(sources, may_be_none=close and not resume, command=await _command_of(session, name))
    try:
        async with await session.maps() as client:
            current = await client.show(session.namespace, name)
            total = current.counts.total
            if resume and total > spool.count:
                raise MoorageError(
                    f"the map {name} has {total:,} items, but this source has only {spool.count:,}",
                    hint="without --resume, its items are added to the map as new items",
                )
            first = 0 if resume else total
            start = total if resume else 0
            if current.closed and start < spool.count:
                raise maps.map_closed(session.namespace, name)
            await _upload(client, session, name, spool, start=start, first=first, close=close, sources=sources)
            more = "; the list is complete" if close else ""
            console.say(f"{name} has {counted(first + spool.count, 'item')}{more}")
    finally:
        spool.close()
    return 0


async def _command_of(session: Session, name: str) -> list[str]:
    """The command of a map; empty for a function, and for a map that has no MapJob."""
    try:
        mapjob = await session.api.get(MAPJOBS, name, session.namespace)
    except NotFound:
        return []
    return list(mapjob["spec"].get("command") or ())


def _sources_of(given: Given) -> Sources:
    """The sources of the items, from the options of `map.item_options`."""
    return Sources(
        file=given["file"],
        pattern=given["pattern"],
        range=given["range_"],
        query=given["query"],
        database=given["database"],
        format=given["format_"],
        seconds_field=given["item_seconds"],
    )


def _check_command(given: Given) -> None:
    """Raise UsageError unless exactly one of command and function is given."""
    if bool(given["command"]) == (given["function"] is not None):
        raise UsageError(
            "give one of a command and --function" + (", not both" if given["command"] else ""),
            hint="moor map create NAME -f FILE -- python make.py {item}",
        )


def request_of(given: Given, namespace: str) -> MapRequest:
    """Convert the options to a request."""
    # a function is packed and checked here, before the map is created
    function: bytes | None = None
    if given["function"] is not None:
        from moorage.sdk.functions import check_sendable, pack

        function = pack(str(given["function"]))
        check_sendable(function)
    # the pods of a map take the options of `moor run`
    run = RunRequest(
        command=tuple(given["command"]) or (FUNCTION_WORD,),
        namespace=namespace,
        name=given["name"],
        gpus=given["gpus"],
        gpu_type=given["gpu_type"],
        gpu_resource=given["gpu_resource"],
        gpu_claim=given["gpu_claim"],
        cpu=given["cpu"],
        memory=given["memory"],
        volumes=given["volumes"],
        datasets=given.get("datasets", ()),
        env=given["env"],
        secrets=given["secrets"],
        working_dir=given["working_dir"],
        image=given["image"],
        host_env=given["host_env"],
        priority_class=given["priority_class"],
        queue=given["queue"],
    )
    # the rest is for the queue and the number of workers
    return MapRequest(
        run=run,
        function=function,
        parallelism=given["parallelism"],
        slots=given["slots"],
        limits=given["limits"],
        rate=given["rate"],
        retries=given["retries"],
        time=given["time"],
        max_memory=given["max_memory"],
        idempotent=given["idempotent"],
        priority=given["priority"],
        spot=given["spot"],
        restart_limit=given["restart_limit"],
        preflight_read=given["preflight_read"],
        preflight_write=given["preflight_write"],
        notify=given["notify"],
    )


async def _plan_of(session: Session, request: MapRequest) -> MapJobPlan:
    """Return the MapJob of a request, with the packed directory. Raises Problems, ApiError."""
    caller = read_caller(request.run.command, await session.user())

    def packed_here() -> bytes | None:
        from moorage.cli.runcode import packed

        sent = packed(Path(caller.cwd), False)
        return sent[1] if sent is not None else None

    cluster_nodes = read_cluster_nodes(session.api, session.server, request.run.namespace)
    return await mapjobs.plan_map(session.api, request, caller, cluster_nodes=cluster_nodes, pack=packed_here)


async def _dry_run(session: Session, plan: MapJobPlan, spool: Spool, sources: Sources) -> int:
    """Let the API server validate the MapJob, and print the objects."""
    await mapjobs.check_map(session.api, plan, session.namespace)
    console.show_text("---\n".join(console.as_yaml(_shown(obj)) for obj in plan.documents), nl=False)
    console.say(f"{_items_text(spool.count, sources)}; nothing was created")
    return 0


def _shown(obj: dict[str, Any]) -> dict[str, Any]:
    """A manifest to print: the values of `data` and `binaryData` are left out."""
    blank = {key: dict.fromkeys(obj[key], "") for key in ("data", "binaryData") if obj.get(key)}
    return {**obj, **blank}


async def _make(session: Session, given: Given, plan: MapJobPlan, spool: Spool, sources: Sources) -> int:
    name = plan.name
    async with await session.maps() as client:
        try:
            await mapjobs.create_map(session.api, plan, session.namespace, session.clock, note=console.note)
        except asyncio.CancelledError:
            console.say("", f"the map {name} was not created")
            raise
        sample = min(given["sample"], spool.count) if given["sample"] else None
        start = 0
        if sample is not None and sample < spool.count:
            await _upload(client, session, name, spool, start=0, end=sample, close=False, sources=sources, first=0)
            start = sample
            if not await _sampled(session, client, given, name, spool, sample):
                going_on = _how_to_go_on(name, sources)
                console.say(f"stopped after the sample. Continue: {going_on}   Remove it: moor map delete {name}")
                return 0
        await _upload(
            client, session, name, spool, start=start, first=0, close=not given["open_"], sources=sources
        )
        console.show(name)
        if not given["wait"]:
            items, workers = _items_text(spool.count, sources), plan.mapjob["spec"].get("parallelism") or 1
            console.say(f"{items} on {_workers_text(workers)}; follow it with: moor map status --watch {name}")
            return 0
        return await wait(session, client, name)


def _items_text(count: int, sources: Sources) -> str:
    """The number of items; for a range also the first and the last item, since the end of a range is exclusive."""
    text = counted(count, "item")
    if sources.range is None or not count:
        return text
    numbers = parse_range(sources.range)
    return f"{text} ({numbers[0]} to {numbers[-1]})" if count > 1 else f"{text} ({numbers[0]})"


def _workers_text(parallelism: int) -> str:
    if parallelism == 1:
        return "1 worker (more: --parallelism)"
    return f"at most {counted(parallelism, 'worker')}"


def _how_to_go_on(name: str, sources: Sources) -> str:
    words = ["-f", "THE-SAME-ITEMS"] if sources.file == "-" else sources.words()
    return shlex.join(["moor", "map", "add", name, "--resume", *words])


async def _upload(
    client: MapClient,
    session: Session,
    name: str,
    spool: Spool,
    *,
    start: int,
    first: int,
    close: bool,
    sources: Sources,
    end: int | None = None,
) -> None:
    """Upload lines `start` to `end` as items `first + start` and on.

    After an interruption, print how to continue.
    """
    from moorage.sdk.progress import Bar, share_bar

    with Bar(clock=session.clock) as bar:

        def seen(count: int) -> None:
            at = start + count
            bar.show(f"{share_bar(at / max(1, spool.count))}  {at:,} of {spool.count:,} items sent")

        try:
            await client.upload(
                session.namespace,
                name,
                spool.lines(start, end),
                first=first + start,
                close=close,
                seen=seen,
            )
        except (asyncio.CancelledError, MoorageError):
            if close:
                console.say("", f"the upload was interrupted. Continue: {_how_to_go_on(name, sources)}")
            raise


async def wait(session: Session, client: MapClient, name: str) -> int:
    """Show progress until the map has ended; return 1 when items failed or it was cancelled.

    Ctrl-C does not stop the map.
    """
    from moorage.sdk.progress import Bar, map_line

    try:
        with Bar(clock=session.clock) as bar:
            while True:
                current = await client.show(session.namespace, name, patient=True)
                bar.show(map_line(current), now=True)
                if not current.has_ended:
                    await _check_workers(session, name)
                    await session.clock.sleep(LOOK_SECONDS)
                    continue
                break
    except asyncio.CancelledError:
        console.say(
            "", f"detached; the map continues. Show it: moor map status {name}   Stop it: moor map cancel {name}"
        )
        raise
    counts = current.counts
    console.say(f"{name} {current.state}: {counts.done:,} of {counts.total:,} done, {counts.dead:,} failed")
    if counts.dead:
        console.say(f"hint: `moor map items --failed {name}` shows why; `moor map retry {name}` runs them again")
    return 0 if current.is_finished and not counts.dead else 1


async def _check_workers(session: Session, name: str) -> None:
    with suppress(ApiError):  # the server still answers, so the map is there
        await mapjobs.check_workers(session.api, session.namespace, name)


# -- plans


def _hinted(spool: Spool, sources: Sources) -> list[float]:
    """Return the expected times in the items; empty without --item-seconds."""
    if sources.seconds_field is None:
        return []
    lines = spool.lines()
    return [
        float(document["seconds"]) for document in (json.loads(line) for line in lines) if "seconds" in document
    ]


def _price(
    given: Given, spool: Spool, seconds: list[float], *, memory: int | None = None, items: int | None = None
) -> dict[str, str]:
    """Print the plan of a map; return the annotation that stores the plan. `seconds`: the durations of items."""
    import tempfile

    from moorage.cli.plan import load_sheet, render
    from moorage.cli.plan import plan as command
    from moorage.cli.plan import request_of as work_of
    from moorage.decide.maps.plan import plan_map

    # a plan needs the time of an item, measured or given
    items = spool.count if items is None else items
    if not seconds and given["seconds"] is None:
        raise UsageError(
            "--machines: the time of an item is not known", hint="give --seconds, --item-seconds or --sample"
        )
    # measured items are passed as a sample file, as `moor plan --sample` reads it
    with tempfile.NamedTemporaryFile("w", suffix=".json") as sample:
        rows = [
            {"seconds": duration, **({"memoryBytes": memory} if memory else {})}
            for duration in seconds
            if duration > 0
        ]
        json.dump(rows, sample)
        sample.flush()
        # the same parser as `moor plan`, so that options mean the same in both
        words = ["--items", str(items), "--machines", str(given["machines"])]
        words += ["--sample", sample.name] if rows else ["--seconds", str(given["seconds"])]
        words += ["--parallelism", str(given["parallelism"] * given["slots"])]
        words += ["--cpu", given["cpu"]] if given["cpu"] else []
        words += ["--memory", given["memory"]] if given["memory"] else []
        words += ["--gpus", str(given["gpus"])] if given["gpus"] else []
        words += ["--rate", str(given["rate"])] if given["rate"] else []
        words += ["--deadline", given["deadline"]] if given["deadline"] else []
        words += ["--budget", str(given["budget"])] if given["budget"] else []
        words += ["--market", "spot"] if given["spot"] else []
        for limit in given["limits"]:
            if "=" in limit:
                words += ["--limit", limit.partition(":")[0]]
        options = command.make_context("plan", words).params
        sheet = load_sheet(given["machines"])
        work, terms, notes = work_of(sheet, options)
    # spot pods need spot prices
    if options["market"]:
        sheet = replace(sheet, offers=tuple(offer for offer in sheet.offers if offer.market == options["market"]))
    map_plan = plan_map(work, sheet, terms)
    # print the assumptions, and then all choices
    for line in (*map_plan.assumed, *notes):
        console.note(line)
    if map_plan.choices:
        console.say(*render(map_plan, sheet.currency).splitlines())
    best = map_plan.best
    if best is None:
        raise MoorageError(map_plan.impossible, hint=map_plan.hint or None)
    # store the best choice with the map, for the comparison with real figures
    kept = {
        "items": items,
        "seconds": round(best.seconds, 1),
        "lateSeconds": round(best.late_seconds, 1),
        "meanSeconds": round(work.durations.mean, 4),
        "money": round(best.money, 4),
        "currency": sheet.currency,
        "machine": best.offer.machine.name,
        "market": best.offer.market,
        "pricePerHour": best.offer.price_per_hour,
        "nodes": best.nodes,
        "pods": best.pods,
        "podsPerNode": best.pods_per_node,
    }
    return {MAP_PLAN_ANNOTATION: json.dumps(kept)}


async def _sampled(
    session: Session, client: MapClient, given: Given, name: str, spool: Spool, sample: int
) -> bool:
    """Wait for the sample's items and plan the rest; return whether to continue with it."""
    from moorage.sdk.progress import Bar, share_bar

    with Bar(clock=session.clock) as bar:
        while True:
            current = await client.show(session.namespace, name, patient=True)
            counts = current.counts
            ended = counts.ended
            bar.show(f"{share_bar(ended / sample)}  sample: {ended:,} of {sample:,} items", now=True)
            if ended >= sample or current.state == MapState.CANCELLED:
                break
            await _check_workers(session, name)
            await session.clock.sleep(LOOK_SECONDS)
    seconds, memory = [], 0
    async for item in client.items(session.namespace, name, states=("done",)):
        seconds.append(item.seconds or 0.0)
        memory = max(memory, item.peak_bytes or 0)
    if not any(duration > 0 for duration in seconds):
        raise MoorageError(
            f"none of the {sample:,} items of the sample succeeded, so nothing can be planned",
            hint=f"moor map items --failed {name}",
        )
    if counts.dead:
        console.note(f"{counts.dead:,} of the {counted(sample, 'item')} of the sample failed")
    rest = spool.count - sample
    try:
        notes = _price(given, spool, seconds, memory=memory or None, items=rest)
    except MoorageError as error:
        console.say(f"error: {error.message}")
        return False
    await session.api.patch(MAPJOBS, name, {"metadata": {"annotations": notes}}, session.namespace)
    if given["yes"] or not sys.stdin.isatty():
        return True
    return click.confirm(f"Run the other {counted(rest, 'item')}?", default=True, err=True)
