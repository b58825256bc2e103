"""Leases of items: tables over single answers, and workers that die, pause and come back against a plain model."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from moorage.api.maps import PRIORITY_LIMIT
from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import (
    COUNTERS,
    ITEM_MOVES,
    Call,
    Candidate,
    Counts,
    Exchange,
    Item,
    Limit,
    Loaded,
    Map,
    MapState,
    Outcome,
    Policy,
    Report,
    Session,
    State,
)
from moorage_kube.testing.examples import examples

NOON = 1_700_000_000_000
GIB = 1 << 30


class World:
    """The tables of a queue as dicts: loads for `step`, and applies what it decides."""

    def __init__(self, **policies):
        self.now = NOON
        self.items: dict[tuple[int, int], Item] = {}
        self.values: dict[tuple[int, int], bytes] = {}
        self.sessions: dict[tuple[int, str], Session] = {}
        self.results: dict[tuple[int, int], leasing.Result] = {}
        self.failures: dict[tuple[int, int], leasing.Failure] = {}
        self.maps: dict[int, Map] = {}
        self.capacity: dict[str, int] = {}
        self.turns: dict[tuple[int, str], int] = {}
        for of, policy in enumerate(policies.values() or [Policy()], 1):
            self.maps[of] = Map(id=of, policy=policy, rate_level=1.0, rate_at=self.now)

    def add(self, of=1, items=1, *, seconds=None, priority=0):
        counts = self.maps[of].counts
        for _ in range(items):
            seq = counts.total
            self.items[of, seq] = Item(seq, rank=leasing.rank_of(priority=priority, seconds=seconds))
            self.values[of, seq] = b'"%d"' % seq
            counts.total += 1
            counts.ready += 1
        return self

    def change(self, of=1, **fields):
        self.maps[of] = replace(self.maps[of], **fields)
        return self

    def limits(self):
        held = dict.fromkeys(self.capacity, 0)
        for one in self.maps.values():
            for name, weight in one.policy.limits.items():
                if name in held:
                    held[name] += weight * one.counts.leases
        waiting = {name: [] for name in held}
        for since, of, name in sorted((since, of, name) for (of, name), since in self.turns.items() if since):
            found = self.maps[of]
            if found.counts.ready and found.counts.workers and found.policy.limits[name] <= self.capacity[name]:
                waiting[name].append((since, of))
        return {name: Limit(name, self.capacity[name], held[name], tuple(waiting[name])) for name in held}

    def _sorted(self, of, state):
        items = [item for (at, _), item in self.items.items() if at == of and item.state is state]
        return [
            Candidate(one, self.values[of, one.seq]) for one in sorted(items, key=lambda one: (one.rank, one.seq))
        ]

    def load(self, calls):
        wanted = set()
        for call in calls:
            session = self.sessions.get((call.map, call.exchange.session))
            policy = self.maps[call.map].policy
            idempotent = policy.idempotent or bool(policy.limits)
            wanted |= {(call.map, seq) for seq in leasing.needed_items(call, session, idempotent=idempotent)}
        most = leasing.wanted_candidates(calls, self.maps)
        memory = max((call.exchange.memory for call in calls), default=0)
        return Loaded(
            maps=self.maps,
            sessions=self.sessions,
            items={key: Candidate(self.items[key], self.values[key]) for key in wanted if key in self.items},
            ready={of: self._sorted(of, State.READY)[:some] for of, some in most.items()},
            large={
                of: [one for one in self._sorted(of, State.LARGE) if one.item.memory_bytes <= memory][:some]
                for of, some in most.items()
            },
            stragglers={of: self._stragglers(of) for of in most if self.maps[of].policy.idempotent},
            limits=self.limits(),
        )

    def _stragglers(self, of):
        if self._sorted(of, State.READY):
            return []
        mean = leasing.mean_ms(self.maps[of].counts)
        old = [
            lease.item
            for (at, _), session in self.sessions.items()
            for lease in session.leases
            if at == of and leasing.is_straggler(lease, mean=mean, now=self.now)
        ]
        return [Candidate(self.items[of, seq], self.values[of, seq]) for seq in sorted(set(old))]

    def apply(self, changes):
        self.items |= changes.items
        for result in changes.results:
            assert (result.map, result.item) not in self.results, "a second result was recorded"
            self.results[result.map, result.item] = result
        self.failures |= changes.failures
        for key, session in changes.sessions.items():
            if session is None:
                self.sessions.pop(key, None)
            else:
                self.sessions[key] = session
        self.turns |= changes.turns
        for of, (level, at) in changes.rates.items():
            self.change(of, rate_level=level, rate_at=at)
        for of, counts in changes.counts.items():
            mine = self.maps[of].counts
            for name in COUNTERS:
                setattr(mine, name, getattr(mine, name) + getattr(counts, name))

    def step(self, *calls):
        changes = leasing.step(self.load(calls), calls, self.now)
        self.apply(changes)
        return changes.replies

    def ask(self, session="w", of=1, **fields):
        """One request of a worker."""
        fields.setdefault(
            "request", 1 + max([s.request for k, s in self.sessions.items() if k == (of, session)] or [0])
        )
        fields.setdefault("held", [])
        (reply,) = self.step(Call(of, Exchange(session=session, **fields)))
        return reply

    def claim(self, session="w", want=1, **fields):
        return [(item, lease) for item, lease, _ in self.ask(session, want=want, **fields).items]

    def tick(self):
        for key, item in list(self.items.items()):
            if item.state is State.WAITING and item.ready_at <= self.now:
                large = item.memory_bytes > 0
                self.items[key] = msgspec.structs.replace(item, state=State.LARGE if large else State.READY)
                counts = self.maps[key[0]].counts
                counts.waiting -= 1
                counts.large += large
                counts.ready += not large
        silent = {key: one for key, one in self.sessions.items() if one.expires_at < self.now}
        if silent:
            held = {(of, lease.item) for (of, _), one in silent.items() for lease in one.leases}
            items = {key: Candidate(self.items[key], self.values[key]) for key in held}
            self.apply(leasing.lapse(Loaded(maps=self.maps, sessions=silent, items=items), self.now))
        return self

    def validate(self):
        """What must hold between any two transactions."""
        for of, found in self.maps.items():
            mine = {key: item for key, item in self.items.items() if key[0] == of}
            counts = found.counts
            for state in State:
                name = leasing._COUNTER_OF[state]
                assert getattr(counts, name) == sum(item.state is state for item in mine.values()), name
            assert counts.total == len(mine), "an item was lost"
            sessions = [one for key, one in self.sessions.items() if key[0] == of]
            assert counts.workers == len(sessions)
            assert counts.leases == sum(len(session.leases) for session in sessions), "a token leaked"
            handed = {(lease.item, lease.fence) for session in sessions for lease in session.leases}
            for (_, seq), item in mine.items():
                assert (item.state is State.LEASED) == bool(item.holder), "a lease without its state"
                assert (item.state is State.DONE) == ((of, seq) in self.results)
                for fence in (item.holder, item.twin):
                    assert fence == 0 or (seq, fence) in handed, (
                        "an item waits for a session that has no such lease"
                    )
                assert max(item.holder, item.twin, item.settled) <= item.fence
                if item.state is State.DEAD:
                    assert (of, seq) in self.failures


def done(item, lease, value=b"1", seconds=1.0):
    return Report(item=item, lease=lease, outcome=Outcome.DONE, seconds=seconds, value=msgspec.Raw(value))


def failed(item, lease, outcome=Outcome.ERROR, **fields):
    return Report(item=item, lease=lease, outcome=outcome, **fields)


def test_a_claimed_item_that_is_done_has_its_result_and_leaves_nothing_behind():
    world = World().add().change(closed=True)
    assert world.claim() == [(0, 1)]
    reply = world.ask(reports=[done(0, 1)], want=1)
    assert (reply.items, reply.refused, reply.state) == ([], [], "finished")
    assert world.results[1, 0].value == b"1"
    assert world.maps[1].counts.leases == 0
    world.validate()


def test_the_same_request_again_finds_the_same_leases_and_records_nothing_twice():
    world = World().add(items=2)
    first = world.ask(want=1, request=1)
    again = world.ask(want=1, request=1)
    assert again.items == first.items
    second = world.ask(want=1, request=2, reports=[done(0, 1)])
    assert world.ask(want=1, request=2, reports=[done(0, 1)]) == second
    assert second.refused == []
    assert world.maps[1].counts.granted == 2
    world.validate()


def test_an_overtaken_request_is_stale_and_changes_nothing():
    world = World().add(items=2)
    world.ask(request=5)
    reply = world.ask(request=4, want=1)
    assert (reply.state, reply.items) == ("stale", [])


def test_a_lease_whose_grant_was_lost_goes_back_at_the_next_request():
    world = World().add()
    world.ask(request=1, want=1)
    world.ask(request=2, held=[])
    assert world.items[1, 0].state is State.READY
    assert world.claim() == [(0, 2)]
    world.validate()


def test_a_worker_that_remembers_an_older_lease_of_an_item_does_not_keep_the_newer():
    world = World().add()
    world.ask(request=1, want=1)
    world.now += 100_000
    world.tick()
    world.ask(request=2, want=1, held=[(0, 1)])  # the answer, a lease of fence 2, is lost
    assert world.ask(request=3, held=[(0, 1)]).lost == [(0, 1)]
    world.validate()
    assert world.claim() == [(0, 3)]


def test_an_answer_from_another_session_leaves_no_token_behind():
    world = World(p=Policy(limits={"mysql": 1}, retries=5, backoff_seconds=0)).add()
    world.capacity = {"mysql": 5}
    world.ask("old", request=1, want=1)
    assert world.ask("new", reports=[failed(0, 1)]).refused == []
    world.tick()
    assert world.claim("old", held=[(0, 1)], slots=2) == [(0, 2)]
    world.validate()


def test_a_heartbeat_does_not_take_back_what_it_cannot_know_of():
    world = World().add()
    world.ask(request=1, want=1)
    assert world.ask(request=0, held=[]).lost == []
    assert world.items[1, 0].holder == 1


def test_a_worker_that_comes_back_late_is_refused_and_told_to_stop():
    world = World().add()
    world.claim("slow")
    world.now += 61_000
    world.tick()
    assert world.claim("quick") == [(0, 2)]
    reply = world.ask("slow", request=0, held=[(0, 1)])
    assert reply.lost == [(0, 1)]
    assert world.ask("slow", reports=[done(0, 1, b'"late"')]).refused == [(0, 1)]
    assert world.ask("quick", reports=[done(0, 2)]).refused == []
    assert world.results[1, 0].value == b"1"
    world.validate()


@pytest.mark.parametrize(
    ("outcome", "policy", "want"),
    [
        pytest.param(Outcome.ERROR, Policy(retries=1), (State.WAITING, 1, 0), id="error: tried again later"),
        pytest.param(Outcome.ERROR, Policy(retries=0), (State.DEAD, 1, 0), id="error: no tries left"),
        pytest.param(Outcome.INVALID, Policy(retries=1), (State.DEAD, 1, 0), id="invalid: no retry helps"),
        pytest.param(Outcome.TIMEOUT, Policy(retries=1), (State.WAITING, 1, 0), id="time-out: like an error"),
        pytest.param(Outcome.PREEMPTED, Policy(retries=0), (State.READY, 0, 0), id="preempted: free"),
        pytest.param(Outcome.RETURNED, Policy(retries=0), (State.READY, 0, 0), id="handed back: free"),
        pytest.param(Outcome.OOM, Policy(memory_bytes=GIB), (State.DEAD, 1, 0), id="oom: no more memory allowed"),
        pytest.param(
            Outcome.OOM,
            Policy(memory_bytes=GIB, max_memory_bytes=4 * GIB),
            (State.LARGE, 0, 2 * GIB),
            id="oom: twice as much",
        ),
        pytest.param(
            Outcome.OOM,
            Policy(memory_bytes=3 * GIB, max_memory_bytes=4 * GIB),
            (State.LARGE, 0, 4 * GIB),
            id="oom: up to the limit",
        ),
    ],
)
def test_what_a_failure_costs_depends_on_its_cause(outcome, policy, want):
    world = World(p=policy).add()
    world.claim()
    world.ask(reports=[failed(0, 1, outcome, output=b"last \xff words")])
    item = world.items[1, 0]
    assert (item.state, item.tries, item.memory_bytes) == want
    if outcome not in (Outcome.PREEMPTED, Outcome.RETURNED):
        assert world.failures[1, 0].output == b"last \xff words"
    world.validate()


def test_retries_back_off_longer_each_time_and_not_all_at_once():
    policy = Policy(backoff_seconds=2, max_backoff_seconds=60)
    waits = [leasing.backoff_ms(policy, tries, 7) for tries in range(1, 12)]
    assert waits == sorted(waits)
    assert 1500 <= waits[0] <= 2500
    assert 45_000 <= waits[-1] <= 75_000
    assert len({leasing.backoff_ms(policy, 1, seq) for seq in range(100)}) > 50


def test_an_item_that_needs_more_memory_goes_to_workers_that_have_it():
    world = World(p=Policy(memory_bytes=GIB, max_memory_bytes=4 * GIB)).add()
    world.claim(memory=GIB)
    world.ask(reports=[failed(0, 1, Outcome.OOM, memory=3 * GIB)])
    assert world.items[1, 0].memory_bytes == 3 * GIB * 5 // 4
    assert world.claim(memory=2 * GIB) == []
    assert world.claim(memory=4 * GIB) == [(0, 2)]
    world.validate()


def test_an_item_under_which_workers_vanish_is_leased_alone_and_dies_in_the_end():
    world = World(p=Policy(loss_limit=2)).add(items=1)
    for turn in range(3):
        assert world.claim(f"w{turn}") == [(0, turn + 1)]
        world.add(items=2) if turn == 0 else None
        world.now += 100_000
        world.tick()
    assert world.items[1, 0].state is State.DEAD
    assert world.failures[1, 0].cause == "lost"
    world.maps[1].counts.measured, world.maps[1].counts.spent_ms = 1, 1
    assert world.claim("next", want=10) == [(1, 1), (2, 1)]
    world.validate()


def test_the_first_lost_lease_makes_an_item_travel_alone():
    world = World().add(items=3)
    world.maps[1].counts.measured, world.maps[1].counts.spent_ms = 1, 1
    assert len(world.claim("a", want=10)) == 3
    world.now += 100_000
    world.tick()
    assert [len(world.claim(name, want=10)) for name in "bcd"] == [1, 1, 1]
    world.validate()


def test_the_output_of_a_failure_is_cut_to_its_end():
    world = World(p=Policy(retries=0)).add()
    world.claim()
    world.ask(reports=[failed(0, 1, output=b"x" * 100_000 + b"end")])
    kept = world.failures[1, 0].output
    assert len(kept) == leasing.OUTPUT_BYTES
    assert kept.endswith(b"end")


def test_a_straggler_runs_twice_only_in_idempotent_maps_and_the_first_answer_wins():
    for idempotent in (False, True):
        world = World(p=Policy(idempotent=idempotent)).add()
        world.maps[1].counts.measured, world.maps[1].counts.spent_ms = 10, 10_000
        assert world.claim("slow") == [(0, 1)]
        world.now += 4_000
        assert world.claim("idle") == ([(0, 2)] if idempotent else [])
        assert world.claim("third") == []
        if idempotent:
            assert world.ask("idle", reports=[done(0, 2, b'"idle"')]).refused == []
            assert world.ask("slow", request=0, held=[(0, 1)]).lost == [(0, 1)]
            assert world.maps[1].counts.leases == 1, "the token is held while the loser runs"
            assert world.ask("slow", reports=[done(0, 1, b'"slow"')]).refused == [(0, 1)]
            assert world.results[1, 0].value == b'"idle"'
        world.validate()


def test_a_straggler_gets_no_second_lease_beyond_a_limit():
    world = World(p=Policy(idempotent=True, limits={"mysql": 1})).add()
    world.capacity = {"mysql": 1}
    world.maps[1].counts.measured, world.maps[1].counts.spent_ms = 10, 10_000
    assert world.claim("slow") == [(0, 1)]
    world.now += 4_000
    assert world.claim("idle") == []
    world.capacity = {"mysql": 2}
    assert world.claim("idle") == [(0, 2)]
    world.validate()


def test_the_failure_of_one_twin_leaves_the_item_to_the_other():
    world = World(p=Policy(idempotent=True, retries=0)).add()
    world.maps[1].counts.measured, world.maps[1].counts.spent_ms = 10, 10_000
    world.claim("slow")
    world.now += 4_000
    world.claim("idle")
    world.ask("idle", reports=[failed(0, 2)])
    assert world.items[1, 0].state is State.LEASED
    assert world.ask("slow", reports=[done(0, 1)]).refused == []
    world.validate()


def test_tokens_are_shared_by_maps_the_higher_priority_first_and_no_stock_is_leased():
    limited = Policy(limits={"mysql": 1})
    world = World(low=limited, high=limited).add(1, 5).add(2, 5).change(2, priority=5)
    world.capacity = {"mysql": 3}
    for of in (1, 2):
        world.maps[of].counts.measured, world.maps[of].counts.spent_ms = 1, 1
    calls = [
        Call(of, Exchange(session=f"{of}{at}", request=1, held=[], want=10, slots=1))
        for of in (1, 2)
        for at in (1, 2)
    ]
    assert [len(reply.items) for reply in world.step(*calls)] == [1, 0, 1, 1]
    assert world.limits()["mysql"].held == 3
    world.ask("21", of=2, bye=True)
    assert world.ask("12", of=1, want=10).items
    world.validate()


def limited(**capacities):
    """A world of maps a and b, each with one token an item."""
    policy = Policy(limits=dict.fromkeys(capacities, 1))
    world = World(a=policy, b=policy).add(1, 9).add(2, 9)
    world.capacity = capacities
    return world


def test_a_token_that_one_map_frees_goes_to_the_map_that_waits():
    world = limited(mysql=1)
    ((item, lease),) = world.claim("a", of=1)
    assert world.claim("b", of=2) == []
    again = world.ask("a", of=1, want=1, reports=[done(item, lease)])
    assert again.items == []  # it asks first, and it is not its turn
    ((item, lease),) = world.claim("b", of=2)
    assert world.ask("b", of=2, want=1, reports=[done(item, lease)]).items == []
    assert len(world.claim("a", of=1)) == 1
    world.validate()


def test_a_map_that_only_heartbeats_loses_its_tokens_to_the_map_that_waits():
    world = limited(mysql=1)
    ((item, lease),) = world.claim("a", of=1)
    world.now += 1000 * (leasing.HOLD_SECONDS + 1)
    held = [(item, lease)]
    assert world.ask("a", of=1, request=0, held=held).lost == []  # no map waits
    world.claim("b", of=2)
    assert world.ask("a", of=1, request=0, held=held).lost == held
    assert len(world.claim("b", of=2)) == 1
    late = world.ask("a", of=1, reports=[done(item, lease)])
    assert late.refused == held
    assert world.maps[1].counts.ready == 9
    world.validate()


def test_an_item_with_a_time_limit_holds_tokens_no_longer_than_that():
    world = limited(mysql=1).change(1, policy=Policy(limits={"mysql": 1}, time_seconds=100, lease_seconds=60))
    ((item, lease),) = world.claim("a", of=1)
    world.claim("b", of=2)
    for seconds, lost in ((160, []), (1, [(item, lease)])):
        world.now += 1000 * seconds
        assert world.ask("a", of=1, request=0, held=[(item, lease)]).lost == lost
    world.validate()


def test_a_map_that_waits_for_one_limit_keeps_no_other_from_the_rest():
    both, one = Policy(limits={"mysql": 1, "api": 1}), Policy(limits={"mysql": 1})
    world = World(a=both, b=both, c=one).add(1, 3).add(2, 3).add(3, 3)
    world.capacity = {"mysql": 2, "api": 1}
    assert len(world.claim("a", of=1)) == 1
    assert world.claim("b", of=2) == []  # `api` lacks a token
    assert len(world.claim("c", of=3)) == 1


def test_a_map_that_needs_more_tokens_than_there_are_keeps_no_other_waiting():
    world = World(a=Policy(limits={"mysql": 5}), b=Policy(limits={"mysql": 1})).add(1, 3).add(2, 3)
    world.capacity = {"mysql": 2}
    assert world.claim("a", of=1) == []
    assert len(world.claim("b", of=2)) == 1


@given(
    st.integers(2, 6),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=20, max_size=200),
)
def test_a_map_that_waits_gets_a_token_after_at_most_one_grant_of_each_other(maps, capacity, asks):
    """Maps ask in any order and any number of times; a map ends an item or keeps it as it asks."""
    world = World(**{f"m{of}": Policy(limits={"mysql": 1}) for of in range(maps)})
    world.capacity = {"mysql": capacity}
    held, passed = {of: [] for of in range(1, maps + 1)}, {}
    for of in held:
        world.add(of, 200)
    for which, ends in asks:
        of = which % maps + 1
        world.now += 1
        reports = [done(*held[of].pop())] if ends and held[of] else []
        waited = {other for (other, _), since in world.turns.items() if since}
        reply = world.ask("w", of=of, want=1, slots=10, reports=reports, held=held[of])
        got = [(item, lease) for item, lease, _ in reply.items]
        held[of] += got
        if got:
            passed.pop(of, None)
            for other in waited - {of}:
                assert of not in passed.setdefault(other, set()), "a second token while another map waited"
                passed[other].add(of)
        world.validate()


def test_a_rate_hands_out_no_more_than_has_become_due():
    world = World(p=Policy(rate=2.0)).add(items=20)
    world.maps[1].counts.measured, world.maps[1].counts.spent_ms = 1, 1
    given = 0
    for at in range(21):
        given += len(world.claim(f"w{at}", want=10, slots=10))
        world.now += 250
    assert given <= 1 + 2 * 5 + 1
    assert given >= 2 * 5 - 1


@pytest.mark.parametrize(
    ("case", "want"),
    [
        pytest.param({"mean_ms": None}, 1, id="nothing measured: one"),
        pytest.param({"mean_ms": 0.0}, 10, id="no time at all: all that is allowed"),
        pytest.param({"mean_ms": 4000.0}, 2, id="ten seconds of work"),
        pytest.param({"mean_ms": 60_000.0}, 1, id="long items: one"),
        pytest.param({"mean_ms": 1000.0, "ready": 30, "workers": 5}, 3, id="near the end: half a fair share"),
        pytest.param(
            {"mean_ms": 50.0, "ready": 30, "workers": 100}, 10, id="short items are not split to nothing"
        ),
        pytest.param({"mean_ms": 1.0, "want": 3}, 3, id="no more than wanted"),
        pytest.param({"mean_ms": 1.0, "want": 0}, 0, id="nothing wanted"),
        pytest.param(
            {"mean_ms": 4000, "ready": 39, "busy": True}, 0, id="near the end, busy: left for who is idle"
        ),
        pytest.param({"mean_ms": 4000, "ready": 40, "busy": True}, 2, id="busy, and there is enough: a stock"),
        pytest.param({"mean_ms": 50, "ready": 39, "busy": True}, 10, id="short items: a stock even near the end"),
    ],
)
def test_a_batch_is_sized_by_measured_time(case, want):
    assert leasing.batch_size(**({"want": 100, "batch_items": 10, "ready": 10_000, "workers": 10} | case)) == want


def test_priority_goes_before_length_and_unknown_lengths_before_known_ones():
    ranks = [
        leasing.rank_of(priority=1, seconds=1),
        leasing.rank_of(),
        leasing.rank_of(seconds=60),
        leasing.rank_of(seconds=1),
        leasing.rank_of(priority=-1),
    ]
    assert ranks == sorted(ranks)
    assert leasing.rank_of(priority=PRIORITY_LIMIT) > -(2**63)


@pytest.mark.parametrize(
    ("last", "now", "want"),
    [
        pytest.param(0, NOON, 0, id="never alive before: nobody waits"),
        pytest.param(NOON, NOON + 1000, 0, id="a tick"),
        pytest.param(NOON, NOON + 60_000, 60_000, id="a minute away"),
        pytest.param(NOON, NOON - 60_000, 0, id="the clock was set back"),
    ],
)
def test_leases_are_extended_by_the_time_the_server_was_away(last, now, want):
    assert leasing.away_ms(last_alive=last, now=now) == want


@pytest.mark.parametrize("state", [MapState.PAUSED, MapState.CANCELLED])
def test_a_map_that_does_not_run_gives_nothing_out_but_takes_answers(state):
    world = World().add(items=2)
    world.claim()
    world.change(state=state)
    reply = world.ask(reports=[done(0, 1)], want=1)
    assert (reply.items, reply.refused, reply.state) == ([], [], state.value)
    world.validate()


def test_every_move_that_leasing_makes_is_reached():
    draw, seen = random.Random(7), set()
    world = World(a=Policy(retries=1, loss_limit=1, lease_seconds=60, memory_bytes=1, max_memory_bytes=4))
    world.add(items=40)
    for _ in range(200):
        before = dict(world.items)
        outcomes = [draw.choice(list(Outcome)) for _ in range(2)]
        leases = world.claim("w", want=2, slots=2, memory=4)
        if draw.random() < 0.3:
            world.now += 400_000  # the worker is silent, and back-offs end
            seen |= {(before[key].state, item.state) for key, item in world.items.items()}
            before = dict(world.items)
            world.tick()
        else:
            seen |= {(before[key].state, item.state) for key, item in world.items.items()}
            before = dict(world.items)
            reports = [
                Report(item=item, lease=lease, outcome=outcome, value=msgspec.Raw(b"1"))
                for (item, lease), outcome in zip(leases, outcomes, strict=False)
            ]
            world.ask("w", reports=reports)
        seen |= {(before[key].state, item.state) for key, item in world.items.items()}
    of_users = {(start, end) for start, end in ITEM_MOVES if start in (None, State.DEAD)}
    assert {(start, end) for start, end in seen if start is not end} == set(ITEM_MOVES) - of_users


class Play(RuleBasedStateMachine):
    """Workers take, answer, fail, vanish, are paused and come back, lose replies; the server is away.

    The plain model knows only what each worker was told, and which answers it was told are recorded.
    """

    def __init__(self):
        super().__init__()
        self.told: dict[tuple[int, str], dict[int, int]] = {}  # what each worker believes it holds
        self.number: dict[tuple[int, str], int] = {}
        self.last: dict[tuple[int, str], Exchange] = {}
        self.recorded: dict[tuple[int, int], bytes] = {}
        self.progress = 0
        self.late: list[tuple[int, str, int, int]] = []  # leases of workers whose session lapsed

    @initialize(idempotent=st.booleans(), capacity=st.integers(1, 4), retries=st.integers(0, 2))
    def begin(self, idempotent, capacity, retries):
        common = {"idempotent": idempotent, "retries": retries, "loss_limit": 3, "limits": {"mysql": 1}}
        self.world = World(a=Policy(**common), b=Policy(memory_bytes=1, max_memory_bytes=4, retries=retries))
        self.world.capacity = {"mysql": capacity}
        self.world.add(1, 4).add(2, 4)

    def send(self, of, name, lost_reply=False, **fields):
        key = (of, name)
        held = [(item, lease) for item, lease in self.told.get(key, {}).items()]
        reported = {report.item for report in fields.get("reports", ())}
        held = [pair for pair in held if pair[0] not in reported]
        self.number[key] = self.number.get(key, 0) + 1
        asked = Exchange(session=name, request=self.number[key], held=held, **fields)
        self.last[key] = asked
        self.deliver(of, name, asked, lost_reply=lost_reply)

    def deliver(self, of, name, asked, *, lost_reply):
        told_before = {(report.item, self.world.items[of, report.item].settled) for report in asked.reports}
        (reply,) = self.world.step(Call(of, asked))
        refused = set(reply.refused) | told_before  # what was said of a lease first is what counts
        for report in asked.reports:
            live = (report.item, report.lease) not in refused
            if report.outcome is Outcome.DONE and live:
                before = self.recorded.setdefault((of, report.item), bytes(report.value))
                assert before == bytes(report.value), "two answers were taken for one item"
        if lost_reply:
            return
        mine = {item: lease for item, lease in asked.held or () if (item, lease) not in set(reply.lost)}
        self.told[of, name] = mine | {item: lease for item, lease, _ in reply.items}
        if asked.bye:
            self.told[of, name] = {}

    maps = st.sampled_from([1, 2])
    names = st.sampled_from(["u", "v", "w"])

    @rule(
        of=maps,
        name=names,
        want=st.integers(1, 4),
        slots=st.integers(1, 3),
        memory=st.integers(0, 4),
        lost=st.booleans(),
    )
    def claim(self, of, name, want, slots, memory, lost):
        self.send(of, name, want=want, slots=slots, memory=memory, lost_reply=lost)

    @rule(of=maps, name=names, data=st.data(), lost=st.booleans(), want=st.integers(0, 2))
    def answer(self, of, name, data, lost, want):
        held = self.told.get((of, name), {})
        chosen = data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []
        reports = [
            Report(
                item=item,
                lease=held[item],
                outcome=data.draw(st.sampled_from(list(Outcome))),
                seconds=0.5,
                value=msgspec.Raw(b'"%s %d"' % (name.encode(), held[item])),
            )
            for item in chosen
        ]
        self.send(of, name, reports=reports, want=want, lost_reply=lost)

    @precondition(lambda self: self.last)
    @rule(data=st.data(), lost=st.booleans())
    def tell_again(self, data, lost):
        of, name = data.draw(st.sampled_from(sorted(self.last)))
        asked = self.last[of, name]
        if asked.bye:
            return
        self.deliver(of, name, asked, lost_reply=lost)

    @rule(of=maps, name=names)
    def heartbeat(self, of, name):
        held = list(self.told.get((of, name), {}).items())
        (reply,) = self.world.step(Call(of, Exchange(session=name, request=0, held=held)))
        for item, _ in reply.lost:
            self.told[of, name].pop(item, None)

    @rule(of=maps, name=names)
    def leave(self, of, name):
        self.send(of, name, bye=True)

    @rule(seconds=st.sampled_from([1, 10, 70, 400]))
    def time_passes(self, seconds):
        self.world.now += seconds * 1000
        before = dict(self.world.sessions)
        self.world.tick()
        for of, name in set(before) - set(self.world.sessions):
            self.late += [(of, name, lease.item, lease.fence) for lease in before[of, name].leases]

    @rule(seconds=st.sampled_from([100, 4000]))
    def the_server_is_away(self, seconds):
        last = self.world.now
        self.world.now += seconds * 1000
        away = leasing.away_ms(last_alive=last, now=self.world.now)
        before = len(self.world.sessions)
        self.world.sessions = {
            key: msgspec.structs.replace(one, expires_at=one.expires_at + away)
            for key, one in self.world.sessions.items()
        }
        self.world.tick()
        assert len(self.world.sessions) == before, "an outage cost somebody a lease"

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_lapsed_worker_answers(self, data):
        of, name, item, lease = data.draw(st.sampled_from(self.late))
        asked = Exchange(session=f"{name}-back", request=0, reports=[done(item, lease, b'"late"')])
        (reply,) = self.world.step(Call(of, asked))
        settled = self.world.items[of, item].settled == lease
        assert reply.refused == ([] if settled else [(item, lease)])
        assert self.world.results.get((of, item), None) is None or (
            self.world.results[of, item].value != b'"late"'
        ), "a late answer was taken"

    @rule(of=maps, state=st.sampled_from(list(MapState)))
    def the_user_changes_the_state(self, of, state):
        self.world.change(of, state=state)

    @rule(of=maps)
    def the_user_adds(self, of):
        self.world.add(of)

    @rule(capacity=st.integers(1, 4))
    def the_limit_changes(self, capacity):
        self.world.capacity["mysql"] = max(capacity, self.world.limits()["mysql"].held)

    @invariant()
    def everything_holds(self):
        if not hasattr(self, "world"):
            return
        self.world.validate()
        limit = self.world.limits()["mysql"]
        assert 0 <= limit.held <= limit.capacity
        counts = [one.counts for one in self.world.maps.values()]
        progress = sum(count.done + count.dead for count in counts)
        assert progress >= self.progress, "progress went back"
        self.progress = progress
        for key, value in self.recorded.items():
            assert self.world.results[key].value == value, "an answer that was taken is gone"

    def teardown(self):
        """Left to good workers, everything ends."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.sessions = {key: msgspec.structs.replace(one, expires_at=0) for key, one in world.sessions.items()}
        world.tick()
        for of in world.maps:
            world.change(of, state=MapState.RUNNING, closed=True)
        for turn in range(2000):
            world.now += 1_000_000
            world.tick()
            for of, found in world.maps.items():
                if leasing.is_finished(found, found.counts):
                    continue
                name = f"good{turn}"
                pairs = world.claim(name, of=of, want=10, slots=4, memory=4)
                world.ask(name, of=of, reports=[done(*pair) for pair in pairs], bye=True)
            if all(leasing.is_finished(one, one.counts) for one in world.maps.values()):
                break
        world.validate()
        for found in world.maps.values():
            assert found.counts.done + found.counts.dead == found.counts.total
            assert found.counts.leases == 0


TestPlay = Play.TestCase
TestPlay.settings = settings(
    max_examples=examples(20, full=60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_counters_and_states_have_the_same_words():
    assert set(leasing._COUNTER_OF) == set(State)
    assert set(leasing._COUNTER_OF.values()) <= set(COUNTERS)
    assert Counts() == Counts(**dict.fromkeys(COUNTERS, 0))
