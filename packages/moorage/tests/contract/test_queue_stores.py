"""One suite for the queue on SQLite and on PostgreSQL: what is stored, what survives, what two servers may do."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest

from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import Call, Exchange, MapState, Outcome, Policy, Report, State
from moorage.queue.quota import Quota
from moorage.queue.store import QUEUE, NewItem, Store, open_store
from moorage.sql.migrations import Version, check_readable
from moorage.sql.opening import open_database
from moorage_kube.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    NotReady,
    QuotaExceeded,
    StorageError,
    UsageError,
)
from moorage_kube.testing.waiting import wait_until
from moorage_testing.postgres import new_database, throwaway_postgres

NOON = 1_700_000_000_000
GIB = 1 << 30


@pytest.fixture(scope="module")
def postgres():
    try:
        with throwaway_postgres() as server:
            yield server
    except NotReady as error:
        pytest.skip(f"{error.message}: {error.hint}")


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request, tmp_path):
    """A function that opens one more connection to the same, fresh database."""
    stores = []
    if request.param == "sqlite":
        where = tmp_path / "queue.db"
    else:
        where = new_database(request.getfixturevalue("postgres").url)

    def make(kind=Store):
        stores.append(kind(open_database(where, QUEUE)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_a_namespace_takes_no_more_than_its_quota_and_what_runs_is_kept(opened):
    store = opened()
    store._quota = Quota(maps=2, items=5, bytes=2000, output_bytes=0)
    made = [a_named_map(store, name) for name in ("a", "b")]
    with pytest.raises(QuotaExceeded, match="lab has 2 maps; at most 2"):
        a_named_map(store, "c")
    assert a_named_map(store, "a").map.id == made[0].map.id  # asked again: it is there
    a_named_map(store, "c", namespace="other")
    values = [NewItem(msgspec.Raw(b"1")) for _ in range(4)]
    assert store.add_items(made[0].map.id, values, first=0) == (0, 4)
    with pytest.raises(QuotaExceeded, match="have 4 items; 2 more exceed the limit of 5"):
        store.add_items(made[1].map.id, values[:2], first=0)
    with pytest.raises(QuotaExceeded, match="have 804 bytes; 1,802 more exceed the limit of 2,000"):
        store.add_items(made[1].map.id, [NewItem(msgspec.Raw(b'"' + b"x" * 1600 + b'"'))], first=0)
    assert store.add_items(made[0].map.id, values, first=0) == (0, 0)  # sent again: nothing is new
    store.delete_map(made[0].map.id)
    assert store.add_items(made[1].map.id, values, first=0) == (0, 4)


def a_named_map(store, name, *, namespace="lab"):
    return store.create_map(
        namespace=namespace, name=name, owner="ada", policy=Policy(), request=name, limits={}, priority=0, now=NOON
    )


@pytest.fixture
def store(opened):
    made = opened()
    made.tick(NOON)
    return made


def a_map(store, name="m", items=0, limits=None, closed=False, **policy):
    found = store.create_map(
        namespace="lab",
        name=name,
        owner="ada",
        policy=Policy(**policy),
        request=f"make {name}",
        limits=limits or {},
        priority=0,
        now=NOON,
    )
    if items:
        store.add_items(found.map.id, [an_item(at) for at in range(items)])
    if closed:
        store.change_map(found.map.id, closed=True)
    return found.map.id


def an_item(at, **fields):
    return NewItem(msgspec.Raw(b'{"n":%d}' % at), **fields)


def ask(store, of, session="w", now=NOON, **fields):
    fields.setdefault("held", [])
    (reply,) = store.exchange([Call(of, Exchange(session=session, **fields))], now).replies
    if isinstance(reply, Exception):
        raise reply
    return reply


def pairs(reply):
    return [(item, lease) for item, lease, _ in reply.items]


def done(item, lease, value=b'{"x":1}', **fields):
    return Report(
        item=item, lease=lease, outcome=Outcome.DONE, value=msgspec.Raw(value), **({"seconds": 1.0} | fields)
    )


def counts(store, name="m"):
    return store.find_map("lab", name).map.counts


def test_items_are_leased_with_their_values_answered_and_read_back(store):
    of = a_map(store, items=3, closed=True)
    reply = ask(store, of, request=1, want=1)
    assert [(item, lease, bytes(value)) for item, lease, value in reply.items] == [(0, 1, b'{"n":0}')]
    reply = ask(store, of, request=2, want=10, reports=[done(0, 1, memory=GIB, seconds=0.001)])
    assert (pairs(reply), reply.state) == ([(1, 1), (2, 1)], "running")
    reply = ask(store, of, request=3, reports=[done(1, 1, path="/out/1"), done(2, 1, b'"\xc3\xa9"')])
    assert (reply.state, reply.refused) == ("finished", [])
    views = store.results(of)
    assert [(one.item, one.path) for one in views] == [(0, None), (1, "/out/1"), (2, None)]
    assert [bytes(views[0].value), bytes(views[2].value)] == [b'{"x":1}', b'"\xc3\xa9"']
    assert (views[0].peak_bytes, views[0].seconds) == (GIB, 0.001)
    assert (counts(store).done, counts(store).leases, counts(store).granted) == (3, 0, 3)


def test_requests_told_again_after_a_crash_double_nothing(opened, store):
    of = a_map(store, items=4)
    first = ask(store, of, request=1, want=1)
    other = opened()
    assert pairs(ask(other, of, request=1, want=1)) == pairs(first)
    assert bytes(ask(other, of, request=1, want=1).items[0][2]) == b'{"n":0}'
    second = ask(other, of, request=2, want=1, reports=[done(0, 1)])
    assert ask(store, of, request=2, want=1, reports=[done(0, 1)]) == second
    assert counts(store).granted == 2
    assert len(store.results(of)) == 1


def test_a_silent_session_loses_its_leases_and_a_late_answer_is_refused(store):
    of = a_map(store, items=1, lease_seconds=10)
    ask(store, of, "slow", request=1, want=1)
    for second in range(1, 12):
        store.tick(NOON + second * 1000)
    assert pairs(ask(store, of, "quick", NOON + 12_000, request=1, want=1)) == [(0, 2)]
    assert ask(store, of, "slow", NOON + 13_000, request=2, reports=[done(0, 1)]).refused == [(0, 1)]
    assert ask(store, of, "quick", NOON + 14_000, request=2, reports=[done(0, 2)]).refused == []
    assert (counts(store).lost, counts(store).refused, counts(store).done) == (1, 1, 1)


def test_leases_are_extended_by_the_time_nobody_was_there(opened, store):
    of = a_map(store, items=1, lease_seconds=10)
    ask(store, of, request=1, want=1)
    store.tick(NOON + 1000)
    again = opened()
    again.tick(NOON + 3_600_000)
    assert ask(again, of, now=NOON + 3_601_000, request=2, reports=[done(0, 1)]).refused == []


def test_a_session_that_begins_after_a_long_rest_gets_no_extra_time(opened):
    store = opened()
    store.tick(NOON)
    of = a_map(store, items=1, lease_seconds=10)
    later = NOON + 3_600_000
    store.tick(later)
    ask(store, of, now=later + 100, request=1, want=1)
    again = opened()
    again.tick(later + 2_000)
    for second in range(3, 20):
        again.tick(later + second * 1000)
    assert counts(again).leases == 0


@pytest.mark.parametrize("outcome", ["error", "timeout", "oom"])
def test_failures_keep_their_last_output_whatever_its_bytes(store, outcome):
    of = a_map(store, items=1, retries=0)
    ask(store, of, request=1, want=1)
    output = bytes(range(256)) * 100
    report = Report(item=0, lease=1, outcome=Outcome(outcome), message="it\nbroke", exit=-11, output=output)
    ask(store, of, request=2, reports=[report])
    view, kept = store.get_item(of, 0)
    assert kept == output[-leasing.OUTPUT_BYTES :]
    assert (view.state, view.failure.cause, view.failure.message, view.failure.exit) == (
        "dead",
        outcome,
        "it\nbroke",
        -11,
    )
    assert [one.item for one in store.list_items(of, states=[State.DEAD])] == [0]
    assert store.retry(of) == 1
    assert pairs(ask(store, of, request=3, want=1)) == [(0, 2)]


def test_items_that_users_add_or_retry_are_ready_or_large_by_their_memory(store):
    of = a_map(store, retries=0, memory_bytes=GIB)
    store.add_items(of, [an_item(0), an_item(1, memory=2 * GIB)])
    assert (counts(store).ready, counts(store).large) == (1, 1)
    for session in ("v", "w"):
        ((item, lease),) = pairs(ask(store, of, session, request=1, want=1, memory=2 * GIB))
        ask(store, of, session, request=2, reports=[Report(item=item, lease=lease, outcome=Outcome.ERROR)])
    assert counts(store).dead == 2
    assert store.retry(of) == 2
    assert (counts(store).ready, counts(store).large) == (1, 1)


def test_backed_off_items_come_back_when_their_time_has_come(store):
    of = a_map(store, items=1, backoff_seconds=10)
    ask(store, of, request=1, want=1)
    ask(store, of, request=2, reports=[Report(item=0, lease=1, outcome=Outcome.ERROR)])
    assert counts(store).waiting == 1
    store.tick(NOON + 1000)
    assert pairs(ask(store, of, request=3, want=1)) == []
    assert store.tick(NOON + 13_000).fresh == {of: 1}
    assert pairs(ask(store, of, now=NOON + 13_000, request=4, want=1)) == [(0, 2)]


def test_items_killed_for_memory_wait_for_a_worker_that_has_more(store):
    of = a_map(store, items=2, memory_bytes=GIB, max_memory_bytes=8 * GIB)
    ask(store, of, request=1, want=1, memory=GIB)
    ask(store, of, request=2, reports=[Report(item=0, lease=1, outcome=Outcome.OOM)])
    assert counts(store).large == 1
    assert pairs(ask(store, of, "small", request=1, want=2, memory=GIB)) == [(1, 1)]
    assert pairs(ask(store, of, "large", request=1, want=2, memory=2 * GIB)) == [(0, 2)]


def test_priority_and_length_decide_the_order(store):
    of = a_map(store)
    items = [an_item(0, seconds=1), an_item(1, seconds=9), an_item(2), an_item(3, seconds=1, priority=5)]
    store.add_items(of, items)
    order = [pairs(ask(store, of, f"w{at}", request=1, want=1))[0][0] for at in range(4)]
    assert order == [3, 2, 1, 0]


def test_items_sent_again_are_not_added_again(store):
    of = a_map(store)
    items = [an_item(at) for at in range(5)]
    assert store.add_items(of, items[:3], first=0) == (0, 3)
    assert store.add_items(of, items, first=0) == (0, 2)
    assert store.add_items(of, items[:1], request="x") == (5, 1)
    assert store.add_items(of, items[:1], request="x") == (5, 0)
    with pytest.raises(UsageError, match="has 6"):
        store.add_items(of, items, first=7)
    store.change_map(of, closed=True)
    assert store.add_items(of, items, first=0) == (0, 0)
    with pytest.raises(Conflict, match="closed"):
        store.add_items(of, items)
    assert counts(store).total == 6


def test_an_open_map_goes_on_when_items_are_added(store):
    of = a_map(store, items=1)
    ask(store, of, request=1, want=1)
    assert ask(store, of, request=2, want=1, reports=[done(0, 1)]).state == "running"
    store.add_items(of, [an_item(1)])
    assert pairs(ask(store, of, request=3, want=1)) == [(1, 1)]
    store.change_map(of, closed=True)
    assert ask(store, of, request=4, reports=[done(1, 1)]).state == "finished"


def test_maps_are_made_once_and_listed(store):
    of = a_map(store)
    assert a_map(store) == of
    with pytest.raises(AlreadyExists):
        store.create_map(
            namespace="lab", name="m", owner="eve", policy=Policy(), request="2", limits={}, priority=0, now=NOON
        )
    with pytest.raises(UsageError, match="mysql"):
        store.create_map(
            namespace="lab",
            name="n",
            owner="ada",
            policy=Policy(limits={"mysql": 1}),
            request="3",
            limits={},
            priority=0,
            now=NOON,
        )
    assert [one.name for one in store.list_maps("lab")] == ["m"]
    assert store.list_maps("other") == []
    assert store.find_uid(store.find_map("lab", "m").uid).name == "m"


def test_a_deleted_map_leaves_nothing_and_its_workers_are_told(store):
    of = a_map(store, items=3)
    ask(store, of, request=1, want=1)
    store.delete_map(of)
    with pytest.raises(NotFound):
        ask(store, of, request=2, reports=[done(0, 1)])
    assert store.find_map("lab", "m") is None
    fresh = a_map(store, items=1)
    assert fresh != of
    assert store.results(fresh) == []
    assert pairs(ask(store, fresh, request=1, want=1)) == [(0, 1)]


@pytest.mark.parametrize("state", [MapState.PAUSED, MapState.CANCELLED])
def test_paused_and_cancelled_maps_take_answers_and_give_nothing(store, state):
    of = a_map(store, items=2)
    ask(store, of, request=1, want=1)
    store.change_map(of, state=state)
    reply = ask(store, of, request=2, want=1, reports=[done(0, 1)])
    assert (reply.state, reply.items, reply.refused) == (state.value, [], [])
    store.change_map(of, state=MapState.RUNNING)
    assert pairs(ask(store, of, request=3, want=1)) == [(1, 1)]


def test_pages_of_items_and_results_meet_without_gap_or_overlap(store):
    of = a_map(store, items=25)
    seen, after = [], -1
    while page := store.list_items(of, after=after, limit=10):
        seen += [one.item for one in page]
        after = page[-1].item
    assert seen == list(range(25))
    assert bytes(store.list_items(of, limit=1)[0].value) == b'{"n":0}'


def test_limits_hold_over_all_maps_and_follow_leases(store):
    one = a_map(store, "one", items=5, limits={"mysql": 2})
    store.change_map(one)
    policy = Policy(limits={"mysql": 1})
    maps = [
        store.create_map(
            namespace="lab",
            name=name,
            owner="ada",
            policy=policy,
            request=name,
            limits={"mysql": 2},
            priority=0,
            now=NOON,
        ).map.id
        for name in ("two", "three")
    ]
    for of in maps:
        store.add_items(of, [an_item(at) for at in range(5)])
    got = [len(ask(store, of, f"w{at}", request=1, want=3).items) for of in maps for at in range(2)]
    assert got == [1, 1, 0, 0]
    assert [(limit.capacity, limit.held) for limit in store.limits()] == [(2, 2)]
    assert pairs(ask(store, maps[0], "w0", request=2, bye=True)) == []
    assert len(ask(store, maps[1], "w9", request=1, want=1).items) == 1
    store.set_limit("mysql", 5)
    assert len(ask(store, maps[1], "w8", request=1, want=1).items) == 1
    assert [(limit.capacity, limit.held) for limit in store.limits()] == [(5, 3)]


def test_limits_are_shared_in_turns_and_no_item_holds_one_for_ever(opened, store):
    """One map takes all tokens and only heartbeats; another waits, on another server too."""
    store._quota = Quota(hold_seconds=3600)
    policy, capacity = Policy(limits={"mysql": 1}), {"mysql": 1}
    greedy, patient = (
        store.create_map(
            namespace=name,
            name=name,
            owner=name,
            policy=policy,
            request="r",
            limits=capacity,
            priority=0,
            now=NOON,
        ).map.id
        for name in ("greedy", "patient")
    )
    for of in (greedy, patient):
        store.add_items(of, [an_item(at) for at in range(3)])
    ((item, lease),) = pairs(ask(store, greedy, request=1, want=1))
    assert pairs(ask(opened(), patient, request=1, want=1)) == []
    reply = ask(store, greedy, request=2, want=1, reports=[done(item, lease)])
    assert pairs(reply) == []  # the other waits longer
    ((item, lease),) = pairs(ask(store, patient, request=2, want=1))
    assert pairs(ask(store, greedy, request=3, want=1)) == []
    later = NOON + 3_600_001
    assert ask(store, patient, now=later, held=[(item, lease)]).lost == []  # the other does not ask any more
    assert pairs(ask(store, greedy, request=4, want=1, now=later)) == []
    assert ask(store, patient, now=later, held=[(item, lease)]).lost == [(item, lease)]
    assert len(pairs(ask(store, greedy, request=5, want=1, now=later))) == 1
    left = store.find_map("patient", "patient").map.counts
    assert (left.ready, left.leases) == (3, 0)


def test_what_is_not_understood_changes_nothing(store):
    of = a_map(store, items=2)
    ask(store, of, request=1, want=1)
    before = counts(store)
    with pytest.raises(NotFound):
        ask(store, 10_000, request=1, want=1)
    reply = ask(store, of, "stranger", request=0, reports=[done(0, 7), done(99, 1), done(1, 0)])
    assert reply.refused == [(0, 7), (99, 1), (1, 0)]
    assert counts(store).done == before.done == 0


def test_a_failed_transaction_leaves_all_as_it_was(opened):
    class Failing(Store):
        fails = False

        def _count(self, changed):
            if self.fails:
                raise ZeroDivisionError
            super()._count(changed)

    store = opened(Failing)
    store.tick(NOON)
    of = a_map(store, items=2)
    ask(store, of, request=1, want=1)
    before = counts(store)
    store.fails = True
    with pytest.raises(ZeroDivisionError):
        ask(store, of, request=2, want=1, reports=[done(0, 1)])
    store.fails = False
    assert counts(store) == before
    assert store.results(of) == []
    assert ask(store, of, request=2, want=1, reports=[done(0, 1)]).refused == []


def test_the_database_itself_refuses_a_second_result(store):
    of = a_map(store, items=1)
    ask(store, of, request=1, want=1)
    ask(store, of, request=2, reports=[done(0, 1)])
    with pytest.raises(StorageError), store._db.transaction():
        store._db.run("INSERT INTO results (map, seq, lease, at, value) VALUES (?, 0, 2, 0, ?)", of, b"2")


def test_a_hundred_sessions_in_one_transaction_share_without_overlap(store):
    of = a_map(store, items=250, closed=True)
    held = {}
    for turn in range(1, 5):
        calls = [
            Call(
                of,
                Exchange(
                    session=f"w{at}",
                    request=turn,
                    held=[],
                    want=1,
                    reports=[done(item, lease, seconds=0.0) for item, lease in held.get(at, [])],
                ),
            )
            for at in range(100)
        ]
        held = {at: pairs(reply) for at, reply in enumerate(store.exchange(calls, NOON + turn).replies)}
        given = [item for some in held.values() for item, _ in some]
        assert len(given) == len(set(given))
    assert counts(store).done == 250
    assert [one.item for one in store.results(of)] == list(range(250))


def test_two_servers_on_one_database_lose_nothing_and_give_nothing_twice(opened, store):
    """Each in a thread of its own, with connections of their own, at the same time."""
    of = a_map(store, items=400, closed=True)
    stores = [store, opened()]
    errors, results = [], []

    def serve(number):
        mine, rng = stores[number], random.Random(number)
        held, turn = [], 0
        try:
            while True:
                turn += 1
                asked = Exchange(
                    session=f"s{number}",
                    request=turn,
                    held=[],
                    want=rng.randint(1, 7),
                    reports=[done(item, lease, seconds=0.0) for item, lease in held],
                )
                try:
                    (reply,) = mine.exchange([Call(of, asked)], NOON + turn).replies
                except StorageError:  # a deadlock: ask again
                    turn -= 1
                    continue
                assert reply.refused == []
                results.extend(held)
                held = pairs(reply)
                if not held and reply.state == "finished":
                    return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert errors == []
    assert sorted(results) == [(at, 1) for at in range(400)]
    assert (counts(store).done, counts(store).granted, counts(store).leases) == (400, 400, 0)


def dead(item, lease):
    return Report(item=item, lease=lease, outcome=Outcome.ERROR, message="x")


ADDING = (  # the locks of `add_items`, one after the other
    "SELECT 1 FROM maps WHERE id = %s FOR UPDATE",
    "UPDATE maps SET total = total WHERE id = %s",
    "UPDATE map_sizes SET bytes = bytes WHERE map = %s",
)
ANSWERING = (  # those of `exchange`
    "SELECT 1 FROM sessions WHERE map = %s FOR UPDATE",
    "SELECT 1 FROM items WHERE map = %s ORDER BY seq FOR UPDATE",
    "UPDATE maps SET total = total WHERE id = %s",
    "UPDATE map_sizes SET bytes = bytes WHERE map = %s",
)


COUNTING = ("SELECT 1 FROM maps WHERE id = %s FOR UPDATE", *ANSWERING)  # and those where tokens are counted


def answer(store, of):
    ask(store, of, request=3, reports=[done(0, 1)])


def add(store, of):
    store.add_items(of, [an_item(9)])


@pytest.mark.parametrize(
    ("locks", "first", "then"),
    [
        pytest.param(ADDING, 1, answer, id="added, answered"),
        pytest.param(ANSWERING, 2, Store.retry, id="answered, tried again"),
        pytest.param(ANSWERING, 2, Store.delete_map, id="answered, deleted"),
        pytest.param(ANSWERING, 2, add, id="answered, added"),
        pytest.param(COUNTING, 1, Store.retry, id="counted, tried again"),
        pytest.param(COUNTING, 1, Store.delete_map, id="counted, deleted"),
        pytest.param(COUNTING, 1, add, id="counted, added"),
    ],
)
def test_two_servers_take_the_rows_of_a_map_in_one_order(postgres, locks, first, then):
    """One has begun and holds its first locks; the other waits for it, and never it for the other."""
    import psycopg

    url = new_database(postgres.url)
    with (
        closing(open_store(url)) as store,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(url) as other,
        psycopg.connect(url, autocommit=True) as look,
    ):
        of = a_map(store, items=3, retries=0, rate=1000.0 if locks is COUNTING else None)
        ask(store, of, request=1, want=2)
        ask(store, of, request=2, reports=[dead(1, 1)])
        for lock in locks[:first]:
            other.execute(lock, (of,))
        ours = pool.submit(then, store, of)

        def is_waiting():
            found = look.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
            return found is not None or ours.done()

        wait_until("the other to wait for a lock", is_waiting)
        for lock in locks[first:]:
            other.execute(lock, (of,))
        other.commit()
        ours.result(timeout=180)


def test_a_schema_is_read_by_the_code_that_it_names():
    with pytest.raises(StorageError, match="version 9"):
        check_readable("x", Version(9, 8), known=7)
    check_readable("x", Version(9, 7), known=7)


def test_a_database_of_a_newer_release_is_left_alone(opened, store):
    store._set_meta("schema", "99")
    store._set_meta("readable_by", "98")
    with pytest.raises(StorageError, match="version 99"):
        opened()
    store._set_meta("readable_by", "1")
    opened()


def test_a_restart_of_postgresql_loses_nothing_and_is_over_when_it_is_over(opened, store, request):
    if "postgres" not in request.node.callspec.id:
        pytest.skip("SQLite has no server")
    server = request.getfixturevalue("postgres")
    of = a_map(store, items=2)
    ask(store, of, request=1, want=1)
    server.stop()
    try:
        with pytest.raises(StorageError):
            ask(store, of, request=2, want=1, reports=[done(0, 1)])
        with pytest.raises(StorageError):
            ask(store, of, request=2, want=1, reports=[done(0, 1)])
    finally:
        server.start()
    reply = ask(store, of, request=2, want=1, reports=[done(0, 1)])
    assert (reply.refused, pairs(reply)) == ([], [(1, 1)])
    assert counts(store).done == 1


WRITER = """
import sys, msgspec
from moorage.decide.maps.leasing import Call, Exchange, Outcome, Policy, Report
from moorage.queue.store import open_store
store = open_store(sys.argv[1])
ONE = msgspec.Raw(b"1")
of, turn, held = int(sys.argv[2]), 0, []
store.tick(1)
while True:
    turn += 1
    reports = [Report(item=i, lease=l, outcome=Outcome.DONE, seconds=0.0, value=ONE) for i, l in held]
    asked = Exchange(session=sys.argv[3], request=turn, held=[], want=3, reports=reports)
    (reply,) = store.exchange([Call(of, asked)], 1000 + turn).replies
    print(" ".join(str(report.item) for report in reports), flush=True)
    held = [(item, lease) for item, lease, _ in reply.items]
    if not held:
        break
"""


def test_what_was_acknowledged_survives_a_kill(opened, store):
    """A process that answers is killed with -9 again and again; every answer that it told of is there."""
    of = a_map(store, items=3000, closed=True, lease_seconds=2)
    where = store.name if store.name.endswith(".db") else store._db._url
    told = set()
    for turn in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, where, str(of), f"w{turn}"], stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(20 + turn):
                line = process.stdout.readline()
                told |= {int(one) for one in line.split()}
            process.send_signal(signal.SIGKILL)
            told |= {int(one) for one in process.stdout.read().split()[:-1]}
    kept = {one.item for after in range(-1, 3000, 1000) for one in opened().results(of, after=after)}
    assert told <= kept
    assert counts(store).done == len(kept)
    now = NOON
    store.tick(now)
    for second in range(20):
        store.tick(now + second * 1000)
    assert counts(store).leases == 0
