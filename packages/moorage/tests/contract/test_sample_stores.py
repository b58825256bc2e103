"""The history of what pods use: one suite for SQLite and PostgreSQL."""

from __future__ import annotations

import os
import random
from contextlib import closing, suppress
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.decide.usage.samples import PodUse, Point, Sum, Tally, added, by_pod, floor, newest_of, tally_of
from moorage.sql.opening import is_postgres
from moorage.usage.samples import Retention, SampleStore
from moorage_kube.errors import StorageError
from moorage_testing.postgres import new_database
from moorage_testing.readings import TEN, a_reading, at_slot

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def store(database):
    sample_store = SampleStore(database)
    yield sample_store
    sample_store.close()


def total(store, uid="u1"):
    uses = store.use_of(uid)
    return uses[uid].tally if uid in uses else Tally()


def test_the_newest_reading_of_each_pod_is_read_back_as_it_was_added(store):
    old = a_reading("u1", at=TEN, use=(1.0,))
    new = [
        a_reading("u1", at=at_slot(1), use=(50.5, 0.0)),
        a_reading("u2", cpu=None, memory=None, owner="Zoë; DROP"),
    ]
    assert store.add([*new, old]) == 3
    store.add([old])
    assert store.latest() == {"u1": new[0], "u2": new[1]}
    assert store.latest(["u2", "none"]) == {"u2": new[1]}
    assert store.latest(since=at_slot(1)) == {"u1": new[0]}


def test_a_reading_added_twice_changes_nothing(store):
    some = [a_reading(at=at_slot(number), use=(float(number),)) for number in range(5)]
    store.add(some)
    before = (store.points("u1", TEN, TEN + DAY, 30), store.use_of("u1"), store.latest())
    assert store.add(reversed(some)) == 0
    assert store.add([a_reading(at=TEN + timedelta(seconds=5), use=(9.0,))]) == 1  # newer, in the first slot
    store.add(some)
    (first, *rest), use, latest = store.points("u1", TEN, TEN + DAY, 30), store.use_of("u1"), store.latest()
    assert first.tally.gpu_utilisation == 9.0
    assert rest == before[0][1:]
    assert use["u1"].tally.slots == 5
    assert latest == before[2]


def test_windows_without_a_reading_have_no_point(store):
    store.add([a_reading(at=at_slot(0)), a_reading(at=at_slot(25))])
    tally = tally_of(a_reading())
    points = {step: store.points("u1", TEN, TEN + HOUR, step) for step in (30, 300, 3600)}
    assert points[300] == [
        Point(pod_uid="u1", start=at_slot(number), length=5 * MINUTE, tally=tally) for number in (0, 20)
    ]
    assert [point.start for point in points[30]] == [at_slot(0), at_slot(25)]
    assert points[3600] == [Point(pod_uid="u1", start=TEN, length=HOUR, tally=added([tally, tally]))]
    store.downsample(TEN + 2 * HOUR)
    assert {step: store.points("u1", TEN, TEN + HOUR, step) for step in (30, 300, 3600)} == points


def test_the_use_of_a_pod_is_known_over_its_life_and_over_hours(store):
    for number in range(360):  # three hours
        store.add([a_reading(at=at_slot(number), cpu=number, use=(float(number % 100),))])
    store.downsample(at_slot(360))
    assert store.use_of(["u1", "none"]) == {
        "u1": PodUse(
            pod_uid="u1", first=TEN, last=at_slot(359), owner="ada", namespace="lab",
            tally=added(tally_of(a_reading(cpu=n, use=(float(n % 100),))) for n in range(360)),
        )
    }  # fmt: skip
    middle = store.use_of("u1", since=TEN + HOUR, until=TEN + 2 * HOUR)["u1"].tally
    assert (middle.seconds, middle.cpu_peak, middle.cpu_sum) == (3600, 239, sum(range(120, 240)))
    assert store.use_of("u1", since=TEN + DAY) == {}


