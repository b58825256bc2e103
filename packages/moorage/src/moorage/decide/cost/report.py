"""The money of a window: used, allocated, reserved and idle, by user or by place.

For every node and moment: provisioned = used + unused + not measured + reserved + idle. A pod's money is *used* as
far as its GPUs were busy by their samples, and *unused* as far as they were not. Without GPUs or samples it is
*not measured*.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.decide.cost.money import HOUR_US, decimals_of, microseconds, rounded
from moorage.decide.cost.nodes import Pricer
from moorage.decide.cost.split import Share, Splitter
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.nodelives import NodeLife
from moorage.model.prices import PriceSheet
from moorage.model.tenant import RESERVED as SYSTEM_NAMESPACES

IDLE, SYSTEM, KEPT, OTHERS = "(idle)", "(system)", "(reserved)", "(others)"
_MILLION = 1_000_000


Sees = Callable[[str, str], bool]
"""Whether a reader may see by name what a user (the first) did in a namespace."""


class By(StrEnum):
    TENANT = "tenant"
    USER = "user"
    RUN = "run"
    NAMESPACE = "namespace"
    DAY = "day"
    NODE = "node"
    TYPE = "type"


class Measured(Struct, frozen=True, kw_only=True):
    """Samples of a pod, in millionths: the covered part of its time, and the mean use of its GPUs in it."""

    covered: int
    busy: int


class Booking(Struct, frozen=True, kw_only=True):
    """A reservation of the calendar: a number of machines of a type, for an owner, from one moment to another."""

    name: str
    namespace: str
    owner: str
    machine: str  # GROUP/TYPE
    count: int
    since: datetime
    until: datetime


class Sums(Struct):
    """Sums of costs (in grains) and of GPU time (whole GPUs × microseconds). `add` changes them in place."""

    used: int = 0
    unused: int = 0
    not_measured: int = 0
    reserved: int = 0
    idle: int = 0
    gpu_us: Fraction | int = 0
    pods: set[str] = field(default_factory=set)

    @property
    def allocated(self) -> int:
        return self.used + self.unused + self.not_measured + self.reserved

    @property
    def whole(self) -> int:
        return self.allocated + self.idle

    @property
    def gpu_hours(self) -> float:
        return float(Fraction(self.gpu_us) / HOUR_US)

    def add(self, share: Share, measured: Mapping[str, Measured]) -> None:
        """Add a share, by the use of its money."""
        interval, money = share.interval, share.money
        if interval is None:
            self.idle += money
            return
        self.gpu_us += share.gpu_us
        self.pods.add(interval.pod_uid)
        samples = measured.get(interval.pod_uid)
        if interval.reserved_for:
            self.reserved += money
        elif samples is None or not interval.gpus:
            self.not_measured += money
        else:
            covered = money * min(samples.covered, _MILLION) // _MILLION
            used = covered * min(samples.busy, _MILLION) // _MILLION
            self.used += used
            self.unused += covered - used
            self.not_measured += money - covered

    def merge(self, other: Sums) -> None:
        """Add all values of another Sums."""
        self.used += other.used
        self.unused += other.unused
        self.not_measured += other.not_measured
        self.reserved += other.reserved
        self.idle += other.idle
        self.gpu_us += other.gpu_us
        self.pods |= other.pods


class Ledger(Struct, frozen=True, kw_only=True):
    """The money of a window for all readers: `report_of` makes the report of each reader from it.

    `sums`: by the name of a row, and by the (user, namespace) that decides who may see the name; None: all may.
    """

    by: By
    currency: str
    sums: Mapping[tuple[str, tuple[str, str] | None], Sums]
    unpriced: Mapping[str, Fraction]


class Facts(Struct, frozen=True, kw_only=True):
    """All data that a cost report depends on."""

    lives: Sequence[NodeLife]
    intervals: Sequence[Interval]
    sheet: PriceSheet
    now: datetime
    tenants: Mapping[str, str] = field(default_factory=dict)  # namespace → tenant
    measured: Mapping[str, Measured] = field(default_factory=dict)  # pod uid → the sums of its samples
    bookings: Sequence[Booking] = ()


class Row(Struct, frozen=True, kw_only=True):
    """One row with rounded costs. The numbers of each row and of each column still add up."""

    name: str
    used: Decimal
    unused: Decimal
    not_measured: Decimal
    reserved: Decimal
    idle: Decimal
    gpu_hours: float
    pods: int

    @property
    def allocated(self) -> Decimal:
        return self.used + self.unused + self.not_measured + self.reserved

    @property
    def whole(self) -> Decimal:
        return self.allocated + self.idle


class Report(Struct, frozen=True, kw_only=True):
    """`unpriced`: nodes without a price in the file → their hours; the rows do not include them."""

    rows: tuple[Row, ...]
    total: Row
    unpriced: Mapping[str, Fraction]


def report(
    facts: Facts,
    *,
    by: By,
    since: datetime,
    until: datetime,
    days: Sequence[datetime] = (),
    sees: Sees | None = None,
) -> Report:
    """The rows of a window, the largest first, money without an owner last; days in their order.

    `days`: the starts of days, for By.DAY: the first at or before `since`. `sees`: the pods that the reader may
    see by name; those of others are one row. None: all pods.
    """
    return report_of(ledger(facts, by=by, since=since, until=until, days=days), sees)


def ledger(facts: Facts, *, by: By, since: datetime, until: datetime, days: Sequence[datetime] = ()) -> Ledger:
    """The sums of a window, for any reader. This is slow for many pods; `report_of` is fast."""
    unpriced: dict[str, Fraction] = {}
    sums: dict[tuple[str, tuple[str, str] | None], Sums] = {}
    names = {day: day.isoformat()[:10] for day in (since, *days)}
    for day, share in shares(
        facts, since=since, until=until, days=days if by is By.DAY else (), unpriced=unpriced
    ):
        name, whose = (names[day], None) if day else _named(share, by, facts.tenants)
        sums.setdefault((name, whose), Sums()).add(share, facts.measured)
    return Ledger(by=by, currency=facts.sheet.currency, sums=sums, unpriced=unpriced)


def report_of(ledger: Ledger, sees: Sees | None = None) -> Report:
    """The part of a ledger that a reader may see. The sums of all readers are the same."""
    table: dict[str, Sums] = {}
    for (name, whose), sums in ledger.sums.items():
        table.setdefault(_shown(name, whose, sees), Sums()).merge(sums)
    ordered = sorted(
        table, key=lambda name: name if ledger.by is By.DAY else (name.startswith("("), -table[name].whole, name)
    )
    rows = _rows(ordered, table, ledger.currency)
    return Report(rows=rows, total=_total(rows, table, ledger.currency), unpriced=ledger.unpriced)


def daily(
    facts: Facts,
    *,
    by: By,
    since: datetime,
    until: datetime,
    days: Sequence[datetime],
    sees: Sees | None = None,
) -> dict[str, dict[datetime, int]]:
    """Data of a chart: name → start of the day → cost in grains."""
    return daily_of(daily_ledger(facts, by=by, since=since, until=until, days=days), sees)


DailyLedger = Mapping[tuple[str, tuple[str, str] | None], Mapping[datetime, int]]
"""Grains of each day for all readers, with the keys of `Ledger.sums`."""


def daily_ledger(
    facts: Facts, *, by: By, since: datetime, until: datetime, days: Sequence[datetime]
) -> DailyLedger:
    """The daily sums of a window, for any reader. This is slow for many pods; `daily_of` is fast."""
    table: dict[tuple[str, tuple[str, str] | None], dict[datetime, int]] = {}
    for day, share in shares(facts, since=since, until=until, days=days, unpriced={}):
        if day is not None:
            row = table.setdefault(_named(share, by, facts.tenants), {})
            row[day] = row.get(day, 0) + share.money
    return table


def daily_of(ledger: DailyLedger, sees: Sees | None = None) -> dict[str, dict[datetime, int]]:
    """The part of a daily ledger that a reader may see."""
    table: dict[str, dict[datetime, int]] = {}
    for (name, whose), sums in ledger.items():
        row = table.setdefault(_shown(name, whose, sees), {})
        for day, money in sums.items():
            row[day] = row.get(day, 0) + money
    return table


def shares(
    facts: Facts, *, since: datetime, until: datetime, days: Sequence[datetime], unpriced: dict[str, Fraction]
) -> Iterator[tuple[datetime | None, Share]]:
    """All shares of all nodes with a price; separate shares for each day if days are given."""
    pricer, splitter = Pricer(facts.sheet), Splitter(facts.sheet.weights)
    cuts = [since, *(day for day in days if since < day < until), until]
    by_node: dict[str, list[list[Interval]]] = {}
    for interval in booked(facts.intervals, facts.bookings):
        windows = by_node.setdefault(interval.node, [[] for _ in cuts[1:]])
        first = max(0, bisect_right(cuts, interval.started_at) - 1)
        last = len(windows) if interval.ended_at is None else bisect_left(cuts, interval.ended_at)
        for at in range(first, min(last, len(windows))):
            windows[at].append(interval)
    for at, (begin, end) in enumerate(pairwise(cuts)):
        day = max((moment for moment in days if moment <= begin), default=begin) if days else None
        for node in pricer.price(facts.lives, since=begin, until=end, now=facts.now):
            if node.rate is None:
                name = type_of(node.life)
                hours = Fraction(microseconds(node.there_until - node.since), HOUR_US)
                unpriced[name] = unpriced.get(name, Fraction(0)) + hours
                continue
            there = by_node.get(node.life.node)
            for share in splitter.split(node, there[at] if there else ()):
                yield day, share


def booked(intervals: Iterable[Interval], bookings: Sequence[Booking]) -> list[Interval]:
    """Assign reserved places to the reservations that are active then; places beyond their number have no owner.

    A place may be reserved for several in turns: it is split into as many intervals.
    """
    result: list[Interval] = []
    kept: list[Interval] = []
    for interval in intervals:
        (kept if interval.reserved_for else result).append(interval)
    pieces = [
        interval
        for machine in sorted({interval.reserved_for for interval in kept})
        for interval in _booked(
            [interval for interval in kept if interval.reserved_for == machine],
            [booking for booking in bookings if booking.machine == machine],
        )
    ]
    return result + pieces


def _booked(kept: Sequence[Interval], bookings: Sequence[Booking]) -> list[Interval]:
    # cut intervals where a booking starts or ends: within a segment the bookings are the same
    cuts = sorted({moment for booking in bookings for moment in (booking.since, booking.until)})
    pieces: dict[datetime, list[Interval]] = {}
    for interval in kept:
        inner = [
            cut
            for cut in cuts
            if interval.started_at < cut and (interval.ended_at is None or cut < interval.ended_at)
        ]
        for begin, end in zip([interval.started_at, *inner], [*inner, interval.ended_at], strict=True):
            segment = max((cut for cut in cuts if cut <= begin), default=begin)
            pieces.setdefault(segment, []).append(replace(interval, started_at=begin, ended_at=end))
    # assign places to bookings, the oldest booking first; surplus places have no owner
    result: list[Interval] = []
    for segment, places in sorted(pieces.items()):
        slots = [
            booking
            for booking in sorted(bookings, key=lambda booking: (booking.since, booking.namespace, booking.name))
            if booking.since <= segment < booking.until
            for _ in range(min(booking.count, len(places)))
        ]
        # a slot is free again when its place has ended: the pod that replaces it takes it over
        free_at: list[datetime | None] = [segment] * len(slots)  # None: taken to the end
        for place in sorted(places, key=lambda place: (place.started_at, place.pod_uid)):
            at = next(
                (at for at, free in enumerate(free_at) if free is not None and free <= place.started_at), None
            )
            if at is None:
                result.append(place)
                continue
            free_at[at] = place.ended_at
            booking = slots[at]
            result.append(
                replace(
                    place,
                    namespace=booking.namespace,
                    owner=booking.owner,
                    run="",
                    part_of=f"reservation/{booking.name}",
                )
            )
    return result


def type_of(life: NodeLife) -> str:
    """The name of a node's type: its instance type, else its GPU type."""
    name = life.instance_type or life.gpu_type or "no type"
    where = f" in {life.region}" if life.region else ""
    return f"{name}{where}{', spot' if life.market == 'spot' else ''}"


