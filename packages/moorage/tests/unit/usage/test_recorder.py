from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.usage.intervals import Open, stepped
from moorage.model.retention import USAGE_DAYS
from moorage.usage.recorder import HEARTBEAT_SECONDS, Recorder, Seen, plan
from moorage.usage.store import UsageStore
from moorage_kube.clock import rfc3339
from moorage_kube.errors import StorageError
from moorage_kube.informer import Informer
from moorage_kube.resources import NODES, PODS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.testing.examples import examples
from moorage_kube.testing.waiting import soon
from moorage_local.testing.fakeapi import FakeApi

MINUTE = timedelta(minutes=1)


def a_pod(uid="u1", *, phase="Running", start=NOON, end=None, gpus=1, deleted=None):
    status = {"phase": phase}
    if start is not None:
        status["startTime"] = rfc3339(start)
    if end is not None:
        status["containerStatuses"] = [{"state": {"terminated": {"finishedAt": rfc3339(end)}}}]
    meta = {"namespace": "lab", "name": f"pod-{uid}", "uid": uid, "annotations": {"moorage.dev/owner": "ada"}}
    if deleted is not None:
        meta["deletionTimestamp"] = rfc3339(deleted)
    limits = {"nvidia.com/gpu": str(gpus)}
    return {
        "metadata": meta,
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": limits}}]},
        "status": status,
    }


def settle(known, **more):
    """Plan and do, as a store does."""
    seen = Seen(known=known, gpu_types={"n1": "a100"}, **more)
    steps = plan(seen)
    for step in steps:
        known = stepped(known, step)
    assert plan(replace(seen, known=known)) == ()
    return known


# -- the plan --------------------------------------------------------------------------------------------


def test_a_pod_that_came_and_went_between_two_looks_is_one_closed_interval():
    known = settle({}, pods=[], deleted={"u1": (a_pod(), NOON + MINUTE)}, now=NOON + 2 * MINUTE)
    assert [(one.started_at, one.ended_at) for one in known.values()] == [(NOON, NOON + MINUTE)]


def test_a_pod_that_vanished_while_nobody_watched_ends_when_it_was_last_seen():
    known = settle({}, pods=[a_pod()], now=NOON + MINUTE)
    known = settle(known, pods=[], now=NOON + 99 * MINUTE)
    assert known["u1"].ended_at == NOON + MINUTE


def test_a_pod_taken_for_gone_that_is_back_is_open_again():
    known = settle({}, pods=[a_pod()], now=NOON + MINUTE)
    known = settle(known, pods=[], now=NOON + 2 * MINUTE)
    known = settle(known, pods=[a_pod()], now=NOON + 3 * MINUTE)
    assert known["u1"].ended_at is None


@dataclass(frozen=True)
class Life:
    """A pod's true life, in minutes after noon. `cleaned` None: the object stays."""

    start: int
    run: int
    cleaned: int | None