def test_sums_over_all_pods_are_those_of_their_owners(store):
    for number in range(150):
        store.add(
            [
                a_reading(f"u{pod}", at=at_slot(number), use=(float(pod),), owner=("ada", "bob", "")[pod % 3])
                for pod in range(7)
            ]
        )
    store.downsample(at_slot(150))
    sums = store.sums(TEN, TEN + DAY, 3600)
    assert [(each.start, each.tally.gpu_utilisation, each.tally.slots) for each in sums] == [
        (TEN, 3.0, 840), (TEN + HOUR, 3.0, 210),
    ]  # fmt: skip
    owners = store.sums(TEN, TEN + DAY, 86400, by_owner=True)
    start = floor(TEN, 86400)
    assert [(each.start, each.length, each.owner) for each in owners] == [
        (start, DAY, owner) for owner in ("", "ada", "bob")
    ]
    assert added(each.tally for each in owners) == added(each.tally for each in sums)
    assert store.sums(TEN, TEN + DAY, 86400) == [
        Sum(start=start, length=DAY, owner="", tally=added(each.tally for each in sums))
    ]


def test_each_level_is_kept_for_its_time(database):
    retention = Retention(slots=HOUR, windows=6 * HOUR, hours=2 * DAY)
    store = SampleStore(database, retention=retention)
    for hour in range(24):
        store.add([a_reading(at=TEN + hour * HOUR + MINUTE, use=(float(hour),))])
        store.downsample(TEN + hour * HOUR + 30 * MINUTE)
    now = TEN + 24 * HOUR
    store.downsample(now)
    assert total(store).slots == 24
    lengths = [point.length for point in store.points("u1", TEN, now, 30)]
    assert lengths == [HOUR] * 18 + [5 * MINUTE] * 5 + [timedelta(seconds=30)]
    store.downsample(now + HOUR + 2 * DAY)
    assert total(store) == Tally()
    assert store.latest() == {}
    store.add([a_reading("u9", at=now + 3 * DAY)])  # its number may have been another's
    assert total(store, "u9").slots == 1
    assert total(store) == Tally()
    store.close()


def test_a_reading_that_comes_too_late_is_left_out(store):
    store.add([a_reading(at=at_slot(0)), a_reading(at=at_slot(15))])
    assert store.downsample(at_slot(20)) == 1  # the first five minutes
    assert store.add([a_reading(at=at_slot(3))]) == 0
    assert store.add([a_reading(at=at_slot(14))]) == 1
    assert total(store).slots == 3


def test_an_outage_is_a_gap_and_nothing_before_it_is_lost(database):
    store = SampleStore(database)
    store.add([a_reading(at=at_slot(number)) for number in range(130)])
    store.close()
    store = SampleStore(database)  # three days later
    later = TEN + 3 * DAY
    store.downsample(later)
    store.add([a_reading(at=later)])
    store.downsample(later + HOUR)
    points = store.points("u1", TEN, later + HOUR, 3600)
    assert [(point.start, point.tally.slots) for point in points] == [(TEN, 120), (TEN + HOUR, 10), (later, 1)]
    store.close()


def test_a_clock_that_ran_ahead_stops_no_history(store):
    store.add([a_reading(at=at_slot(0)), a_reading(at=TEN + 6 * HOUR)])
    store.downsample(TEN + 8 * HOUR)
    assert store.add([a_reading(at=at_slot(100))]) == 0
    store.downsample(at_slot(100))
    assert store.add([a_reading(at=at_slot(101))]) == 1
    assert store.add([a_reading(at=TEN + 6 * HOUR)]) == 0  # it is there, not packed any more
    store.downsample(TEN + 5 * HOUR)
    assert total(store).slots == 3
    store.downsample(TEN + 7 * HOUR + 5 * MINUTE)
    assert total(store).slots == 3
    assert [each.tally.slots for each in store.sums(TEN, TEN + DAY, 3600)] == [2, 1]
    for step in (30, 300, 3600):
        assert sum(each.tally.slots for each in store.points("u1", TEN, TEN + DAY, step)) == 3