def is_system(namespace: str) -> bool:
    """Whether a namespace is part of the system, and of no tenant."""
    return namespace in SYSTEM_NAMESPACES or namespace.startswith("kube-")


def _named(share: Share, by: By, tenants: Mapping[str, str]) -> tuple[str, tuple[str, str] | None]:
    """The name of a share's row, and the user and namespace that decide who may see it; None: all may."""
    interval = share.interval
    if by is By.NODE:
        return share.node.life.node, None
    if by is By.TYPE:
        return type_of(share.node.life), None
    if interval is None:
        return IDLE, None
    if is_system(interval.namespace):
        return KEPT if interval.reserved_for else SYSTEM, None
    match by:
        case By.TENANT:
            name = tenants.get(interval.namespace) or f"namespace {interval.namespace}"
        case By.USER:
            name = interval.owner
        case By.NAMESPACE:
            name = interval.namespace
        case _:
            work = interval.run or interval.part_of
            work = work or (f"workflow/{interval.workflow}" if interval.workflow else interval.pod)
            name = f"{interval.namespace}/{work}"
    return name, (interval.owner, interval.namespace)


def _shown(name: str, whose: tuple[str, str] | None, sees: Sees | None) -> str:
    """The name of a row, as far as the reader may see it."""
    return name if whose is None or sees is None or sees(*whose) else OTHERS


