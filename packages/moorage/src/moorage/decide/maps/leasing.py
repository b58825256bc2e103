"""Decide which worker gets which item of a map, and the effect of its answer.

A *map* is many *items* for one command or function. A *session* is one worker process; it is granted *leases* on
items and must send heartbeats before they lapse. Every lease of an item has its number, the *fence*, one higher
than the last; an answer counts only under a fence that is live, so a worker that returns late changes nothing. An
item that is done or dead has exactly one recorded result or failure.

    state     left by
    waiting   its back-off passes → ready
    ready     a lease → leased
    large     a lease by a worker with enough memory → leased
    leased    done → done; error, timeout → waiting or dead; invalid → dead;
              oom → large or dead; released, preempted → ready;
              its session is not heard of → ready, or dead after `loss_limit` times
    done      nothing
    dead      `retry` by a user → ready

All calls of one moment are decided together (`step`) on the rows read for them (`Loaded`). The result is one set
of `Changes` for one transaction: to apply all or none is safe. Times are milliseconds since 1970-01-01 UTC. The
values that are made hundreds of thousands of times are msgspec Structs: they cost a tenth of a dataclass. This is
a long module because it is one state machine: values, rules and steps are read together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Annotated

import msgspec
from msgspec import Struct, field

from moorage.api.fields import Natural as Natural
from moorage.api.fields import Seconds
from moorage.api.fields import Text64 as Text64
from moorage.api.maps import BATCH_ITEMS
from moorage.api.maps import MapState as MapState
from moorage.model.moves import Moves
from moorage_kube.backoff import DoublingDelay

RESULT_BYTES = 256 * 1024  # a longer result is sent as a path
VALUE_BYTES = 64 * 1024  # of one item's own value
GRANT_BYTES = 1024 * 1024  # of the values in one grant
OUTPUT_BYTES = 16 * 1024  # of the last output, stored for a failed item
MAP_OUTPUT_BYTES = 256 * 1024 * 1024  # of stored outputs of one map; beyond it each retains OUTPUT_FLOOR_BYTES
OUTPUT_FLOOR_BYTES = 512
MESSAGE_CHARACTERS = 2000
BATCH_MS = 10_000  # work handed out at once: the most that the death of a worker can cost
BATCH_FLOOR_MS = 500  # a batch of less work is not split further, even when items run out
STOCK_MS = 1_000  # busy workers get no stock of items that take longer than this on average,
STOCK_SHARE = (
    4  # when fewer than so many are ready for each worker: an answer takes 10 ms, the longest item minutes
)
AWAY_MS = 5_000  # five ticks: a longer silence of the server is added to all leases
STRAGGLER_FACTOR = 3.0  # an item that takes this many mean times, and
STRAGGLER_FLOOR_MS = 2_000  # longer than this, may run a second time in parallel
_PRIORITY_STEP = 1 << 41
_LONGEST_MS = 1 << 40  # 34 years
_HASH = 2654435761  # Knuth's multiplicative hash: spreads retries of neighbouring items

Pair = tuple[int, int]  # item, lease (its fence)


class State(IntEnum):
    WAITING = 0
    READY = 1
    LEASED = 2
    DONE = 3
    DEAD = 4
    LARGE = 5  # ready, but for workers with more memory than the map's own


ITEM_MOVES = Moves(
    "an item",
    {
        (None, State.READY): "added",
        (None, State.LARGE): "added, and needs more memory",
        (State.READY, State.LEASED): "a lease",
        (State.LARGE, State.LEASED): "a lease of a worker with the memory",
        (State.LEASED, State.DONE): "answered",
        (State.LEASED, State.WAITING): "an error or a time-out, with tries left",
        (State.LEASED, State.DEAD): "no tries left, too many workers lost, or more memory is not available",
        (State.LEASED, State.READY): "returned, preempted, or the worker is silent",
        (State.LEASED, State.LARGE): "killed for memory, or as for ready",
        (State.WAITING, State.READY): "its time comes",
        (State.WAITING, State.LARGE): "its time comes, and it needs more memory",
        (State.DEAD, State.READY): "a user's retry",
        (State.DEAD, State.LARGE): "a user's retry, and it needs more memory",
    },
)


class Outcome(StrEnum):
    DONE = "done"
    ERROR = "error"
    TIMEOUT = "timeout"
    INVALID = "invalid"  # no retry helps: the item does not fit the command, or its result is not sent
    OOM = "oom"
    PREEMPTED = "preempted"  # begun, and interrupted from outside
    RETURNED = "returned"  # not begun


HOLD_SECONDS = 6 * 3600  # for which an item holds tokens of a limit while another map waits, at most
TURN_SECONDS = 90  # for which a map that asked for tokens is believed to wait; a worker asks at least every 60 s
LOST = "lost"  # the cause of a death that no worker reported
READY_STATES = (State.READY, State.LARGE)


class Policy(Struct, frozen=True, kw_only=True):
    """The queue options of a map."""

    retries: int = 3  # further tries after an error or a time-out
    loss_limit: int = 20  # workers that may vanish under an item before it counts as their killer
    backoff_seconds: float = 2.0  # before the first retry, doubled for each next
    max_backoff_seconds: float = 300.0
    time_seconds: float | None = None  # of one item; the worker keeps to it
    lease_seconds: float = 60.0  # how long a session may be silent
    memory_bytes: int = 0  # of the map's own workers; 0: not known
    max_memory_bytes: int = 0  # up to where an item killed for memory may grow; 0: it may not
    idempotent: bool = False  # stragglers may run twice
    batch_items: int = BATCH_ITEMS
    limits: Mapping[str, int] = field(default_factory=dict)  # tokens of each named limit that a lease holds
    rate: float | None = None  # leases handed out per second


class Counts(msgspec.Struct):
    """The counters of a map. `done + dead` decreases only by a user's retry."""

    total: int = 0
    waiting: int = 0
    ready: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    large: int = 0
    leases: int = 0  # held by sessions, also if another session has answered the item
    workers: int = 0  # sessions
    granted: int = 0  # leases ever
    lost: int = 0  # leases that ended by preemption or silence
    returned: int = 0  # leases handed back unused
    failed: int = 0  # leases that ended by error, time-out or memory
    refused: int = 0  # answers under a fence that was not live
    twinned: int = 0  # second leases for the same item
    measured: int = 0
    spent_ms: int = 0  # of the measured
    hinted: int = 0
    hinted_ms: int = 0
    output_bytes: int = 0


