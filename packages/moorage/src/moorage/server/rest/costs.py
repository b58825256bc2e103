"""/api/v1/cost: the cost of a window by tenant, user, run, namespace, day, node or type; and two ways of billing.

Members see their own rows and those of users whose pods they may read by name. All other rows are added into
one row, so the sums are equal for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, time
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from moorage.api.costs import (
    PRICES_MOST,
    Compared,
    ComparedJob,
    CompareJob,
    CompareRequest,
    CostQuery,
    CostRequest,
    Costs,
    DailyCost,
    DailyCosts,
    InstalledPrices,
)
from moorage.api.errors import ErrorCode
from moorage.decide.cost.compare import Comparison, Job, compare, job_of, summed
from moorage.decide.cost.money import GRAINS, decimals_of, rounded
from moorage.decide.cost.report import By, daily, days_between, report
from moorage.decide.timetext import moment_before
from moorage.model.prices import PriceSheet
from moorage.present.costsanswer import make_costs, notes_of, source_of
from moorage.server.context import Context
from moorage.server.costs import facts_of, installed_sheet, installed_text, namespaces_of, read_sheet, viewer
from moorage.server.endpoint import Call, Endpoint
from moorage.server.identity.auth import User
from moorage_kube.errors import NotFound, QuantityError, UsageError
from moorage_kube.moments import rfc3339
from moorage_kube.quantity import parse_count, parse_milli

MONTH_SECONDS = 30 * 86_400
DAYS_MOST = 400
BODY_BYTES = 4 * PRICES_MOST
JOBS_SHOWN = 1000


async def get_cost(call: Call[None, CostQuery]) -> Costs:
    """Show the money of a window: used, allocated and idle, by tenant, user, run, namespace, day, node or type."""
    query = call.query
    window = _window(call.context, query.since, query.until)
    return await costs(
        call.context, call.user, await installed_sheet(call.context), by=_by(query.by), window=window,
        zone=_zone(query.time_zone),
    )  # fmt: skip


async def cost_with_prices(call: Call[CostRequest, None]) -> Costs:
    """Show the same costs with prices from the request; changes nothing."""
    body = call.body
    sheet = read_sheet(body.prices, "the price file") if body.prices else await installed_sheet(call.context)
    window = _window(call.context, body.since, body.until)
    return await costs(call.context, call.user, sheet, by=_by(body.by), window=window, zone=_zone(body.time_zone))


async def get_daily(call: Call[None, CostQuery]) -> DailyCosts:
    """Money day by day, for a chart, by tenant, user, namespace, node or type."""
    query, context = call.query, call.context
    since, until = _window(context, query.since, query.until)
    by = _by("tenant" if query.by == "day" else query.by)
    sheet = await installed_sheet(context)
    facts, begin = await facts_of(context, sheet, since, until, measured=False)
    days = _days(begin, until, _zone(query.time_zone))
    sees = await viewer(context, call.user, namespaces_of(facts))
    table = await asyncio.to_thread(lambda: daily(facts, by=by, since=begin, until=until, days=days, sees=sees))
    digits = decimals_of(sheet.currency)
    names = sorted(table, key=lambda name: (-sum(table[name].values()), name))
    cells = iter(rounded([table[name].get(day, 0) for name in names for day in days], digits))
    return DailyCosts(
        days=tuple(day.isoformat()[:10] for day in days),
        by=by,
        prices=source_of(sheet),
        rows=tuple(DailyCost(name=name, money=tuple(str(next(cells)) for _ in days)) for name in names),
    )


async def compare_costs(call: Call[CompareRequest, None]) -> Compared:
    """Compare node billing with pod billing, over a window or a sample of work. For users who may list all
    pods.
    """
    body, context = call.body, call.context
    nodes = read_sheet(body.node_prices, "the price file of nodes") if body.node_prices else None
    nodes = nodes or await installed_sheet(context)
    pods = read_sheet(body.pod_prices, "the price file of pods") if body.pod_prices else nodes
    since, until = _window(context, body.since, body.until)
    facts, begin = await facts_of(context, nodes, since, until, measured=False)
    if await viewer(context, call.user, namespaces_of(facts)) is not None:
        raise UsageError(
            "a comparison is over all pods, and you may not list them",
            hint="ask an administrator",
            code=ErrorCode.FORBIDDEN,
        )
    jobs: list[Job] | None = None
    notes: list[str] = []
    if body.sample or body.jobs:
        jobs = [_job(job) for job in body.jobs]
        for name in body.sample:
            jobs += _sampled(name, facts, pods, Fraction(str(body.times)), since, until)
    seconds = Fraction((min(until, facts.now) - begin).total_seconds())
    scale = Fraction(MONTH_SECONDS) / seconds if jobs is not None and seconds else Fraction(1)
    if jobs is not None:
        notes.append(f"nodes: the money of {float(seconds / 86_400):.2f} days, as 30 days of the same")
    answer = await asyncio.to_thread(
        lambda: compare(facts, pods, since=begin, until=until, jobs=jobs, scale=scale)
    )
    return _compared(answer, nodes, pods, begin=begin, until=until, is_month=jobs is not None, notes=notes)


async def get_prices(call: Call[None, None]) -> InstalledPrices:
    """The price file that is installed."""
    text = await installed_text(call.context)
    if not text.strip():
        return InstalledPrices()
    return InstalledPrices(text=text, prices=source_of(read_sheet(text, "the installed price file")))


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/cost", handler=get_cost, query=CostQuery, answer=Costs),
    Endpoint(
        method="POST", path="/api/v1/cost", handler=cost_with_prices, body=CostRequest, body_bytes=BODY_BYTES,
        answer=Costs,
    ),
    Endpoint(method="GET", path="/api/v1/cost/daily", handler=get_daily, query=CostQuery, answer=DailyCosts),
    Endpoint(
        method="POST", path="/api/v1/cost/compare", handler=compare_costs, body=CompareRequest,
        body_bytes=BODY_BYTES, answer=Compared,
    ),
    Endpoint(method="GET", path="/api/v1/cost/prices", handler=get_prices, answer=InstalledPrices),
)  # fmt: skip


async def costs(
    context: Context, user: User, sheet: PriceSheet, *, by: By, window: tuple[datetime, datetime], zone: ZoneInfo
) -> Costs:
    """Convert a report to an answer, without the rows that the user may not see."""
    since, until = window
    facts, begin = await facts_of(context, sheet, since, until)
    days = _days(begin, until, zone) if by is By.DAY else ()
    sees = await viewer(context, user, namespaces_of(facts))
    answer = await asyncio.to_thread(lambda: report(facts, by=by, since=begin, until=until, days=days, sees=sees))
    return make_costs(
        answer, sheet, by=by, since=begin, until=until, notes=notes_of(sheet, asked=since, begin=begin)
    )


def _compared(
    answer: Comparison, nodes: PriceSheet, pods: PriceSheet, *, begin: datetime, until: datetime, is_month: bool,
    notes: Sequence[str],
) -> Compared:  # fmt: skip
    digits = decimals_of(nodes.currency)

    def text(money: Fraction) -> str:
        (amount,) = rounded([round(money * GRAINS)], digits)
        return str(amount)

    jobs = list(summed(answer.jobs).items())
    money: list[Decimal] = rounded([round(of * GRAINS) for _, (_, of) in jobs], digits)
    return Compared(
        since=begin.replace(microsecond=0),
        until=until.replace(microsecond=0),
        is_month=is_month,
        node_prices=source_of(nodes),
        pod_prices=source_of(pods),
        nodes=text(answer.nodes),
        idle=text(answer.idle),
        pods=text(answer.pods),
        saved_percent=None if answer.saved is None else round(float(answer.saved * 100), 2),
        jobs=tuple(
            ComparedJob(name=name, times=float(times), money=str(of))
            for (name, (times, _)), of in zip(jobs[:JOBS_SHOWN], money, strict=False)
        ),
        unpriced=answer.unpriced,
        notes=tuple(notes),
    )


def _job(job: CompareJob) -> Job:
    try:
        return Job(
            name=job.name,
            cpu_milli=parse_milli(job.cpu or 0),
            memory_bytes=parse_count(job.memory or 0),
            storage_bytes=parse_count(job.storage or 0),
            gpus=Fraction(str(job.gpus)),
            gpu_type=job.gpu_type,
            seconds=Fraction(str(job.seconds)),
            times=Fraction(str(job.times)),
            region=job.region,
            spot=job.spot,
        )
    except QuantityError as error:
        raise UsageError(
            f"job {job.name}: {error.message}", hint=error.hint, code=ErrorCode.INVALID, field="jobs"
        ) from error


def _sampled(
    name: str, facts: Any, sheet: PriceSheet, times: Fraction, since: datetime, until: datetime
) -> list[Job]:
    namespace, _, run = name.partition("/")
    jobs = [
        job_of(interval, None, span=min(until, facts.now, interval.ended_at or until) - interval.started_at,
               sheet=sheet, times=times)
        for interval in facts.intervals
        if interval.namespace == namespace
        and run in (interval.run, interval.workflow, interval.part_of, interval.pod)
        and interval.started_at >= since
    ]  # fmt: skip
    if not jobs:
        raise NotFound(f"no pod of run {name} was recorded in the window", hint="see moor cost report --by run")
    return jobs


def _window(context: Context, since: str, until: str | None) -> tuple[datetime, datetime]:
    now = context.now()
    begin = moment_before(since, now, "since")
    end = now if until is None else min(now, moment_before(until or rfc3339(now), now, "until"))
    if begin >= end:
        raise UsageError(
            f"the window is empty: since {rfc3339(begin)}, until {rfc3339(end)}",
            hint="`since` must be before `until`, and in the past",
            code=ErrorCode.BAD_REQUEST,
            field="since",
        )
    return begin, end


def _days(since: datetime, until: datetime, zone: ZoneInfo) -> tuple[datetime, ...]:
    def midnight(moment: datetime) -> datetime:
        return datetime.combine(moment.astimezone(zone).date(), time(), zone)

    days = days_between(since, until, midnight)
    if len(days) > DAYS_MOST:
        raise UsageError(
            f"the window has {len(days)} days; {DAYS_MOST} are allowed",
            hint="ask for a shorter one",
            code=ErrorCode.BAD_REQUEST,
            field="since",
        )
    return days


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            f"unknown time zone {name!r}: use a name such as Asia/Tokyo",
            code=ErrorCode.BAD_REQUEST,
            field="timeZone",
        ) from error


def _by(text: str) -> By:
    try:
        return By(text)
    except ValueError as error:
        raise UsageError(
            f"invalid by {text!r}: use {', '.join(By)}", code=ErrorCode.BAD_REQUEST, field="by"
        ) from error
