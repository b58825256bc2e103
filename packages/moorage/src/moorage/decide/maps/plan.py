"""How many nodes a map needs, how long it takes on them and how much that costs, before it is started.

Every offer (a machine type, in a region, spot or on demand) is tried with several numbers of nodes. For each:

    slots    = nodes × pods that fit on one, no more than items, parallelism and named limits let work at once
    time     = node start + pod start + loading of data + until the last item is done on the slots (`durations`)
    billed   = time + release, at least `hold` and the minimum, in whole steps
    money    = nodes × billed × price + bytes between regions × their price

Nodes are taken to come at once and to be paid until the last item is done. A slot on a spot node that is taken
away loses its item's work so far, and waits for the next node. Which choice is best: with a deadline, the cheapest
that meets it (9 times in 10); with a budget, the fastest within; with both, the cheapest that meets both; with
neither, the cheapest that gives the parallelism asked for, or else the least money × time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from moorage.decide.maps.durations import Durations, WorkTime, constant, say
from moorage.model.prices import SPOT, Machine, Offer, PriceSheet, Quota
from moorage_kube.errors import UsageError
from moorage_kube.quantity import format_bytes, format_milli

HOUR = 3600.0
GIGABYTE = 1e9  # bytes; networks are paid by the decimal one
SURE = 0.9  # the chance to meet a deadline
STEPS = 12  # numbers of nodes tried between one and the most, evenly by factor
NODES_MAX = 100_000  # a map has no more
ITEMS_MAX = 1_000_000_000


class Limit(Struct, frozen=True, kw_only=True):
    """A named limit: its number of tokens, and the share of an item's time for which an item holds one."""

    name: str
    tokens: int
    share: float = 1.0


class Work(Struct, frozen=True, kw_only=True):
    """The work to do. Each item takes a pod's slot; a pod works on one item at a time."""

    items: int
    durations: Durations  # on a machine of speed 1, start of the pod not counted
    cpu_milli: int = 1000
    memory_bytes: int = 0
    gpus: int = 0
    disk_bytes: int = 0  # scratch, and data that every pod fetches for itself
    node_data_bytes: int = 0  # fetched once for each node
    pod_data_bytes: int = 0  # of disk_bytes, the part that each pod fetches
    read_bytes: int = 0  # by each item
    write_bytes: int = 0  # by each item
    data_region: str = ""  # "": in the region of the nodes
    item_overhead_seconds: float = 0.0
    parallelism: int | None = None
    limits: tuple[Limit, ...] = ()
    rate_per_second: float | None = None  # items begun


class Terms(Struct, frozen=True, kw_only=True):
    """The start and release of nodes, the share of daemons on each, and the goals."""

    node_start_seconds: float = 0.0  # where the machine type does not say
    pod_start_seconds: float = 0.0
    release_seconds: float = 0.0  # from the last item to the end of the bill
    hold_seconds: float = 0.0  # nodes are paid for at least this long
    interruptions_per_hour: float = 0.0  # of a spot node, where the offer does not say
    daemon_cpu_milli: int = 0
    daemon_memory_bytes: int = 0
    daemon_pods: int = 0
    deadline_seconds: float | None = None
    budget: float | None = None
    nodes: tuple[int, ...] = ()  # exactly these numbers; empty: chosen here
    quotas: tuple[Quota, ...] = ()  # in addition to those of the price file


class Bind(Struct, frozen=True):
    """The limit of a choice's speed or price: one word or two, and a sentence."""

    what: str
    why: str


class Choice(Struct, frozen=True, kw_only=True):
    """An offer with a number of nodes.

    Times are in seconds from the node request; costs in the file's currency.
    """

    offer: Offer
    nodes: int
    pods: int
    pods_per_node: int
    start_seconds: float
    seconds: float  # as likely later as earlier
    late_seconds: float  # 9 times in 10 it is earlier
    billed_seconds: float
    node_money: float
    transfer_money: float
    interruptions: float  # expected over all nodes
    redone_seconds: float  # slot-seconds of work lost to them
    binds: tuple[Bind, ...] = ()
    misses: str = ""  # why it does not keep deadline, budget or quota

    @property
    def money(self) -> float:
        return self.node_money + self.transfer_money


