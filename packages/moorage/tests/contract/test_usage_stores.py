"""The history of GPU use: one suite for SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from fractions import Fraction

import pytest
from msgspec.structs import replace

from moorage.decide.usage.intervals import Close, Open, Reopen
from moorage.decide.usage.nodelives import Amend, Begin, End, NodeLife, Resume
from moorage.usage.store import UsageStore
from moorage_kube.errors import StorageError
from moorage_testing.intervals import HOUR, TEN, an_interval


@pytest.fixture
def store(database):
    usage_store = UsageStore(database)
    yield usage_store
    usage_store.close()


def test_an_interval_is_read_back_as_it_was_written(store):
    rows = [an_interval("u1"), an_interval("u2", end=TEN + HOUR, owner="Zoë O'Neil; DROP TABLE")]
    store.apply([Open(row) for row in rows])
    assert store.known(["u2", "u1", "none"]) == rows
    assert store.open_intervals() == rows[:1]


def test_a_step_done_twice_changes_nothing(store):
    store.apply([Open(an_interval())])
    store.apply([Open(an_interval(gpus=9))])
    store.apply([Close("u1", TEN + HOUR)])
    store.apply([Close("u1", TEN + 2 * HOUR)])
    assert store.known(["u1"]) == [an_interval(end=TEN + HOUR, seen=TEN + HOUR)]
    store.apply([Reopen("u1"), Reopen("u1")])
    assert [one.ended_at for one in store.known(["u1"])] == [None]


def test_an_interval_never_ends_before_it_began(store):
    store.apply([Open(an_interval()), Close("u1", TEN - HOUR)])
    assert store.known(["u1"])[0].ended_at == TEN


def test_being_seen_moves_forward_only_and_only_while_open(store):
    store.apply([Open(an_interval("u1")), Open(an_interval("u2", end=TEN))])
    store.apply([], seen=["u1", "u2", "none"], now=TEN + HOUR)
    store.apply([], seen=["u1", "u2"], now=TEN - HOUR)
    assert [one.last_seen_at for one in store.known(["u1", "u2"])] == [TEN + HOUR, TEN]


@pytest.mark.parametrize(
    ("start", "end", "within"),
    [
        (0, 1, False),
        (0, None, True),
        (0, 3, True),
        (2, 3, True),
        (3, 5, True),
        (4, 5, False),
        (4, None, False),
        (1, 2, False),
        (1, 9, True),
    ],
)
def test_a_window_has_what_overlaps_it(store, start, end, within):
    interval = an_interval(start=TEN + start * HOUR, end=None if end is None else TEN + end * HOUR)
    store.apply([Open(interval)])
    assert store.overlapping(TEN + 2 * HOUR, TEN + 4 * HOUR) == ([interval] if within else [])


def test_a_batch_that_fails_leaves_nothing_behind(store):
    bad = an_interval("u2", gpus=-1)
    with pytest.raises(StorageError, match="could not write"):
        store.apply([Open(an_interval("u1")), Open(bad)])
    assert store.open_intervals() == []
    store.apply([Open(an_interval("u1"))])
    assert len(store.open_intervals()) == 1


def test_many_uids_can_be_asked_for_at_once(store):
    store.apply([Open(an_interval(f"u{at}")) for at in range(1200)])
    assert len(store.known([f"u{at}" for at in range(1300)])) == 1200


def test_threads_may_share_a_store(store):
    def work(at):
        store.apply([Open(an_interval(f"u{at}"))])
        store.open_intervals()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.open_intervals()) == 16


# -- nodes -----------------------------------------------------------------------------------------------


def a_life(uid="n1", *, start=TEN, end=None, seen=TEN, node="n1", kind="dgx"):
    return NodeLife(
        node_uid=uid,
        node=node,
        instance_type=kind,
        region="tokyo",
        market="spot",
        gpu_type="a100",
        devices=(("nvidia.com/gpu.shared", 16),),
        shares={"nvidia.com/gpu.shared": Fraction(1, 4)},
        cpu_milli=64_000,
        memory_bytes=2**39,
        started_at=start,
        ended_at=end,
        first_seen_at=seen,
        last_seen_at=seen,
    )


def test_a_nodes_life_is_read_back_as_it_was_written(store):
    lives = [a_life("n1"), a_life("n2", end=TEN + HOUR, start=TEN + HOUR / 2)]
    assert store.nodes_recorded_since() is None
    store.apply_nodes([Begin(life) for life in lives], now=TEN)
    assert store.every_life() == lives
    assert store.open_lives() == store.lives_of(["n1", "none"]) == lives[:1]
    assert store.nodes_recorded_since() == TEN


def test_a_step_of_a_node_done_twice_changes_nothing(store):
    steps = [
        Begin(a_life()),
        Amend(a_life(kind="dgx-2")),
        End(("n1", TEN), TEN + HOUR),
        Begin(a_life(start=TEN + HOUR, seen=TEN + HOUR)),
    ]
    for _ in range(2):
        for step in steps:
            store.apply_nodes([step], now=TEN)
    ended = replace(a_life(kind="dgx-2", end=TEN + HOUR), last_seen_at=TEN + HOUR)
    assert store.every_life() == [ended, a_life(start=TEN + HOUR, seen=TEN + HOUR)]
    store.apply_nodes([Resume(("n1", TEN))], now=TEN)
    assert [life.ended_at for life in store.every_life()] == [None, None]


def test_a_nodes_heartbeat_moves_forward_only_and_only_while_it_is_there(store):
    store.apply_nodes([Begin(a_life("n1")), Begin(a_life("n2", end=TEN))], now=TEN)
    store.apply_nodes([], seen=["n1", "n2"], now=TEN + HOUR)
    store.apply_nodes([], seen=["n1", "n2"], now=TEN - HOUR)
    assert [life.last_seen_at for life in store.every_life()] == [TEN + HOUR, TEN]


def test_a_window_has_the_nodes_that_overlap_it_and_what_ended_long_ago_is_forgotten(store):
    store.apply_nodes([Begin(a_life("n1", end=TEN + HOUR)), Begin(a_life("n2"))], now=TEN)
    assert [life.node_uid for life in store.lives(TEN + HOUR, TEN + 2 * HOUR)] == ["n2"]
    assert [life.node_uid for life in store.lives(TEN - HOUR, TEN)] == []
    store.forget(TEN + 2 * HOUR)
    assert [life.node_uid for life in store.every_life()] == ["n2"]


def test_pods_that_only_cost_money_are_left_out_unless_every_pod_is_asked_for(store):
    pod = replace(an_interval("cpu", end=TEN + HOUR, gpus=0), run="", part_of="workspace/lab", storage_bytes=2**30)
    step = replace(an_interval("step", end=TEN + HOUR, gpus=0), run="", workflow="train")
    gpu = replace(
        an_interval("gpu", end=TEN + HOUR), run="", gpu_counts=(("nvidia.com/gpu", 2),), reserved_for="a/b"
    )
    store.apply([Open(interval) for interval in (pod, step, gpu)])
    assert {interval.pod_uid for interval in store.overlapping(TEN, TEN + HOUR)} == {"step", "gpu"}
    assert {interval.pod_uid for interval in store.ended(TEN, limit=9)} == {"step", "gpu"}
    assert {interval.pod_uid: interval for interval in store.everything()} == {
        "cpu": pod,
        "step": step,
        "gpu": gpu,
    }
    everything = {interval.pod_uid: interval for interval in store.overlapping(TEN, TEN + HOUR, every_pod=True)}
    assert everything == {"cpu": pod, "step": step, "gpu": gpu}
    store.forget(TEN + 2 * HOUR)
    store.apply([Open(replace(pod, storage_bytes=0, part_of=""))])
    assert store.everything() == [replace(pod, storage_bytes=0, part_of="")]
