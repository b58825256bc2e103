"""Two ways of billing, over the same work: nodes by the hour, or the requests of pods by the hour.

System pods, and those that hold a machine's place, cost nothing where pods are billed: the provider runs the
first, and the second have no use there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from fractions import Fraction

from msgspec import Struct

from moorage.decide.cost.money import HOUR_US, microseconds
from moorage.decide.cost.report import Facts, is_system, shares
from moorage.decide.usage.devices import gpus_of
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.nodelives import NodeLife
from moorage.model.podprices import Amount, PodPrices, Rates
from moorage.model.prices import SPOT, PriceSheet
from moorage_kube.errors import UsageError


class Job(Struct, frozen=True, kw_only=True):
    """Work of one pod: its requests, its duration, and its number of runs."""

    name: str
    cpu_milli: int = 0
    memory_bytes: int = 0
    storage_bytes: int = 0
    gpus: Fraction = Fraction(0)
    gpu_type: str = ""
    seconds: Fraction
    times: Fraction = Fraction(1)
    region: str = ""
    spot: bool = False


class Billed(Struct, frozen=True, kw_only=True):
    """The bill of a job on a cluster that bills pods.

    `asked` and `billed`: the amounts before and after minimums and steps.
    """

    job: Job
    asked: Amount
    billed: Amount
    per_hour: Fraction
    money: Fraction  # for all its times


class Comparison(Struct, frozen=True, kw_only=True):
    """The result of a comparison. Amounts are in the currency of the price files, not rounded."""

    nodes: Fraction
    idle: Fraction  # of the nodes' money
    pods: Fraction
    jobs: tuple[Billed, ...]  # the most expensive first
    unpriced: tuple[str, ...] = ()  # nodes without a price

    @property
    def saved(self) -> Fraction | None:
        """The savings of billing by pods, as a part of the nodes' money; less than 0 if it costs more."""
        return 1 - self.pods / self.nodes if self.nodes else None


def compare(
    facts: Facts, pod_sheet: PriceSheet, *, since: datetime, until: datetime, jobs: Sequence[Job] | None = None,
    scale: Fraction = Fraction(1),
) -> Comparison:  # fmt: skip
    """Nodes by `facts.sheet`, pods by `pod_sheet`. Raises UsageError for a sheet that lacks a price.

    `jobs` None: those of the window itself. `scale`: a factor for the money of nodes, to compare their cost of a
    month with jobs counted by the month.
    """
    if facts.sheet.currency != pod_sheet.currency:
        raise UsageError(
            f"the price files have two currencies: {facts.sheet.currency} and {pod_sheet.currency}",
            hint="write both in one",
        )
    unpriced: dict[str, Fraction] = {}
    nodes = idle = 0
    for _, share in shares(facts, since=since, until=until, days=(), unpriced=unpriced):
        nodes += share.money
        idle += share.money if share.interval is None else 0
    if jobs is None:
        jobs = jobs_of(facts, pod_sheet, since=since, until=until)
    biller = Biller(pod_sheet)
    billed = sorted((biller.bill(job) for job in jobs), key=lambda job: (-job.money, job.job.name))
    grains = HOUR_US * 10**12
    return Comparison(
        nodes=Fraction(nodes, grains) * scale,
        idle=Fraction(idle, grains) * scale,
        pods=sum((job.money for job in billed), Fraction(0)),
        jobs=tuple(billed),
        unpriced=tuple(sorted(unpriced)),
    )


def jobs_of(facts: Facts, sheet: PriceSheet, *, since: datetime, until: datetime) -> list[Job]:
    """Every pod within a window as a job that ran once, with its billed time."""
    lives: dict[str, list[NodeLife]] = {}
    for life in facts.lives:
        lives.setdefault(life.node, []).append(life)
    jobs = []
    for interval in facts.intervals:
        if is_system(interval.namespace) or interval.reserved_for:
            continue
        end = min(until, facts.now) if interval.ended_at is None else min(until, interval.ended_at)
        begin = max(since, interval.started_at)
        if begin < end:
            there = [life for life in lives.get(interval.node, ()) if life.started_at <= begin]
            jobs.append(job_of(interval, there[-1] if there else None, span=end - begin, sheet=sheet))
    return jobs