def test_many_pods_can_be_asked_for_at_once(store):
    uids = [f"u{number}" for number in range(450)]
    store.add([a_reading(uid) for uid in uids])
    store.downsample(TEN + 2 * HOUR)
    assert len(store.points([*uids, "none"], TEN, TEN + HOUR, 300)) == 450
    assert len(store.use_of(uids)) == len(store.latest(uids)) == 450
    slots = [a_reading(uid, at=at_slot(280), use=(5.0,)) for uid in uids]
    store.add(slots)
    use = Tally(slots=2, gpu_count=2, gpu_sum=550)
    assert store.gpu_use_of([*uids, "none"], since=TEN, until=TEN + DAY) == dict.fromkeys(uids, use)


def test_a_batch_that_fails_leaves_nothing_behind(store):
    def broken():
        yield a_reading("u1")
        raise RuntimeError

    with suppress(RuntimeError):
        store.add(broken())
    assert store.latest() == {}
    assert store.add([a_reading("u1")]) == 1


UIDS = ("u1", "u2", "u3")
slots = st.lists(
    st.tuples(st.sampled_from(UIDS), st.integers(0, 700), st.integers(0, 29), st.integers(0, 100)),
    max_size=40,
)


class Cut(Exception):
    """The process ends here."""


class CutStore(SampleStore):
    """Ends in the middle of a step, when it is told to."""

    left = 10**9

    def _mark(self, before, after):
        super()._mark(before, after)
        self.left -= 1
        if self.left < 0:
            raise Cut


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(slots, st.lists(st.integers(0, 3), min_size=8, max_size=8), st.integers(0, 2**16))
def test_thinning_out_keeps_every_sum_wherever_it_is_cut(request, tmp_path, database, rows, cuts, seed):
    chance = random.Random(seed)
    some = [
        a_reading(uid, at=at_slot(slot) + timedelta(seconds=second), use=(float(use),), cpu=use)
        for uid, slot, second, use in rows
    ]
    counted = [(uid, reading.at, tally_of(reading)) for (_, uid), reading in newest_of(some).items()]

    def want(until):
        before = [(uid, tally) for uid, at, tally in counted if at < until]
        return {uid: added(tally for name, tally in before if name == uid) for uid, _ in before}

    place = (
        new_database(request.getfixturevalue("postgres_server").url)
        if is_postgres(database)
        else tmp_path / f"{os.urandom(4).hex()}.db"
    )
    for hour, cut in enumerate(cuts):  # readings come in batches, some of them again, with a kill now and then
        begin, end = TEN + hour * HOUR, TEN + (hour + 1) * HOUR
        batch = [reading for reading in some if begin <= reading.at < end]
        chance.shuffle(batch)
        with closing(CutStore(place)) as store:
            store.add(batch)
            store.add(batch[: len(batch) // 2])
            store.left = cut
            with suppress(Cut):
                store.downsample(end)
        with closing(SampleStore(place)) as store:
            assert {uid: use.tally for uid, use in store.use_of(UIDS).items()} == want(end)
            assert store.gpu_use_of(UIDS, since=TEN, until=end) == {
                uid: Tally(slots=tally.slots, gpu_count=tally.gpu_count, gpu_sum=tally.gpu_sum)
                for uid, tally in want(end).items()
            }
    with closing(SampleStore(place)) as store:
        store.downsample(TEN + 10 * HOUR)
        for step in (30, 300, 3600, 86400):
            grouped = by_pod(store.points(UIDS, TEN, TEN + DAY, step))
            assert {uid: added(point.tally for point in points) for uid, points in grouped.items()} == want(
                TEN + DAY
            )
            for by_owner in (False, True):
                assert added(each.tally for each in store.sums(TEN, TEN + DAY, step, by_owner=by_owner)) == added(
                    tally for _, _, tally in counted
                )


def test_a_closed_store_says_so(store):
    store.close()
    with pytest.raises(StorageError, match="is closed"):
        store.latest()