def _rows(ordered: Sequence[str], table: Mapping[str, Sums], currency: str) -> tuple[Row, ...]:
    cells = [
        amount
        for name in ordered
        for amount in (
            table[name].used, table[name].unused, table[name].not_measured, table[name].reserved, table[name].idle,
        )
    ]  # fmt: skip
    money = iter(rounded(cells, decimals_of(currency)))
    return tuple(
        Row(
            name=name,
            used=next(money),
            unused=next(money),
            not_measured=next(money),
            reserved=next(money),
            idle=next(money),
            gpu_hours=table[name].gpu_hours,
            pods=len(table[name].pods),
        )
        for name in ordered
    )


def _total(rows: Sequence[Row], table: Mapping[str, Sums], currency: str) -> Row:
    """The sum of the rounded rows, which equals the rounded sum."""
    zero = Decimal(0).scaleb(-decimals_of(currency))
    return Row(
        name="total",
        used=sum((row.used for row in rows), zero),
        unused=sum((row.unused for row in rows), zero),
        not_measured=sum((row.not_measured for row in rows), zero),
        reserved=sum((row.reserved for row in rows), zero),
        idle=sum((row.idle for row in rows), zero),
        gpu_hours=sum(row.gpu_hours for row in rows),
        pods=len(set[str]().union(*(sums.pods for sums in table.values()))),
    )


def days_between(
    since: datetime, until: datetime, midnight: Callable[[datetime], datetime]
) -> tuple[datetime, ...]:
    """The starts of the days of a window; the first is at or before its start.

    `midnight`: a function that returns the start of a moment's day.
    """
    days = [midnight(since)]
    while (following := midnight(days[-1] + timedelta(hours=36))) < until:
        days.append(following)
    return tuple(days)
