"""The history of GPU use: one suite for SQLite and PostgreSQL."""

from __future__ import annotations

import threading

import pytest

from moorage.decide.usage.intervals import Close, Open, Reopen
from moorage.errors import StorageError
from moorage.testing.intervals import HOUR, TEN, an_interval
from moorage.usage.store import UsageStore


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