class MapPlan(Struct, frozen=True, kw_only=True):
    """Choices, the best first; `best` is None when none meets the goals; `impossible` says why, in figures.

    `refused`: (offer, reason) for each that cannot hold a single pod. `assumed`: sentences.
    """

    choices: tuple[Choice, ...]
    best: Choice | None
    impossible: str
    hint: str
    refused: tuple[tuple[str, str], ...]
    assumed: tuple[str, ...]


class Packing(Struct, frozen=True):
    """The number of pods per node, and the resource that limits it."""

    pods: int
    by: str
    why: str


def durations_of_run(
    *, nodes: int, machine: Machine, seconds: float, items: int, work: Work, terms: Terms
) -> Durations:
    """The time of an item, from an earlier run with every slot of its nodes busy.

    `seconds` from the first item's start to the last one's end. Differences between items are unknown: they count
    as alike, so that the forecast for the earlier run equals its real time.
    """
    if nodes < 1 or seconds <= 0 or items < 1:
        raise UsageError("an earlier run needs nodes, a time and items above 0")
    slots = nodes * pack(machine, work, terms).pods
    if not slots:
        raise UsageError(f"no pod of this map fits on {machine.name}, so a run there cannot be used")
    took = seconds * machine.speed / math.ceil(items / slots)
    return constant(
        took, f"{say(took)} each: {items:,} items took {say(seconds)} on {slots:,} slots of {nodes} {machine.name}"
    )