def job_of(
    interval: Interval, life: NodeLife | None, *, span: timedelta, sheet: PriceSheet, times: Fraction = Fraction(1)
) -> Job:
    """Convert a pod to a job. `life`: the life of its node, if known."""
    least, step = Fraction(sheet.minimum_seconds), Fraction(sheet.step_seconds)
    seconds = max(Fraction(microseconds(span), 1_000_000), least)
    counts = interval.gpu_counts
    gpus = gpus_of(counts, life.shares if life else {}) if counts else Fraction(interval.gpus)
    return Job(
        name=f"{interval.namespace}/{interval.run or interval.part_of or interval.workflow or interval.pod}",
        cpu_milli=interval.cpu_milli,
        memory_bytes=interval.memory_bytes,
        storage_bytes=interval.storage_bytes,
        gpus=gpus,
        gpu_type=interval.gpu_type,
        seconds=-(-seconds // step) * step,
        times=times,
        region=life.region if life else "",
        spot=bool(life and life.market == SPOT),
    )


class Biller:
    """Bills jobs by one sheet, and caches the price of an hour of each size."""

    def __init__(self, sheet: PriceSheet) -> None:
        self._sheet = sheet
        self._hours: dict[tuple[object, ...], _Hour] = {}

    def bill(self, job: Job) -> Billed:
        """Compute the bill of a job. Raises UsageError if the price file has no price for it."""
        key = (job.cpu_milli, job.memory_bytes, job.storage_bytes, job.gpus, job.gpu_type, job.region, job.spot)
        if key not in self._hours:
            self._hours[key] = _hour_of(job, self._sheet)
        hour = self._hours[key]
        money = hour.price * job.seconds / 3600 * job.times
        return Billed(job=job, asked=hour.asked, billed=hour.billed, per_hour=hour.price, money=money)


class _Hour(Struct, frozen=True):
    """An hour of a job of some size: the requests, the billed amount, and the price."""

    asked: Amount
    billed: Amount
    price: Fraction


def _hour_of(job: Job, sheet: PriceSheet) -> _Hour:
    prices = prices_in(sheet, job.region)
    rates: Rates = prices.spot if job.spot and prices.spot is not None else prices.rates
    asked = Amount(cpu_milli=job.cpu_milli, memory_bytes=job.memory_bytes, storage_bytes=job.storage_bytes)
    given = Amount(
        cpu_milli=_stepped(
            asked.cpu_milli, prices.default.cpu_milli, prices.minimum.cpu_milli, prices.step.cpu_milli
        ),
        memory_bytes=_stepped(
            asked.memory_bytes, prices.default.memory_bytes, prices.minimum.memory_bytes, prices.step.memory_bytes
        ),
        storage_bytes=_stepped(
            asked.storage_bytes,
            prices.default.storage_bytes,
            prices.minimum.storage_bytes,
            prices.step.storage_bytes,
        ),
    )
    if job.gpus and job.gpu_type not in rates.gpus:
        known = ", ".join(sorted(rates.gpus)) or "none"
        raise UsageError(
            f"no price of a pod's GPU of type {job.gpu_type!r}, which {job.name} asks for; the file has {known}"
        )
    price = (
        Fraction(given.cpu_milli, 1000) * rates.cpu
        + Fraction(given.memory_bytes, 2**30) * rates.memory
        + Fraction(given.storage_bytes, 2**30) * rates.storage
        + (job.gpus * rates.gpus[job.gpu_type] if job.gpus else Fraction(0))
    )
    return _Hour(asked, given, price)


def prices_in(sheet: PriceSheet, region: str) -> PodPrices:
    """The pod prices of a region, else the prices for all regions. A file with a single region needs no `region`.

    Raises UsageError.
    """
    if not sheet.pods:
        raise UsageError("the file has no prices of pods", hint="add `pods:` with the price of a CPU and of a GiB")
    by_region = {prices.region: prices for prices in sheet.pods}
    prices = by_region.get(region) or by_region.get("") or (sheet.pods[0] if len(sheet.pods) == 1 else None)
    if prices is None:
        raise UsageError(
            f"no price of pods in {region or 'a cluster without regions'}; the file has {', '.join(by_region)}"
        )
    return prices


def summed(jobs: Iterable[Billed]) -> dict[str, tuple[Fraction, Fraction]]:
    """Name → (number of runs, cost), the most expensive first. Jobs of the same name are added up."""
    table: dict[str, tuple[Fraction, Fraction]] = {}
    for billed in jobs:
        times, money = table.get(billed.job.name, (Fraction(0), Fraction(0)))
        table[billed.job.name] = (times + billed.job.times, money + billed.money)
    return dict(sorted(table.items(), key=lambda item: -item[1][1]))


def _stepped(asked: int, default: int, minimum: int, step: int) -> int:
    amount = max(asked or default, minimum)
    return -(-amount // step) * step if step else amount