COUNTERS = tuple(Counts.__struct_fields__)
_COUNTER_OF = {
    State.WAITING: "waiting",
    State.READY: "ready",
    State.LEASED: "leased",
    State.DONE: "done",
    State.DEAD: "dead",
    State.LARGE: "large",
}


class Map(Struct, frozen=True, kw_only=True):
    """One map, as read from the database."""

    id: int
    policy: Policy
    state: MapState = MapState.RUNNING
    closed: bool = False  # the list of items is complete
    priority: int = 0
    counts: Counts = field(default_factory=Counts)
    rate_level: float = 0.0  # leases that may go out at `rate_at`
    rate_at: int = 0


class Item(msgspec.Struct, frozen=True, gc=False):
    """One item without its value. Fence 0 means no lease."""

    seq: int
    state: State = State.READY
    rank: int = 0  # smaller is leased earlier
    fence: int = 0  # leases ever given
    holder: int = 0  # the live lease
    twin: int = 0  # a second live lease
    settled: int = 0  # the last lease that was answered
    tries: int = 0
    losses: int = 0
    memory_bytes: int = 0  # its memory; 0: the map's own
    ready_at: int = 0


class Candidate(msgspec.Struct, frozen=True):
    """An item that may be leased, with its value (JSON)."""

    item: Item
    value: bytes | str


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One lease of a session."""

    item: int
    fence: int
    at: int  # when it was given
    request: int  # by which request of the session


class Session(msgspec.Struct, frozen=True):
    name: str
    expires_at: int
    request: int = 0  # the newest numbered request
    leases: tuple[Lease, ...] = ()


class Limit(msgspec.Struct, frozen=True):
    """A named limit.

    `waiting`: (since, map) of the maps that wait for its tokens; the longest wait comes first.
    """

    name: str
    capacity: int
    held: int = 0
    waiting: tuple[tuple[int, int], ...] = ()


class Report(msgspec.Struct, frozen=True):
    """The outcome of a lease."""

    item: Natural
    lease: Natural
    outcome: Outcome
    seconds: Seconds | None = None
    memory: Natural | None = None  # bytes, at the peak
    value: msgspec.Raw = msgspec.Raw(b"")
    path: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    message: str = ""
    exit: int | None = None
    output: bytes = b""


class Exchange(msgspec.Struct, frozen=True):
    """One request of a worker. Its reports are handled first, then new leases. Only the session is required."""

    session: Text64
    request: Natural = 0  # 1, 2, … for requests that want items or settle `held`; 0: a heartbeat
    reports: list[Report] = []
    held: list[Pair] | None = None  # all leases it keeps after the reports
    want: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    slots: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1  # items it runs at the same time
    memory: Natural = 0  # bytes it may use
    wait: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0  # seconds to hold the request when there is nothing
    bye: bool = False


class Call(msgspec.Struct, frozen=True):
    map: int
    exchange: Exchange


class Reply(msgspec.Struct, omit_defaults=True):
    """The reply to a worker. `state`: the state of the map (running, paused, cancelled, finished).

    The state stale means that a newer request of the session was handled before.
    """

    state: str
    lease: float  # seconds after which an unheard session loses its leases
    timeout: float | None = None  # seconds that one item may take
    items: list[tuple[int, int, msgspec.Raw]] = []
    refused: list[Pair] = []  # reports that did not count
    lost: list[Pair] = []  # of `held`: stop working on these


class Result(msgspec.Struct, frozen=True):
    map: int
    item: int
    lease: int
    at: int
    seconds: float | None
    memory: int | None
    value: bytes  # JSON; empty with a path
    path: str | None


class Failure(msgspec.Struct, frozen=True):
    map: int
    item: int
    lease: int
    at: int
    cause: str
    message: str
    exit: int | None
    output: bytes
    tries: int


class Loaded(Struct, frozen=True, kw_only=True):
    """The input of `step`. Keys are (map, session name) and (map, item).

    `ready` and `large` hold, in the order of rank, at least as many items as the calls want, or all there are.
    """

    maps: Mapping[int, Map]
    sessions: Mapping[tuple[int, str], Session]
    items: Mapping[tuple[int, int], Candidate]
    ready: Mapping[int, Sequence[Candidate]] = field(default_factory=dict)
    large: Mapping[int, Sequence[Candidate]] = field(default_factory=dict)
    stragglers: Mapping[int, Sequence[Candidate]] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    hold_seconds: int = HOLD_SECONDS


class Changes(Struct, kw_only=True):
    """The rows to write, and the answer to each call, in order. A session of None is deleted."""

    items: dict[tuple[int, int], Item] = field(default_factory=dict)
    sessions: dict[tuple[int, str], Session | None] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    failures: dict[tuple[int, int], Failure] = field(default_factory=dict)
    counts: dict[int, Counts] = field(default_factory=dict)  # to be added
    rates: dict[int, tuple[float, int]] = field(default_factory=dict)
    turns: dict[tuple[int, str], int] = field(default_factory=dict)  # since when a map waits for a limit; 0: not
    replies: list[Reply] = field(default_factory=list)


def step(loaded: Loaded, calls: Sequence[Call], now: int) -> Changes:
    """Handle all calls. If maps compete for tokens, calls of maps with a higher priority come first."""
    book = _Book(loaded, now)
    order = range(len(calls))
    if len(loaded.maps) > 1:
        order = sorted(order, key=lambda at: -loaded.maps[calls[at].map].priority)  # type: ignore[assignment]
    replies = {at: book.exchange(calls[at].map, calls[at].exchange) for at in order}
    book.changes.replies = [replies[at] for at in range(len(calls))]
    return book.changes


def lapse(loaded: Loaded, now: int) -> Changes:
    """End the leases of all sessions of `loaded`: their heartbeats are late."""
    book = _Book(loaded, now)
    for (of, name), session in loaded.sessions.items():
        book.lapse(of, name, session)
    return book.changes


def needed_items(call: Call, session: Session | None, *, idempotent: bool) -> set[int]:
    """The items that `step` needs to handle this call."""
    asked = call.exchange
    wanted = {report.item for report in asked.reports}
    if session is None:
        return wanted
    if asked.bye or (asked.request and asked.request == session.request) or idempotent:
        return wanted | {lease.item for lease in session.leases}
    if asked.request and asked.held is not None:
        held = set(asked.held)
        return wanted | {lease.item for lease in session.leases if (lease.item, lease.fence) not in held}
    return wanted


def wanted_candidates(calls: Iterable[Call], maps: Mapping[int, Map]) -> dict[int, int]:
    """The number of ready items that `step` may lease, by map."""
    wanted: dict[int, int] = {}
    for call in calls:
        target_map = maps[call.map]
        if call.exchange.want and target_map.state is MapState.RUNNING and not call.exchange.bye:
            most = min(call.exchange.want, target_map.policy.batch_items)
            if target_map.policy.limits or target_map.policy.rate is not None:
                most = min(most, call.exchange.slots)
            wanted[call.map] = wanted.get(call.map, 0) + most
    return wanted


def batch_size(
    *, want: int, batch_items: int, mean_ms: float | None, ready: int, workers: int, busy: bool = False
) -> int:
    """How many items to lease at once: BATCH_MS of work, and near the end no more than half of a fair share.

    Unmeasured items are leased one by one. At least 1 when `want` is; but near the end nothing for a worker that
    is `busy` in all its slots: its stock would wait behind an item that may be the longest, while others are idle.
    """
    if busy and mean_ms is not None and mean_ms >= STOCK_MS and ready < STOCK_SHARE * workers:
        return 0
    most = min(want, batch_items)
    if most <= 1 or mean_ms is None:
        return min(most, 1)
    share = math.ceil(ready / (2 * max(1, workers)))
    if mean_ms > 0:
        share = max(share, int(BATCH_FLOOR_MS / mean_ms))
        most = min(most, int(BATCH_MS / mean_ms))
        most = min(most, share)
    return max(1, most)


def mean_ms(counts: Counts, more: Counts | None = None) -> float | None:
    """The mean time of an item: the measured one, else the hinted one. None if both are unknown.

    `more`: measurements that were just added.
    """
    measured = counts.measured + (more.measured if more else 0)
    if measured:
        return (counts.spent_ms + (more.spent_ms if more else 0)) / measured
    return counts.hinted_ms / counts.hinted if counts.hinted else None


def rank_of(*, priority: int = 0, seconds: float | None = None) -> int:
    """The rank of an item: higher priority first, then the longer; an unknown length may be the longest."""
    length = _LONGEST_MS if seconds is None else min(_LONGEST_MS - 1, max(0, round(seconds * 1000)))
    return -priority * _PRIORITY_STEP - length


def backoff_ms(policy: Policy, tries: int, seq: int) -> int:
    """The wait of an item after its failure number `tries`.

    Doubled each time, ±25 % depending on the item's number.
    """
    seconds = DoublingDelay(policy.backoff_seconds, policy.max_backoff_seconds).after(max(1, tries))
    return round(seconds * 1000 * (0.75 + (seq * _HASH % 1000) / 2000))


def more_memory(policy: Policy, item: Item, peak: int | None) -> int | None:
    """The next memory of an item killed for memory: twice as much, or its peak and a quarter; None: no more."""
    had = item.memory_bytes or policy.memory_bytes
    if had <= 0 or had >= policy.max_memory_bytes:
        return None
    return min(policy.max_memory_bytes, max(2 * had, (peak or 0) * 5 // 4))


def away_ms(*, last_alive: int, now: int) -> int:
    """By how much to extend all leases: the time in which the server could not receive heartbeats."""
    gap = now - last_alive
    return gap if last_alive and gap > AWAY_MS else 0


def is_straggler(lease: Lease, *, mean: float | None, now: int) -> bool:
    """Whether a lease is so old that its item may be leased a second time."""
    return mean is not None and now - lease.at > max(STRAGGLER_FLOOR_MS, STRAGGLER_FACTOR * mean)


def is_finished(target_map: Map, counts: Counts) -> bool:
    return target_map.closed and counts.done + counts.dead >= counts.total


def expected_seconds(*, remaining: int, per_second: float | None) -> float | None:
    """Seconds until `remaining` items are done at a steady rate; None when the rate is unknown."""
    if remaining <= 0:
        return 0.0
    return remaining / per_second if per_second else None


class _Book:
    """The working state of one step."""

    def __init__(self, loaded: Loaded, now: int) -> None:
        self.now = now
        self.changes = Changes()
        self._loaded = loaded
        self._limits = {name: limit.capacity - limit.held for name, limit in loaded.limits.items()}
        self._waiting = {name: {of: since for since, of in limit.waiting} for name, limit in loaded.limits.items()}
        self._ready = {of: deque(some) for of, some in loaded.ready.items()}
        self._large = {of: deque(some) for of, some in loaded.large.items()}
        self._stragglers = {of: deque(some) for of, some in loaded.stragglers.items()}

    # -- one call ----------------------------------------------------------------------------------------------

    def exchange(self, of: int, asked: Exchange) -> Reply:
        target_map = self._loaded.maps[of]
        policy, tally, key = target_map.policy, self._tally(of), (of, asked.session)
        before = self.changes.sessions[key] if key in self.changes.sessions else self._loaded.sessions.get(key)
        reply = Reply(state="", lease=policy.lease_seconds, timeout=policy.time_seconds)
        # an old request that was overtaken must not change anything
        if before is not None and asked.request and asked.request < before.request:
            reply.state = "stale"
            return reply
        replayed = before is not None and asked.request > 0 and asked.request == before.request
        # answers first: they free items and tokens for the grant below
        leases = {lease.item: lease for lease in before.leases} if before else {}
        had = len(leases)
        for report in asked.reports:
            mine = leases.get(report.item)
            if mine is not None and mine.fence == report.lease:
                del leases[report.item]
            if not self._settle(of, target_map, tally, report):
                tally.refused += 1
                reply.refused.append((report.item, report.lease))
        # then leases that the worker does not hold, releases, or holds for too long
        if asked.held is not None:
            self._reconcile(of, policy, tally, asked, replayed, leases, reply)
        if asked.bye:
            for lease in leases.values():
                self._release(of, tally, lease, "returned")
            leases = {}
        for lease in self._overdue(of, policy, leases.values()):
            del leases[lease.item]
            self._release(of, tally, lease, "returned")
            reply.lost.append((lease.item, lease.fence))
        ended = had - len(leases)
        self._end_leases(policy, tally, ended)
        # a repeated request gets the same items again: the first reply was lost
        if replayed:
            for lease in leases.values():
                candidate = self._candidate(of, lease.item)
                if (
                    lease.request == asked.request
                    and candidate
                    and lease.fence in (candidate.item.holder, candidate.item.twin)
                ):
                    reply.items.append((lease.item, lease.fence, _raw(candidate.value)))
        # grant new items, unless this is the repeat of a grant or the last request
        if asked.want and asked.request and not asked.bye and not reply.items:
            workers = target_map.counts.workers + tally.workers + (before is None)
            for candidate, fence in self._grant(of, target_map, tally, asked, len(leases), workers):
                if candidate.item.seq in leases:  # an older lease of it, answered by another worker, ends here
                    self._end_leases(policy, tally, 1)
                leases[candidate.item.seq] = Lease(candidate.item.seq, fence, self.now, asked.request)
                reply.items.append((candidate.item.seq, fence, _raw(candidate.value)))
        self._keep_session(key, tally, before, asked, tuple(leases.values()), policy)
        reply.state = self._state(target_map, tally)
        return reply

    def lapse(self, of: int, name: str, session: Session) -> None:
        target_map, tally = self._loaded.maps[of], self._tally(of)
        for lease in session.leases:
            self._release(of, tally, lease, LOST)
        self._end_leases(target_map.policy, tally, len(session.leases))
        self.changes.sessions[of, name] = None
        tally.workers -= 1

    def _reconcile(
        self,
        of: int,
        policy: Policy,
        tally: Counts,
        asked: Exchange,
        replayed: bool,
        leases: dict[int, Lease],
        reply: Reply,
    ) -> None:
        """Match the leases that the worker reports with those it was given.

        A lease that it does not know of (the reply was lost, and it asks again) is released. A heartbeat may have
        been sent before the last reply came, so only a numbered request says which leases are not held.
        """
        held = set(asked.held or ())
        if asked.request and not replayed:
            for lease in list(leases.values()):
                if (lease.item, lease.fence) not in held:
                    del leases[lease.item]
                    self._release(of, tally, lease, "returned")
        for item, fence in asked.held or ():
            mine = leases.get(item)
            live = mine is not None and mine.fence == fence
            if live and policy.idempotent and (candidate := self._candidate(of, item)) is not None:
                live = fence in (candidate.item.holder, candidate.item.twin)
            if not live:
                reply.lost.append((item, fence))

    def _keep_session(
        self,
        key: tuple[int, str],
        tally: Counts,
        before: Session | None,
        asked: Exchange,
        leases: tuple[Lease, ...],
        policy: Policy,
    ) -> None:
        if asked.bye:
            if before is not None:
                self.changes.sessions[key] = None
                tally.workers -= 1
            return
        silent_ms = round((policy.lease_seconds + asked.wait) * 1000)
        expires = self.now + silent_ms
        request = asked.request
        if before is None:
            tally.workers += 1
        else:
            expires, request = max(expires, before.expires_at), max(request, before.request)
        self.changes.sessions[key] = Session(asked.session, expires, request, leases)

    def _state(self, target_map: Map, tally: Counts) -> str:
        if target_map.closed:
            counts = target_map.counts
            if counts.done + tally.done + counts.dead + tally.dead >= counts.total:
                return "finished"
        return target_map.state.value

    # -- answers -----------------------------------------------------------------------------------------------

    def _settle(self, of: int, target_map: Map, tally: Counts, report: Report) -> bool:
        """Record one report. False if it does not count."""
        candidate = self._candidate(of, report.item)
        if candidate is None or not report.lease:
            return False
        # only the holder of a live lease may answer; the answer of a late worker is dropped
        item, fence = candidate.item, report.lease
        if fence not in (item.holder, item.twin):
            return fence == item.settled  # reported again after a lost reply
        # exactly one result is stored for each item
        if report.outcome is Outcome.DONE:
            self._put(of, tally, item, item_done(item, fence))
            self.changes.results.append(
                Result(
                    of,
                    item.seq,
                    fence,
                    self.now,
                    report.seconds,
                    report.memory,
                    bytes(report.value),
                    report.path,
                )
            )
            if report.seconds is not None:
                tally.measured += 1
                tally.spent_ms += round(report.seconds * 1000)
            return True
        # an item that is released or interrupted is ready again at once, and has not failed
        if report.outcome is Outcome.RETURNED:
            tally.returned += 1
            self._put(of, tally, item, _unleased(item, fence, settled=fence))
            return True
        if report.outcome is Outcome.PREEMPTED:
            tally.lost += 1
            self._put(of, tally, item, _unleased(item, fence, settled=fence))
            return True
        # a failure: the item is retried, or dead and recorded as such
        tally.failed += 1
        after = _failed(target_map.policy, item, fence, report, self.now)
        self._put(of, tally, item, after)
        if after.state is not State.LEASED:
            self._fail(of, target_map, tally, after, fence, report)
        return True

    def _fail(self, of: int, target_map: Map, tally: Counts, after: Item, fence: int, report: Report) -> None:
        room = MAP_OUTPUT_BYTES - target_map.counts.output_bytes - tally.output_bytes
        output = report.output[-OUTPUT_BYTES:] if room > OUTPUT_BYTES else report.output[-OUTPUT_FLOOR_BYTES:]
        tally.output_bytes += len(output)
        self.changes.failures[of, after.seq] = Failure(
            of,
            after.seq,
            fence,
            self.now,
            report.outcome.value,
            report.message[-MESSAGE_CHARACTERS:],
            report.exit,
            output,
            after.tries,
        )

    def _release(self, of: int, tally: Counts, lease: Lease, why: str) -> None:
        """End a lease without an answer. Its item must have been loaded."""
        if why == LOST:
            tally.lost += 1
        else:
            tally.returned += 1
        candidate = self._candidate(of, lease.item)
        if candidate is None or lease.fence not in (candidate.item.holder, candidate.item.twin):
            return  # another worker was quicker
        after = _unleased(candidate.item, lease.fence, lost=why == LOST)
        policy = self._loaded.maps[of].policy
        if why == LOST and after.state is not State.LEASED and after.losses > policy.loss_limit:
            after = msgspec.structs.replace(after, state=State.DEAD)
            self.changes.failures[of, after.seq] = Failure(
                of,
                after.seq,
                lease.fence,
                self.now,
                LOST,
                f"{after.losses} workers were lost while they had this item",
                None,
                b"",
                after.tries,
            )
        self._put(of, tally, candidate.item, after)

    # -- grants ------------------------------------------------------------------------------------------------

    def _grant(
        self, of: int, target_map: Map, tally: Counts, asked: Exchange, held: int, workers: int
    ) -> list[tuple[Candidate, int]]:
        policy = target_map.policy
        if target_map.state is not MapState.RUNNING:
            return []
        most = batch_size(
            want=asked.want,
            batch_items=policy.batch_items,
            mean_ms=mean_ms(target_map.counts, tally),
            ready=target_map.counts.ready + tally.ready,
            workers=workers,
            busy=held >= asked.slots,
        )
        level = None
        if policy.limits or policy.rate is not None:  # it must begin leased items at once: no stock of leases
            most = min(most, asked.slots - held)
            if policy.rate is not None:
                level = self._rate_level(of, target_map, policy.rate)
                most = min(most, int(level))
            most = self._take_turn(of, policy, most)
        granted = self._pick(of, policy, asked, most) if most > 0 else []
        leased = [(candidate, self._lease(of, tally, candidate)) for candidate in granted]
        if not leased and most > 0 and (twin := self._pick_twin(of, asked, policy)) is not None:
            tally.twinned += 1
            leased = [(twin, self._lease(of, tally, twin))]
        tally.leases += len(leased)
        tally.granted += len(leased)
        for name, weight in policy.limits.items():
            if name in self._limits:
                self._limits[name] -= weight * len(leased)
        if level is not None and leased:
            self.changes.rates[of] = (level - len(leased), self.now)
        return leased

    def _take_turn(self, of: int, policy: Policy, most: int) -> int:
        """How many of `most` leases the limits allow now; also update the queues of maps that wait for limits.

        The map that lacked tokens first gets them first, whichever map frees them. Each grant is a turn; after it
        a map waits behind the others. A map that needs several limits waits only for those that lack tokens: other
        maps may use the rest.
        """
        if most <= 0:
            return most  # it asks for none
        lacking: set[str] = set()
        allowed = most
        for name, weight in policy.limits.items():
            if name in self._limits and weight > 0:
                allowed = min(allowed, self._limits[name] // weight)
                if self._limits[name] < weight or self._others_turn(name, of):
                    lacking.add(name)
        for name, waiting in self._waiting.items():
            if name in lacking and of not in waiting and policy.limits[name] <= self._loaded.limits[name].capacity:
                waiting[of] = max(self.now, 1 + max(waiting.values(), default=0))  # behind all others
            elif name not in lacking and waiting.pop(of, None) is None:
                continue
            self.changes.turns[of, name] = waiting.get(of, 0)
        return 0 if lacking else allowed

    def _others_turn(self, name: str, of: int) -> bool:
        """Whether another map has waited longer for this limit."""
        waiting = self._waiting[name]
        mine = waiting.get(of, math.inf)
        return any(since < mine for since in waiting.values())

    def _overdue(self, of: int, policy: Policy, leases: Iterable[Lease]) -> list[Lease]:
        """The leases that hold tokens for too long while another map waits for these tokens."""
        if not any(waiting.keys() - {of} for name, waiting in self._waiting.items() if name in policy.limits):
            return []
        seconds = min(self._loaded.hold_seconds, (policy.time_seconds or math.inf) + policy.lease_seconds)
        return [lease for lease in leases if self.now - lease.at > seconds * 1000]

    def _pick(self, of: int, policy: Policy, asked: Exchange, most: int) -> list[Candidate]:
        """The next items for this worker. An item that lost its workers is leased alone: others are innocent."""
        picked: list[Candidate] = []
        size = 0
        sources = [self._ready.get(of)]
        if asked.memory > policy.memory_bytes:
            sources.insert(0, self._large.get(of))
        for source in sources:
            while source and len(picked) < most:
                candidate = source[0]
                if candidate.item.memory_bytes > asked.memory and candidate.item.memory_bytes:
                    break
                size += len(candidate.value)
                if picked and (candidate.item.losses or size > GRANT_BYTES):
                    return picked
                picked.append(source.popleft())
                if candidate.item.losses:
                    return picked
        return picked

    def _pick_twin(self, of: int, asked: Exchange, policy: Policy) -> Candidate | None:
        waiting = self._stragglers.get(of)
        mine = self._loaded.sessions.get((of, asked.session))
        busy = {lease.item for lease in mine.leases} if mine else set()
        for _ in range(len(waiting or ())):
            assert waiting is not None
            candidate = waiting.popleft()
            current = self._candidate(of, candidate.item.seq) or candidate
            if (
                current.item.state is State.LEASED
                and not current.item.twin
                and current.item.seq not in busy
                and current.item.memory_bytes <= max(asked.memory, policy.memory_bytes)
            ):
                return Candidate(current.item, candidate.value)
            if current.item.seq in busy:
                waiting.append(candidate)  # for another worker
        return None

    def _lease(self, of: int, tally: Counts, candidate: Candidate) -> int:
        item, fence = candidate.item, candidate.item.fence + 1
        if item.holder:
            after = msgspec.structs.replace(item, fence=fence, twin=fence)
        else:
            after = msgspec.structs.replace(item, fence=fence, holder=fence, state=State.LEASED, ready_at=0)
        self._put(of, tally, item, after)
        return fence

    def _rate_level(self, of: int, target_map: Map, rate: float) -> float:
        if of in self.changes.rates:
            return self.changes.rates[of][0]
        passed = max(0, self.now - target_map.rate_at) / 1000
        return min(max(1.0, rate), target_map.rate_level + rate * passed)

    def _end_leases(self, policy: Policy, tally: Counts, ended: int) -> None:
        tally.leases -= ended
        for name, weight in policy.limits.items():
            if name in self._limits:
                self._limits[name] += weight * ended

    # -- the working copy --------------------------------------------------------------------------------------

    def _tally(self, of: int) -> Counts:
        tally = self.changes.counts.get(of)
        if tally is None:
            tally = self.changes.counts[of] = Counts()
        return tally

    def _candidate(self, of: int, seq: int) -> Candidate | None:
        known = self._loaded.items.get((of, seq))
        changed = self.changes.items.get((of, seq))
        if changed is None:
            return known
        return Candidate(changed, known.value if known else b"null")

    def _put(self, of: int, tally: Counts, before: Item, after: Item) -> None:
        self.changes.items[of, after.seq] = after
        if before.state is not after.state:
            ITEM_MOVES.check(before.state, after.state, (before,))
            old, new = _COUNTER_OF[before.state], _COUNTER_OF[after.state]
            setattr(tally, old, getattr(tally, old) - 1)
            setattr(tally, new, getattr(tally, new) + 1)


def ready_state(memory_bytes: int) -> State:
    """The state of an item that is ready for a lease. `memory_bytes`: its memory; 0: the map's default."""
    return State.LARGE if memory_bytes else State.READY