def pack(machine: Machine, work: Work, terms: Terms) -> Packing:
    """How many pods of the map fit on a node of this type next to its daemons."""
    cpu = machine.cpu_milli - machine.reserved_cpu_milli - terms.daemon_cpu_milli
    memory = machine.memory_bytes - machine.reserved_memory_bytes - terms.daemon_memory_bytes
    room: list[tuple[str, int, int, Callable[[int], str]]] = [
        ("pods", machine.pods - machine.reserved_pods - terms.daemon_pods, 1, str)
    ]
    if work.cpu_milli:
        room.append(("cpu", cpu, work.cpu_milli, format_milli))
    if work.memory_bytes:
        room.append(("memory", memory, work.memory_bytes, format_bytes))
    if work.gpus:
        room.append(("gpus", machine.gpus, work.gpus, str))
    if machine.disk_bytes is not None and (work.disk_bytes or work.node_data_bytes):
        disk = machine.disk_bytes - machine.reserved_disk_bytes - work.node_data_bytes
        if disk < 0:
            short = (
                f"{format_bytes(work.node_data_bytes)} of data do not fit on {format_bytes(machine.disk_bytes)}"
            )
            return Packing(0, "disk", f"{short} of disk")
        if work.disk_bytes:
            room.append(("disk", disk, work.disk_bytes, format_bytes))
    fits = [(max(0, has) // asks, name, has, asks, words) for name, has, asks, words in room]
    count, name, has, asks, words = min(fits, key=lambda fit: (fit[0], fit[1] == "pods"))
    left = words(max(0, has))
    if name == "pods":
        return Packing(count, name, f"a node takes {left} pods in addition to its daemons")
    return Packing(count, name, f"a node has {left} of {name} for pods, and each asks for {words(asks)}")


def most_nodes(offer: Offer, quotas: Iterable[Quota], *, pods_per_node: int) -> tuple[int, Quota | None]:
    """The number of nodes of this offer within the quotas, and the quota that limits it (None: no limit).

    A spot node counts against the spot quota of its region or of all regions. If there is none, it counts
    against the ordinary quota.
    """
    machine = offer.machine
    each: Mapping[str, float] = {
        "nodes": 1,
        "cpus": machine.cpu_milli / 1000,
        "gpus": machine.gpus,
        "disk": machine.disk_bytes or 0,
        "pods": pods_per_node,
    }
    quotas_of: dict[tuple[str, str], list[Quota]] = {}
    for quota in quotas:
        if quota.region in ("", offer.region):
            quotas_of.setdefault((quota.resource, quota.region), []).append(quota)
    most, by = NODES_MAX, None
    for (resource, _), given in sorted(quotas_of.items()):
        own = [quota for quota in given if quota.spot] if offer.market == SPOT else []
        for quota in own or [quota for quota in given if not quota.spot]:
            if each[resource] > 0 and (allowed := int(quota.limit / each[resource] + 1e-9)) < most:
                most, by = allowed, quota
    return most, by


def plan_map(work: Work, sheet: PriceSheet, terms: Terms) -> MapPlan:
    """Compute the choices for every offer, and the best one. Raises UsageError for an invalid request."""
    _check(work, terms)
    quotas = (*sheet.quotas, *terms.quotas)
    choices: list[Choice] = []
    refused: list[tuple[str, str]] = []
    for offer in sheet.offers:
        try:
            trial = Trial(work, sheet, terms, offer, quotas)
        except UsageError as error:
            refused.append((offer.name, error.message))
            continue
        choices += trial.choices()
    wants_pods = work.parallelism is not None
    choices = _worth_showing(choices, terms, wants_pods)
    kept = [choice for choice in choices if not choice.misses]
    best = min(kept, key=lambda choice: _rank(choice, terms, wants_pods), default=None)
    ordered = sorted(choices, key=lambda choice: (bool(choice.misses), _rank(choice, terms, wants_pods)))
    impossible, hint = ("", "") if best else _why_impossible(work, terms, choices, refused)
    return MapPlan(
        choices=tuple(ordered),
        best=best,
        impossible=impossible,
        hint=hint,
        refused=tuple(refused),
        assumed=_assumed(work, sheet, terms, ordered),
    )


@dataclass(slots=True)
class Trial:
    """The computation for one offer. Raises UsageError, with the reason, if not even one pod fits."""

    work: Work
    sheet: PriceSheet
    terms: Terms
    offer: Offer
    quotas: Sequence[Quota]
    packing: Packing = field(init=False)
    durations: Durations = field(init=False)  # on this machine, with cuts and overhead
    time: WorkTime = field(init=False)
    quota_nodes: int = field(init=False)
    quota: Quota | None = field(init=False)
    cap: float = field(init=False)  # slots beyond are of no use
    capped_by: Bind = field(init=False)

    def __post_init__(self) -> None:
        work, terms, machine = self.work, self.terms, self.offer.machine
        self.packing = pack(machine, work, terms)
        if not self.packing.pods:
            raise UsageError(f"no pod fits: {self.packing.why}")
        self.quota_nodes, self.quota = most_nodes(self.offer, self.quotas, pods_per_node=self.packing.pods)
        if self.quota is not None and not self.quota_nodes:
            raise UsageError(f"the {self.quota.label} of {_limit(self.quota)} allows no such node")
        plain = work.durations.scaled(factor=1 / machine.speed, plus=work.item_overhead_seconds)
        self.durations = plain.interrupted(self.rate / HOUR, self.start_seconds)
        self.time = WorkTime(self.durations)
        caps = [(float(work.items), Bind("items", f"there is a pod for each of the {work.items:,} items"))]
        if work.parallelism is not None:
            caps.append((work.parallelism, Bind("parallelism", f"parallelism is {work.parallelism:,}")))
        for limit in work.limits:
            if limit.share > 0:
                most = limit.tokens / limit.share
                held = f"{limit.tokens:,} tokens, each held {limit.share:.0%} of an item's time"
                why = f"{held}, keep {_number(most)} pods busy"
                caps.append((most, Bind(f"limit {limit.name}", why)))
        if work.rate_per_second is not None:
            most = work.rate_per_second * self.durations.mean
            why = f"{work.rate_per_second:g} items a second keep {_number(most)} pods busy"
            caps.append((most, Bind("rate", why)))
        self.cap, self.capped_by = min(caps, key=lambda cap: cap[0])

    @property
    def rate(self) -> float:
        """Interruptions of a node per hour."""
        if self.offer.market != SPOT:
            return 0.0
        rate = self.offer.interruptions_per_hour
        return self.terms.interruptions_per_hour if rate is None else rate

    @property
    def start_seconds(self) -> float:
        machine, work = self.offer.machine, self.work
        node = self.terms.node_start_seconds if machine.start_seconds is None else machine.start_seconds
        data = work.node_data_bytes + work.pod_data_bytes * self.packing.pods
        load = data / machine.network_bytes if machine.network_bytes else 0.0
        return node + self.terms.pod_start_seconds + load

    @property
    def useful_nodes(self) -> int:
        """The number of nodes above which additional nodes are idle."""
        return max(1, math.ceil(self.cap / self.packing.pods - 1e-9))

    @property
    def most(self) -> int:
        return min(self.useful_nodes, self.quota_nodes, NODES_MAX)

    def choices(self) -> list[Choice]:
        """Choices for a selection of node numbers."""
        if self.terms.nodes:
            return [self.choice(nodes) for nodes in sorted(set(self.terms.nodes))]
        most = self.most
        counts = {1, most, *(round(most ** (step / STEPS)) for step in range(STEPS + 1))}
        if self.terms.deadline_seconds is not None:
            counts.add(self._least(1, most, lambda nodes: self._keeps(nodes)))
        if self.terms.budget is not None:
            budget = self.terms.budget
            above = self._least(1, most, lambda nodes: self.choice(nodes).money > budget)
            counts |= {above, max(1, above - 1)}
        return [self.choice(nodes) for nodes in sorted(counts)]

    def _keeps(self, nodes: int) -> bool:
        deadline = self.terms.deadline_seconds
        return deadline is None or self._seconds(nodes, SURE) <= deadline

    def _least(self, low: int, high: int, holds: Callable[[int], bool]) -> int:
        """The smallest number from `low` for which `holds` is true; `high` if there is none below.

        If `holds` is true for a number, it must be true for all larger numbers.
        """
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _slots(self, nodes: int) -> float:
        return min(float(nodes * self.packing.pods), self.cap)

    def _seconds(self, nodes: int, chance: float) -> float:
        return self.start_seconds + self.time.until_done(self.work.items, self._slots(nodes), chance)

    def choice(self, nodes: int) -> Choice:
        terms, sheet = self.terms, self.sheet
        slots = self._slots(nodes)
        seconds, late = self._seconds(nodes, 0.5), self._seconds(nodes, SURE)
        paid = max(seconds + terms.release_seconds, terms.hold_seconds, sheet.minimum_seconds)
        billed = math.ceil(paid / sheet.step_seconds - 1e-9) * sheet.step_seconds
        cuts = self.rate * nodes * seconds / HOUR
        pods = max(1, min(nodes * self.packing.pods, math.ceil(self.cap)))
        made = Choice(
            offer=self.offer,
            nodes=nodes,
            pods=pods,
            pods_per_node=self.packing.pods,
            start_seconds=self.start_seconds,
            seconds=seconds,
            late_seconds=late,
            billed_seconds=billed,
            node_money=nodes * billed / HOUR * self.offer.price_per_hour,
            transfer_money=self._transfer(nodes, pods, cuts),
            interruptions=cuts,
            redone_seconds=self._redone(),
        )
        return replace(made, binds=self._binds(made, slots), misses=self._misses(made))

    def _redone(self) -> float:
        """Slot-seconds of work that interruptions destroy, without the waits for the next node."""
        if not self.rate:
            return 0.0
        plain = self.work.durations.scaled(
            factor=1 / self.offer.machine.speed, plus=self.work.item_overhead_seconds
        )
        return self.work.items * (plain.interrupted(self.rate / HOUR, 0.0).mean - plain.mean)

    def _transfer(self, nodes: int, pods: int, cuts: float) -> float:
        work, here, there = self.work, self.offer.region, self.work.data_region
        if not there or there == here:
            return 0.0
        each_pod = pods / nodes
        fetched = (nodes + cuts) * (work.node_data_bytes + work.pod_data_bytes * each_pod)
        incoming = fetched + work.items * work.read_bytes
        outgoing = work.items * work.write_bytes
        price = self.sheet.transfer
        return (incoming * price.get((there, here), 0.0) + outgoing * price.get((here, there), 0.0)) / GIGABYTE

    def _misses(self, made: Choice) -> str:
        terms, money = self.terms, self.sheet.currency
        if made.nodes > self.quota_nodes and self.quota is not None:
            return f"the {self.quota.label} of {_limit(self.quota)} allows {self.quota_nodes:,} nodes"
        wrong = []
        if terms.deadline_seconds is not None and made.late_seconds > terms.deadline_seconds:
            wrong.append(f"ends after {say(made.late_seconds)}, later than {say(terms.deadline_seconds)}")
        if terms.budget is not None and made.money > terms.budget:
            wrong.append(f"costs {made.money:,.2f} {money}, more than {terms.budget:,.2f}")
        return "; ".join(wrong)

    def _binds(self, made: Choice, slots: float) -> tuple[Bind, ...]:
        even = self.work.items * self.durations.mean / slots
        tail = max(0.0, made.seconds - made.start_seconds - even)
        binds = []
        if made.nodes >= self.quota_nodes < self.useful_nodes and self.quota is not None:
            why = f"the {self.quota.label} of {_limit(self.quota)} allows {self.quota_nodes:,} nodes"
            binds.append(Bind("quota", why))
        if made.nodes * self.packing.pods >= self.cap:
            binds.append(self.capped_by)
        if made.start_seconds > max(even, tail):
            why = f"nodes and pods take {say(made.start_seconds)} to start, the work {say(even)}"
            binds.append(Bind("node start-up", why))
        if tail > max(even, made.start_seconds):
            longest = self.durations.longest_of(self.work.items)
            binds.append(
                Bind("slowest item", f"the longest item takes about {say(longest)}, an even share {say(even)}")
            )
        if self.packing.by == "disk":
            binds.append(Bind("disk per node", self.packing.why))
        elif self.packing.by not in ("cpu", "gpus"):
            binds.append(Bind(f"{self.packing.by} per node", self.packing.why))
        if made.transfer_money > made.node_money:
            paid = f"{made.transfer_money:,.2f} {self.sheet.currency}"
            why = f"{paid} for bytes between regions, more than the nodes cost"
            binds.append(Bind("transfer", why))
        if made.billed_seconds >= 1.5 * (made.seconds + self.terms.release_seconds):
            why = f"nodes are paid for {say(made.billed_seconds)} and work for {say(made.seconds)}"
            binds.append(Bind("billing", why))
        if not binds:
            binds.append(Bind("nodes", "more nodes would be faster"))
        return tuple(binds)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _limit(quota: Quota) -> str:
    return format_bytes(quota.limit) if quota.resource == "disk" else f"{quota.limit:,}"


def _check(work: Work, terms: Terms) -> None:
    if not 1 <= work.items <= ITEMS_MAX:
        raise UsageError(f"a map has from 1 to {ITEMS_MAX:,} items, not {work.items:,}")
    if work.cpu_milli <= 0 and work.memory_bytes <= 0 and work.gpus <= 0:
        raise UsageError("an item asks for no CPU, memory or GPU, so any number would fit on a node")
    for limit in work.limits:
        if limit.tokens < 1 or not 0 <= limit.share <= 1:
            raise UsageError(
                f"limit {limit.name} has {limit.tokens} tokens, held {limit.share:g} of an item's time; "
                "at least 1, and from 0 to 1"
            )
    for name, value in (
        ("parallelism", work.parallelism),
        ("the rate", work.rate_per_second),
        ("the deadline", terms.deadline_seconds),
        ("the number of nodes", min(terms.nodes, default=None)),
    ):
        if value is not None and value <= 0:
            raise UsageError(f"{name} is {value:g}, not above 0")
    if max(terms.nodes, default=1) > NODES_MAX:
        raise UsageError(f"a map takes at most {NODES_MAX:,} nodes, not {max(terms.nodes):,}")
    if terms.budget is not None and terms.budget < 0:
        raise UsageError(f"the budget is {terms.budget:g}, less than 0")


def _rank(choice: Choice, terms: Terms, wants_pods: bool) -> tuple[float, float, int, str]:
    money, seconds = round(choice.money, 6), round(choice.seconds, 6)
    if terms.deadline_seconds is None and terms.budget is None:
        if wants_pods:
            return (-choice.pods, money, choice.nodes, choice.offer.name)
        return (round(choice.money * choice.seconds, 6), seconds, choice.nodes, choice.offer.name)
    if terms.deadline_seconds is None:
        return (seconds, money, choice.nodes, choice.offer.name)
    return (money, seconds, choice.nodes, choice.offer.name)


def _worth_showing(choices: Sequence[Choice], terms: Terms, wants_pods: bool) -> list[Choice]:
    """Of each offer: the choice for the goal, the cheapest, the fastest; all when numbers were given."""
    if terms.nodes:
        return list(choices)
    shown: dict[tuple[str, int], Choice] = {}
    for name in dict.fromkeys(choice.offer.name for choice in choices):
        own = [choice for choice in choices if choice.offer.name == name]
        kept = [choice for choice in own if not choice.misses] or own
        for chosen in (
            min(kept, key=lambda choice: _rank(choice, terms, wants_pods)),
            min(own, key=lambda choice: (choice.money, choice.seconds)),
            min(own, key=lambda choice: (choice.seconds, choice.money)),
        ):
            shown[name, chosen.nodes] = chosen
    return list(shown.values())


def _why_impossible(
    work: Work, terms: Terms, choices: Sequence[Choice], refused: Sequence[tuple[str, str]]
) -> tuple[str, str]:
    # no pod fits anywhere
    if not choices:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        return (
            f"a pod of this map fits on no machine type: {reasons}",
            "ask for less of each item, or give a larger machine type",
        )
    # the extremes show how far away the goals are
    fastest = min(choices, key=lambda choice: (choice.late_seconds, choice.money))
    cheapest = min(choices, key=lambda choice: (choice.money, choice.seconds))
    deadline, budget = terms.deadline_seconds, terms.budget
    quick = f"the fastest choice ({_named(fastest)}) ends after {say(fastest.late_seconds)}"
    # too slow: because of one item, or because of limits on the number of nodes
    if deadline is not None and fastest.late_seconds > deadline:
        longest = work.durations.longest_of(work.items) / fastest.offer.machine.speed + work.item_overhead_seconds
        shortest_way = fastest.start_seconds + longest
        if shortest_way > deadline:
            start = f" after {say(fastest.start_seconds)} of start-up" if fastest.start_seconds else ""
            return (
                f"a deadline of {say(deadline)} cannot be met: the slowest of {work.items:,} items takes about "
                f"{say(longest)}{start}; {quick}",
                "split the slowest items, or allow more time",
            )
        binds = "; ".join(bind.why for bind in fastest.binds)
        return (
            f"a deadline of {say(deadline)} cannot be met: {quick}: {binds}",
            "raise these limits, or allow more time",
        )
    # too dear, even without a deadline
    if budget is not None and cheapest.money > budget:
        return (
            f"a budget of {budget:,.2f} is not enough: the cheapest choice ({_named(cheapest)}) costs "
            f"{cheapest.money:,.2f}",
            "allow more money, or more time",
        )
    # each goal can be met, but not both
    if deadline is not None and budget is not None:
        within = min(
            (choice for choice in choices if choice.money <= budget), key=lambda choice: choice.late_seconds
        )
        keeping = min(
            (choice for choice in choices if choice.late_seconds <= deadline), key=lambda choice: choice.money
        )
        return (
            f"no choice keeps both: {say(deadline)} takes {keeping.money:,.2f} ({_named(keeping)}), and "
            f"{budget:,.2f} takes {say(within.late_seconds)} ({_named(within)})",
            "allow more money, or more time",
        )
    return (
        f"no such number of nodes is allowed: {choices[0].misses}",
        "ask for more quota, or for fewer nodes",
    )


def _named(choice: Choice) -> str:
    return f"{choice.nodes:,} × {choice.offer.name}"


def _assumed(work: Work, sheet: PriceSheet, terms: Terms, choices: Sequence[Choice]) -> tuple[str, ...]:
    # the items
    times = work.durations
    assumed = [f"items: {work.items:,}, {times.origin}; {say(times.mean)} on average"]
    if not times.is_constant:
        assumed[0] += f", the longest of them about {say(times.longest_of(work.items))}"
    # nodes: interruptions, start, and the end of the bill
    spot = [choice for choice in choices if choice.offer.market == SPOT]
    if any(choice.offer.interruptions_per_hour is None for choice in spot):
        if terms.interruptions_per_hour:
            assumed.append(f"spot nodes are taken away {terms.interruptions_per_hour:g} times an hour each")
        else:
            assumed.append("spot nodes are not taken away: no rate is given")
    unknown = any(choice.offer.machine.start_seconds is None for choice in choices)
    if unknown and not terms.node_start_seconds:
        assumed.append("nodes start at once: a start time was not given")
    elif unknown:
        assumed.append(f"a node takes {say(terms.node_start_seconds)} to start where its type says no other time")
    assumed.append("all nodes come at once, and are paid until the last item is done")
    if terms.release_seconds:
        assumed.append(f"and for {say(terms.release_seconds)} more, until they are released")
    if terms.hold_seconds:
        assumed.append(f"nodes are paid for at least {say(terms.hold_seconds)}")
    # room on nodes
    bare = not (terms.daemon_cpu_milli or terms.daemon_memory_bytes or terms.daemon_pods)
    if bare and any(not choice.offer.machine.reserved_cpu_milli for choice in choices):
        assumed.append("system and daemons take nothing of the nodes for which no `reserved` is given")
    disk = work.disk_bytes or work.node_data_bytes
    if disk and any(choice.offer.machine.disk_bytes is None for choice in choices):
        assumed.append("the disk is large enough where a machine type does not say its size")
    if not (sheet.quotas or terms.quotas):
        assumed.append("quotas do not apply: none is given")
    # transfer between regions, where the file has no price for it
    moved = work.node_data_bytes or work.pod_data_bytes or work.read_bytes or work.write_bytes
    if work.data_region and moved:
        here = {choice.offer.region for choice in choices} - {work.data_region}
        missing = sorted(
            f"{a} to {b}"
            for region in here
            for a, b, used in (
                (work.data_region, region, work.node_data_bytes or work.pod_data_bytes or work.read_bytes),
                (region, work.data_region, work.write_bytes),
            )
            if used and (a, b) not in sheet.transfer
        )
        if missing:
            assumed.append(f"bytes cost nothing from {', '.join(missing)}: no price is given")
    elif moved:
        assumed.append("data is in the region of the nodes, where transfer costs nothing")
    # age of the prices
    source = " ".join(part for part in (sheet.source, f"of {sheet.read_on}" if sheet.read_on else "") if part)
    assumed.append(f"prices: {source or 'the file names no source and no date'}")
    return tuple(assumed)