lives = st.lists(
    st.builds(Life, st.integers(0, 30), st.integers(1, 30), st.one_of(st.none(), st.integers(0, 20))),
    min_size=1,
    max_size=5,
)
looks = st.lists(st.tuples(st.integers(1, 15), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12)


def as_seen(lives, minute):
    """The pods that the API has at that minute."""
    pods = []
    for at, life in enumerate(lives):
        end = life.start + life.run
        if minute < life.start or (life.cleaned is not None and minute >= end + life.cleaned):
            continue
        over = minute >= end
        pods.append(
            a_pod(
                f"u{at}",
                phase="Succeeded" if over else "Running",
                start=NOON + life.start * MINUTE,
                end=NOON + end * MINUTE if over else None,
            )
        )
    return pods


@settings(max_examples=examples(50, full=200))
@given(lives, looks)
def test_a_recorder_killed_between_any_two_steps_counts_nothing_twice_and_never_too_much(lives, looks):
    """Each look is a recorder's pass at some minute; `killed` ones do only the first `kept` steps."""
    known, minute = {}, 0
    for gap, killed, kept in looks:
        minute += gap
        now = NOON + minute * MINUTE
        pods = as_seen(lives, minute)
        steps = plan(Seen(known=known, pods=pods, gpu_types={}, now=now))
        for step in steps[:kept] if killed else steps:
            known = stepped(known, step)
        if not killed:
            alive = {pod["metadata"]["uid"] for pod in pods}
            known = {
                uid: replace(one, last_seen_at=now) if uid in alive and one.ended_at is None else one
                for uid, one in known.items()
            }
    # the last look is a whole one, long after all
    end = NOON + 1000 * MINUTE
    known = settle(known, pods=as_seen(lives, 1000), now=end)
    for at, life in enumerate(lives):
        one = known.get(f"u{at}")
        if life.cleaned is None:
            assert one is not None  # what the API still shows is never missed
        if one is None:
            continue
        assert one.started_at == NOON + life.start * MINUTE
        assert one.ended_at is not None
        assert one.ended_at <= NOON + (life.start + life.run) * MINUTE  # never too much
        if life.cleaned is None:
            assert one.ended_at == NOON + (life.start + life.run) * MINUTE  # and exact where it can be
    assert len(known) <= len(lives)


@given(lives, st.integers(0, 60), st.data())
def test_a_half_done_pass_is_finished_by_the_next(lives, minute, data):
    now = NOON + minute * MINUTE
    seen = Seen(known={}, pods=as_seen(lives, minute), gpu_types={}, now=now)
    whole, part = {}, {}
    steps = plan(seen)
    for step in steps:
        whole = stepped(whole, step)
    for step in steps[: data.draw(st.integers(0, len(steps)))]:
        part = stepped(part, step)
    for step in plan(replace(seen, known=part)):
        part = stepped(part, step)
    assert part == whole


# -- the loop --------------------------------------------------------------------------------------------


@pytest.fixture
def anyio_backend():
    return "asyncio"


class World:
    """A recorder over a fake API and a real store."""

    def __init__(self, path):
        self.api = FakeApi()
        self.clock = FakeClock()
        self.path = path
        self.store = UsageStore(path)
        self.api.put(NODES, {"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "a100"}}})

    @contextlib.asynccontextmanager
    async def recording(self):
        pods, nodes = Informer(self.api, PODS), Informer(self.api, NODES)
        recorder = Recorder(self.store, pods=pods, nodes=nodes, clock=self.clock)
        tasks = [asyncio.create_task(work()) for work in (pods.run, nodes.run, recorder.run)]
        try:
            yield recorder
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, check, what):
        return await soon(what, lambda: check({row.pod_uid: row for row in self.store.known(["u1", "u2"])}))


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "usage.db")
    yield made
    made.store.close()


@pytest.mark.anyio
async def test_a_running_pod_is_opened_and_closed_with_its_containers_end(world):
    async with world.recording():
        world.api.put(PODS, a_pod(phase="Pending", start=None))
        world.api.put(PODS, a_pod())
        opened = await world.until(lambda known: known.get("u1"), "open")
        assert (opened.gpu_type, opened.owner, opened.gpus, opened.ended_at) == ("a100", "ada", 1, None)
        world.clock.advance(600)
        world.api.put(PODS, a_pod(phase="Succeeded", end=NOON + 5 * MINUTE))
        closed = await world.until(lambda known: known["u1"].ended_at, "closed")
        assert closed == NOON + 5 * MINUTE


@pytest.mark.anyio
async def test_a_deleted_pod_is_closed_at_the_time_it_was_seen_to_go(world):
    async with world.recording():
        world.api.put(PODS, a_pod())
        await world.until(lambda known: known.get("u1"), "open")
        world.clock.advance(60)
        world.api.remove(PODS, "pod-u1", "lab")
        assert await world.until(lambda known: known["u1"].ended_at, "closed") == NOON + MINUTE


@pytest.mark.anyio
async def test_a_name_taken_by_another_pod_is_two_intervals(world):
    async with world.recording():
        world.api.put(PODS, a_pod())
        await world.until(lambda known: known.get("u1"), "open")
        world.clock.advance(60)
        other = a_pod("u2", start=NOON + MINUTE)
        other["metadata"]["name"] = "pod-u1"
        world.api.put(PODS, other)
        known = await world.until(lambda known: "u2" in known and known, "second")
        assert known["u1"].ended_at == NOON + MINUTE
        assert known["u2"].ended_at is None


@pytest.mark.anyio
async def test_what_ended_long_ago_is_kept_no_longer(world):
    async with world.recording():
        world.api.put(PODS, a_pod(phase="Succeeded", end=NOON + MINUTE))
        world.api.put(PODS, a_pod("u2"))
        await world.until(lambda known: known.keys() == {"u1", "u2"}, "both")
        world.api.remove(PODS, "pod-u1", "lab")
        world.clock.advance(timedelta(days=USAGE_DAYS - 1))
        world.api.put(PODS, a_pod("u2"))

        def seen_again(known):
            world.clock.advance(HEARTBEAT_SECONDS)
            return known["u2"].last_seen_at > NOON + timedelta(days=USAGE_DAYS - 1) and known

        assert (await world.until(seen_again, "a look a day before")).keys() == {"u1", "u2"}
        world.clock.advance(timedelta(days=2))

        def forgotten(known):
            world.clock.advance(HEARTBEAT_SECONDS)
            return "u1" not in known and known

        assert (await world.until(forgotten, "the end of u1's record")).keys() == {"u2"}


@pytest.mark.anyio
async def test_a_heartbeat_marks_what_is_still_there(world):
    async with world.recording():
        world.api.put(PODS, a_pod())
        await world.until(lambda known: known.get("u1"), "open")

        def beaten(known):
            world.clock.advance(HEARTBEAT_SECONDS)
            return known["u1"].last_seen_at >= NOON + timedelta(seconds=HEARTBEAT_SECONDS)

        await world.until(beaten, "heartbeat")


@pytest.mark.anyio
async def test_a_heartbeat_notices_a_pod_that_nobody_saw_going(world):
    async with world.recording():
        world.api.put(PODS, a_pod("u1"))
        (interval,) = (await world.until(lambda known: known, "open")).values()
        world.store.apply([Open(replace(interval, pod_uid="u2"))])

        def closed(known):
            world.clock.advance(HEARTBEAT_SECONDS)
            return known["u2"].ended_at and known

        known = await world.until(closed, "closed")
        assert known["u2"].ended_at == interval.last_seen_at
        assert known["u1"].ended_at is None


@pytest.mark.anyio
async def test_after_being_away_what_vanished_is_closed_and_what_stayed_is_not_counted_twice(world):
    async with world.recording():
        world.api.put(PODS, a_pod("u1"))
        world.api.put(PODS, a_pod("u2"))
        await world.until(lambda known: len(known) == 2, "open")
    world.api.remove(PODS, "pod-u1", "lab")
    world.clock.advance(3600)
    async with world.recording():
        known = await world.until(lambda known: known["u1"].ended_at and known, "closed")
        assert known["u1"].ended_at == known["u1"].last_seen_at < NOON + MINUTE
        assert known["u2"].ended_at is None


@pytest.mark.anyio
async def test_a_store_that_fails_loses_nothing_once_it_works_again(world, caplog):
    async with world.recording() as recorder:
        apply, calls = world.store.apply, []

        def failing(steps, **more):
            calls.append(steps)
            if len(calls) <= 2:
                raise StorageError("the disk is full")
            apply(steps, **more)

        recorder._store = type(
            "Store",
            (),
            {
                "apply": staticmethod(failing),
                "known": world.store.known,
                "open_intervals": world.store.open_intervals,
                "open_uids": world.store.open_uids,
                "open_lives": world.store.open_lives,
                "lives_of": world.store.lives_of,
                "apply_nodes": world.store.apply_nodes,
            },
        )()
        world.api.put(PODS, a_pod("u1"))

        def nudged(known):
            world.clock.advance(HEARTBEAT_SECONDS)
            return "u1" in known

        await world.until(nudged, "written in the end")
    assert all(isinstance(step, Open) for steps in calls for step in steps)
    assert [record.message for record in caplog.records] == ["use of GPUs is not recorded"]


def a_node(uid="n-1", *, name="n2", kind="dgx"):
    labels = {"node.kubernetes.io/instance-type": kind, "nvidia.com/gpu.product": "a100"}
    amounts = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
    return {
        "metadata": {"name": name, "uid": uid, "labels": labels, "creationTimestamp": rfc3339(NOON)},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


async def until_lives(world, check):
    def probe():
        return check([life for life in world.store.every_life() if life.node == "n2"])

    return await soon("lives of n2", probe, tick=lambda: world.clock.advance(1))


@pytest.mark.anyio
async def test_nodes_are_recorded_from_their_creation_to_the_moment_they_go_over_a_restart(world):
    async with world.recording():
        world.api.put(NODES, a_node())
        (life,) = await until_lives(world, lambda lives: lives)
        assert (life.started_at, life.ended_at, life.instance_type, life.gpus) == (NOON, None, "dgx", 8)
    world.clock.advance(3600)
    async with world.recording():
        world.api.put(NODES, a_node() | {"spec": {"unschedulable": True}})  # the same as before
        world.api.put(NODES, a_node(kind="dgx-2"))
        first, second = await until_lives(world, lambda lives: len(lives) == 2 and lives)
        assert (first.started_at, first.ended_at, second.instance_type) == (NOON, second.started_at, "dgx-2")
        world.api.remove(NODES, "n2")
        last = await until_lives(world, lambda lives: lives[-1].ended_at)
        assert second.started_at <= last <= world.clock.now()
        ends = [life.ended_at for life in world.store.every_life() if life.node == "n2"]
        assert ends == [second.started_at, last]