def item_done(item: Item, fence: int) -> Item:
    return msgspec.structs.replace(item, state=State.DONE, holder=0, twin=0, settled=fence)


def _unleased(item: Item, fence: int, *, settled: int | None = None, lost: bool = False) -> Item:
    """The item after one of its leases ended: ready, or still leased by its other holder."""
    other = item.twin if fence == item.holder else item.holder
    settled = item.settled if settled is None else settled
    losses = item.losses + lost
    if other:
        return msgspec.structs.replace(item, holder=other, twin=0, settled=settled, losses=losses)
    state = ready_state(item.memory_bytes)
    return msgspec.structs.replace(item, state=state, holder=0, twin=0, settled=settled, losses=losses)


def _failed(policy: Policy, item: Item, fence: int, report: Report, now: int) -> Item:
    """The item after a failed lease. While a second lease of the item is live, the failure does not count."""
    if item.twin:
        return _unleased(item, fence, settled=fence)
    ended = msgspec.structs.replace(item, holder=0, settled=fence)
    if report.outcome is Outcome.OOM:
        memory = more_memory(policy, item, report.memory)
        if memory is None:
            return msgspec.structs.replace(ended, state=State.DEAD, tries=item.tries + 1)
        return msgspec.structs.replace(ended, state=State.LARGE, memory_bytes=memory)
    tries = item.tries + 1
    if tries > policy.retries or report.outcome is Outcome.INVALID:
        return msgspec.structs.replace(ended, state=State.DEAD, tries=tries)
    ready_at = now + backoff_ms(policy, tries, item.seq)
    return msgspec.structs.replace(ended, state=State.WAITING, tries=tries, ready_at=ready_at)


def _raw(value: bytes | str) -> msgspec.Raw:
    return msgspec.Raw(value if isinstance(value, bytes) else value.encode())
