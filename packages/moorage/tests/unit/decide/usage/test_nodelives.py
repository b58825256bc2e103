from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.usage.nodelives import SETTLE, Amend, Begin, End, Resume, life_of, plan_nodes
from moorage_kube.testing import builders
from moorage_kube.testing.clock import NOON
from moorage_kube.testing.examples import examples

MINUTE = timedelta(minutes=1)


def a_node(uid="u1", *, name="n1", created=NOON, kind="dgx", gpus=8, cpu="64", labels=None, broken=0):
    marks = {"node.kubernetes.io/instance-type": kind, "topology.kubernetes.io/region": "tokyo"} | (labels or {})
    capacity = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    made = {"cpu": cpu, "memory": "512Gi", "gpus": gpus and gpus - broken, "capacity": capacity}
    return builders.a_node(name, uid=uid, created=created, labels=marks, ready=None, **made)


def stepped(known, step):
    """The stored lives after a step: what a store must do, in one line each."""
    after = dict(known)
    match step:
        case Begin(life):
            after.setdefault(life.key, life)
        case Amend(life):
            kept = after[life.key]
            after[life.key] = replace(
                life, ended_at=kept.ended_at, first_seen_at=kept.first_seen_at, last_seen_at=kept.last_seen_at
            )
        case End(key, ended):
            if after[key].ended_at is None:
                after[key] = replace(after[key], ended_at=ended, last_seen_at=max(after[key].last_seen_at, ended))
        case Resume(key):
            after[key] = replace(after[key], ended_at=None)
    return after


def settle(known, nodes, *, now, deleted=None):
    """Plan and do, as a store does; then there is nothing left to do."""
    for step in plan_nodes(known.values(), nodes, deleted=deleted, now=now):
        known = stepped(known, step)
    assert plan_nodes(known.values(), nodes, deleted=deleted, now=now) == ()
    return known


def spans(known):
    return [(life.started_at, life.ended_at) for life in sorted(known.values(), key=lambda life: life.started_at)]


def test_a_node_reads_as_what_it_offers_and_a_broken_gpu_is_paid_for_too():
    life = life_of(a_node(labels={"karpenter.sh/capacity-type": "spot"}, broken=2), now=NOON + MINUTE)
    assert (life.instance_type, life.region, life.market, life.gpu_type) == ("dgx", "tokyo", "spot", "gpu")
    assert (life.devices, life.gpus, life.cpu_milli) == ((("nvidia.com/gpu", 8),), 8, 64_000)
    assert (life.started_at, life.ended_at) == (NOON, None)


def test_a_young_node_that_shows_its_gpus_late_has_had_them_from_its_start():
    known = settle({}, [a_node(gpus=0)], now=NOON + MINUTE)
    known = settle(known, [a_node()], now=NOON + SETTLE - MINUTE)
    assert [(life.gpus, life.started_at) for life in known.values()] == [(8, NOON)]


def test_a_node_that_becomes_another_type_ends_one_life_and_begins_the_next():
    known = settle({}, [a_node()], now=NOON + MINUTE)
    known = settle(known, [a_node(kind="dgx-2", gpus=16)], now=NOON + 60 * MINUTE)
    assert spans(known) == [(NOON, NOON + 60 * MINUTE), (NOON + 60 * MINUTE, None)]


def test_a_node_seen_to_go_ends_then_and_one_that_vanished_ends_when_it_was_last_seen():
    known = settle({}, [a_node(), a_node("u2", name="n2")], now=NOON + MINUTE)
    known = settle(known, [], deleted={"u1": NOON + 5 * MINUTE}, now=NOON + 9 * MINUTE)
    assert {life.node_uid: life.ended_at for life in known.values()} == {
        "u1": NOON + 5 * MINUTE,
        "u2": NOON + MINUTE,
    }


def test_a_node_taken_for_gone_that_is_back_goes_on():
    known = settle({}, [a_node()], now=NOON + MINUTE)
    known = settle(known, [], now=NOON + 2 * MINUTE)
    known = settle(known, [a_node()], now=NOON + 3 * MINUTE)
    assert spans(known) == [(NOON, None)]


@dataclass(frozen=True)
class Life:
    """A node's true life, in minutes after noon. `changes`: when its type changes."""

    start: int
    run: int
    changes: int | None


lives = st.lists(
    st.builds(Life, st.integers(0, 60), st.integers(1, 90), st.one_of(st.none(), st.integers(1, 80))),
    min_size=1,
    max_size=4,
)
looks = st.lists(
    st.tuples(st.integers(1, 20), st.booleans(), st.integers(0, 4), st.booleans()), min_size=1, max_size=15
)


def as_seen(lives, minute):
    return [
        a_node(
            f"u{at}",
            name=f"n{at}",
            created=NOON + life.start * MINUTE,
            kind="b" if life.changes is not None and minute >= life.start + life.changes else "a",
        )
        for at, life in enumerate(lives)
        if life.start <= minute < life.start + life.run
    ]


@settings(max_examples=examples(100, full=500))
@given(lives, looks)
def test_a_recorder_killed_at_random_counts_no_minute_twice_and_loses_none_beyond_a_gap(lives, looks):
    """Each look is a pass: a `killed` one does the first `kept` steps, a `watched` one hears of ends."""
    known, minute, last_beat, last_look = {}, 0, {}, 0
    for gap, killed, kept, watched in looks:
        before, minute = minute, minute + gap
        now = NOON + minute * MINUTE
        nodes = as_seen(lives, minute)
        deleted = {
            f"u{at}": NOON + (life.start + life.run) * MINUTE
            for at, life in enumerate(lives)
            if watched and before < life.start + life.run <= minute
        }
        steps = plan_nodes(known.values(), nodes, deleted=deleted, now=now)
        for step in steps[:kept] if killed else steps:
            known = stepped(known, step)
        if killed:
            continue
        last_look = minute
        for node in nodes:
            last_beat[node["metadata"]["uid"]] = minute
        alive = {node["metadata"]["uid"] for node in nodes}
        known = {
            key: replace(life, last_seen_at=now) if life.node_uid in alive and life.ended_at is None else life
            for key, life in known.items()
        }
    known = settle(known, [], now=NOON + 1000 * MINUTE)
    for at, true in enumerate(lives):
        mine = [life for life in known.values() if life.node_uid == f"u{at}"]
        whole = sum((life.ended_at - life.started_at for life in mine), timedelta())
        ordered = spans({life.key: life for life in mine})
        assert all(end <= start for (_, end), (start, _) in zip(ordered, ordered[1:], strict=False))  # none twice
        assert whole <= true.run * MINUTE  # never too much
        if f"u{at}" in last_beat:  # and all of it up to the last look that saw it
            assert whole >= (last_beat[f"u{at}"] - true.start) * MINUTE
        if true.start + true.run <= last_look and f"u{at}" in last_beat and mine[-1].ended_at:
            assert ordered[0][0] == NOON + true.start * MINUTE
