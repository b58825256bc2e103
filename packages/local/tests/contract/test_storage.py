"""One suite for every `Storage`: what etcd 3 promises, and what a restart keeps."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moorage_kube.errors import Expired, StorageDamaged, StorageError, StorageFull
from moorage_kube.reserve import Reserve
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.examples import examples
from moorage_local.storage import Change, CompareFailed, HistoryLimits, MemoryStorage, Record, Storage
from moorage_local.storage.contract import HOT_EVENTS, TAKE_BYTES, WatchClosed
from moorage_local.storage.memory import Mirror, weight
from moorage_local.storage.sqlite import SqliteStorage

pytestmark = pytest.mark.anyio
DEADLINE_SECONDS = 180


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage = MemoryStorage() if request.param == "memory" else SqliteStorage(tmp_path / "s.db")
    await made.start()
    yield made
    await made.stop()


def value(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


async def test_a_put_is_read_back_with_its_revisions(storage: Storage) -> None:
    first = await storage.put("a/x", value(1))
    second = await storage.put("a/x", value(2))
    assert (first.create_revision, first.mod_revision) == (1, 1)
    assert (second.create_revision, second.mod_revision) == (1, 2)
    assert storage.get("a/x") == second
    assert storage.revision == 2


async def test_a_missing_key_reads_as_none(storage: Storage) -> None:
    assert storage.get("nope") is None
    assert await storage.delete("nope") is None
    assert storage.revision == 0


async def test_a_key_made_anew_gets_a_new_create_revision(storage: Storage) -> None:
    await storage.put("a", value(1))
    await storage.delete("a")
    assert (await storage.put("a", value(2))).create_revision == 3


@pytest.mark.parametrize("expected", [0, 7])
async def test_a_write_is_refused_when_the_key_is_at_another_revision(storage: Storage, expected: int) -> None:
    standing = await storage.put("a", value(1))
    with pytest.raises(CompareFailed) as caught:
        await storage.put("a", value(2), expected=expected)
    assert caught.value.current == standing
    with pytest.raises(CompareFailed):
        await storage.delete("a", expected=7)
    assert storage.get("a") == standing
    assert storage.revision == 1


async def test_a_write_that_expects_nothing_creates(storage: Storage) -> None:
    await storage.put("a", value(1), expected=0)
    with pytest.raises(CompareFailed) as caught:
        await storage.put("b", value(1), expected=3)
    assert caught.value.current is None


async def test_of_many_who_expect_the_same_revision_one_wins(storage: Storage) -> None:
    await storage.put("a", value(0))
    tries = [storage.put("a", value(n), expected=1) for n in range(20)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    won = [one for one in results if not isinstance(one, BaseException)]
    assert len(won) == 1
    assert all(isinstance(one, CompareFailed) for one in results if one is not won[0])
    assert storage.get("a") == won[0]


async def test_revisions_of_concurrent_writes_are_all_different_and_seen_in_order(storage: Storage) -> None:
    watch = storage.watch("", after=0)
    records = await asyncio.gather(*(storage.put(f"k{n}", value(n)) for n in range(200)))
    assert sorted(one.mod_revision for one in records) == list(range(1, 201))
    seen: list[int] = []
    while len(seen) < 200:
        seen += [change.revision for change in await asyncio.wait_for(watch.next(), DEADLINE_SECONDS)]
    assert seen == list(range(1, 201))
    watch.close()


async def test_a_list_is_ordered_by_key_and_holds_the_prefix_only(storage: Storage) -> None:
    for key in ("b/2", "a/1", "b/10", "b/1", "bb/1"):
        await storage.put(key, value(1))
    page = storage.list("b/")
    assert [one.key for one in page.records] == ["b/1", "b/10", "b/2"]
    assert (page.revision, page.remaining) == (5, 0)


async def test_a_list_goes_on_where_it_stopped(storage: Storage) -> None:
    for number in range(5):
        await storage.put(f"a/{number}", value(number))
    first = storage.list("a/", limit=2)
    assert ([one.key for one in first.records], first.remaining) == (["a/0", "a/1"], 3)
    rest = storage.list("a/", after="a/1", limit=9)
    assert [one.key for one in rest.records] == ["a/2", "a/3", "a/4"]


async def test_a_list_of_an_earlier_revision_shows_what_stood_then(storage: Storage) -> None:
    await storage.put("a/1", value(1))
    await storage.put("a/2", value(1))
    then = storage.list("a/")
    await storage.put("a/1", value(2))
    await storage.delete("a/2")
    await storage.put("a/3", value(1))
    again = storage.list("a/", revision=then.revision)
    assert again.records == then.records
    assert again.revision == then.revision
    assert [one.key for one in storage.list("a/", revision=then.revision, after="a/1").records] == ["a/2"]


async def test_a_watch_replays_history_and_goes_on(storage: Storage) -> None:
    first = await storage.put("a/1", value(1))
    second = await storage.put("a/1", value(2))
    await storage.put("b/1", value(1))
    watch = storage.watch("a/", after=1)
    (change,) = await watch.next()
    assert (change.revision, change.before, change.after) == (2, first, second)
    assert watch.caught_up_at() == 3
    await storage.delete("a/1")
    (change,) = await asyncio.wait_for(watch.next(), DEADLINE_SECONDS)
    assert (change.revision, change.before, change.after) == (4, second, None)
    watch.close()


async def test_a_watch_from_a_compacted_revision_is_expired(storage: Storage) -> None:
    for number in range(5):
        await storage.put("a", value(number))
    storage.compact(3)
    assert storage.compacted == 3
    with pytest.raises(Expired):
        storage.watch("a", after=2)
    with pytest.raises(Expired):
        storage.list("a", revision=2)
    watch = storage.watch("a", after=3)
    assert [change.revision for change in await watch.next()] == [4, 5]
    watch.close()


async def test_a_closed_watch_says_so(storage: Storage) -> None:
    watch = storage.watch("", after=0)
    waiting = asyncio.ensure_future(watch.next())
    await asyncio.sleep(0)
    watch.close()
    with pytest.raises(WatchClosed):
        await asyncio.wait_for(waiting, DEADLINE_SECONDS)


async def test_stopping_ends_all_watches(storage: Storage) -> None:
    watch = storage.watch("", after=0)
    waiting = asyncio.ensure_future(watch.next())
    await asyncio.sleep(0)
    await storage.stop()
    with pytest.raises(WatchClosed):
        await asyncio.wait_for(waiting, DEADLINE_SECONDS)


async def test_history_is_bounded_by_number() -> None:
    storage = MemoryStorage(limits=HistoryLimits(events=10))
    for number in range(100):
        await storage.put("a", value(number))
    assert storage.compacted >= 90
    watch = storage.watch("a", after=storage.compacted)
    assert len(await watch.next()) == storage.revision - storage.compacted >= 8


async def test_history_is_bounded_by_age() -> None:
    clock = FakeClock()
    storage = MemoryStorage(limits=HistoryLimits(seconds=300), clock=clock)
    for number in range(1000):
        await storage.put("a", value(number))
        clock.advance(1)
    assert 1000 - 303 <= storage.compacted <= 1000 - 300
    clock.advance(1000)
    await storage.put("a", value(0))
    assert storage.compacted >= 1000


def held(mirror: Mirror) -> int:
    """Bytes of all keys and values that a mirror holds beside what stands now, each counted once."""
    records = {id(record): record for one in mirror.since(mirror.compacted) for record in (one.before, one.after)}
    standing = {id(record) for record in mirror.records.values()}
    return sum(len(one.value) for at, one in records.items() if one is not None and at not in standing)


@settings(max_examples=examples(20, full=50))
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=150),
    limit=st.integers(1000, 20_000),
    keys=st.integers(1, 5),
)
def test_history_is_bounded_by_bytes(sizes: list[int], limit: int, keys: int) -> None:
    clock = FakeClock()
    mirror = Mirror(limits=HistoryLimits(bytes=limit), clock=clock)
    for at, size in enumerate(sizes):
        key = f"a/{at % keys}"
        revision = mirror.revision + 1
        after = Record(key, b"x" * size, revision, revision) if size % 7 else None
        mirror.apply((Change(revision, key, mirror.records.get(key), after),))
        assert held(mirror) <= mirror.history_bytes <= limit
        assert mirror.history_bytes == sum(weight(change) for change in mirror.since(mirror.compacted))


def test_a_mirror_that_is_loaded_anew_has_no_history_of_before() -> None:
    clock = FakeClock()
    mirror = Mirror(limits=HistoryLimits(seconds=300), clock=clock)
    mirror.apply((Change(500, "a", None, Record("a", b"{}", 500, 500)),))
    mirror.load([], 10)
    clock.advance(400)
    mirror.apply((Change(11, "b", None, Record("b", b"{}", 11, 11)),))
    assert (mirror.compacted, [change.revision for change in mirror.since(10)]) == (10, [11])


async def test_ten_thousand_objects_that_come_and_go_leave_no_more_than_the_bound() -> None:
    storage = MemoryStorage(limits=HistoryLimits(bytes=2**20))
    follower = storage.watch("pods/", after=0)
    for number in range(10_000):
        await storage.put(f"pods/{number}", json.dumps({"metadata": {}, "x": "y" * 500}).encode())
        await storage.delete(f"pods/{number}")
        for change in await follower.next():
            assert change.before is None or change.before.obj["x"]  # decoded by those who follow
    mirror = storage._mirror
    assert held(mirror) <= 2**20
    decoded = [one for one in mirror.since(mirror.compacted) if one.before is not None and one.before._obj]
    assert len(decoded) <= HOT_EVENTS


async def test_a_watch_that_stands_still_holds_one_page_and_then_expires() -> None:
    storage = MemoryStorage(limits=HistoryLimits(bytes=8 * TAKE_BYTES))
    frozen = storage.watch("", after=0)
    text = json.dumps({"x": "y" * 10_000}).encode()
    for number in range(300):
        await storage.put(f"a/{number}", text)
    page = await frozen.next()
    assert sum(weight(change) for change in page) <= TAKE_BYTES + 2 * len(text)
    assert [change.revision for change in page] == list(range(1, len(page) + 1))
    for number in range(1000):
        await storage.put(f"b/{number}", text)
    with pytest.raises(Expired):
        await frozen.next()
    with pytest.raises(Expired):
        storage.watch("", after=page[-1].revision)
    assert storage._mirror._watches == set()


async def test_a_watch_whose_keys_are_quiet_outlives_any_number_of_other_changes() -> None:
    storage = MemoryStorage(limits=HistoryLimits(events=10))
    quiet = storage.watch("quiet/", after=0)
    for number in range(100):
        await storage.put("loud/a", value(number))
    assert quiet.caught_up_at() == 100
    await storage.put("quiet/a", value(1))
    assert [change.revision for change in await quiet.next()] == [101]


@settings(max_examples=examples(25, full=100))
@given(data=st.data())
def test_a_watch_hands_out_every_change_once_or_says_that_it_expired(data: st.DataObject) -> None:
    async def play() -> None:
        storage = MemoryStorage(limits=HistoryLimits(events=12))
        watches = [storage.watch(prefix, after=0) for prefix in ("", "a/", "b/")]
        seen: list[list[int]] = [[], [], []]
        made: list[tuple[int, str]] = []
        lost: set[int] = set()
        for _ in range(data.draw(st.integers(0, 60))):
            action = data.draw(st.sampled_from(["put", "put", "put", "take"]))
            if action == "put":
                key = data.draw(st.sampled_from(["a/1", "b/1"]))
                made.append(((await storage.put(key, b"{}")).mod_revision, key))
                continue
            at = data.draw(st.integers(0, 2))
            if at in lost or watches[at].caught_up_at() == storage.revision:
                continue
            try:
                seen[at] += [change.revision for change in await watches[at].next()]
            except Expired:
                lost.add(at)
        for at, prefix in enumerate(("", "a/", "b/")):
            wanted = [revision for revision, key in made if key.startswith(prefix)]
            assert seen[at] == wanted[: len(seen[at])]
            if at not in lost and watches[at].caught_up_at() is not None:
                assert seen[at] == wanted

    asyncio.run(play())


async def test_a_cancelled_writer_leaves_the_key_usable(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "s.db")
    await storage.start()
    task = asyncio.ensure_future(storage.put("a", value(1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await asyncio.wait_for(storage.put("a", value(2)), DEADLINE_SECONDS)
    assert storage.get("a") == record
    await storage.stop()


# --- what a restart keeps


async def test_a_restart_finds_everything_and_goes_on_counting(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    before = SqliteStorage(path)
    await before.start()
    kept = await before.put("a", value(1))
    await before.put("b", value(1))
    await before.delete("b")
    await before.stop()
    after = SqliteStorage(path)
    await after.start()
    assert after.list("").records == [kept]
    assert after.revision == 3
    assert (await after.put("c", value(1))).mod_revision == 4
    await after.stop()


async def test_after_a_restart_old_watches_expire_and_the_newest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    before = SqliteStorage(path)
    await before.start()
    for number in range(3):
        await before.put("a", value(number))
    await before.stop()
    after = SqliteStorage(path)
    await after.start()
    with pytest.raises(Expired):
        after.watch("", after=2)
    watch = after.watch("", after=3)
    await after.put("a", value(9))
    assert [change.revision for change in await asyncio.wait_for(watch.next(), DEADLINE_SECONDS)] == [4]
    await after.stop()


async def test_a_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "s.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StorageError, match="layout 99"):
        await SqliteStorage(path).start()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"not a database, but long enough to be read as the header of one" * 20)
    with pytest.raises(StorageDamaged, match="file is not a database"):
        await SqliteStorage(path).start()


async def test_a_value_that_changed_on_the_disk_is_refused_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    storage = SqliteStorage(path)
    await storage.start()
    await storage.put("pods/a", b'{"spec": "original words"}')
    await storage.stop()
    content = path.read_bytes()
    assert b"original" in content
    path.write_bytes(content.replace(b"original", b"orIginal"))  # every structure of the file stays as it was
    before = path.read_bytes()
    with pytest.raises(StorageDamaged, match="pods/a"):
        await SqliteStorage(path).start()
    assert path.read_bytes() == before


async def test_a_file_that_was_emptied_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    storage = SqliteStorage(path)
    await storage.start()
    await storage.put("a", value(1))
    await storage.stop()
    path.write_bytes(b"")
    with pytest.raises(StorageDamaged, match="is empty"):
        await SqliteStorage(path).start()
    assert path.read_bytes() == b""
    path.unlink()
    with pytest.raises(StorageDamaged, match="is missing"):
        await SqliteStorage(path).start()
    assert not path.exists()


async def test_a_file_of_the_layout_before_is_taken_over(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "s.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(
        "CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,"
        " mod_revision INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);"
        "INSERT INTO state VALUES (1, 7);"
        """INSERT INTO records VALUES ('a', CAST('{"n": 1}' AS BLOB), 2, 5);"""
        "PRAGMA user_version=1;"
    )
    database.close()
    for wanted in (7, 8):
        storage = SqliteStorage(path)
        await storage.start()
        assert storage.revision == wanted
        assert [(one.key, one.value, one.mod_revision) for one in storage.list("a").records] == [
            ("a", value(1), 5)
        ]
        await storage.put("b", value(wanted))
        await storage.stop()


async def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "s.db", max_pages=40)
    await storage.start()
    kept = await storage.put("small", value(1))
    with pytest.raises(StorageFull, match="the disk is full"):
        await storage.put("large", json.dumps({"x": "y" * 1_000_000}).encode())
    assert storage.get("large") is None
    assert storage.list("").records == [kept]
    again = await storage.put("small", value(2), expected=kept.mod_revision)
    await storage.stop()
    reread = SqliteStorage(tmp_path / "s.db")
    await reread.start()
    assert reread.list("").records == [again]
    assert reread.revision == again.mod_revision
    await reread.stop()


async def test_reserved_space_in_use_is_not_for_new_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, reserve = SqliteStorage(tmp_path / "s.db"), Reserve(tmp_path)
    await storage.start()
    await storage.put("old", value(1))
    with monkeypatch.context() as full:
        full.setattr("moorage_kube.reserve.RESERVE_BYTES", 2**62)  # more than any disk has
        reserve.take()
        new, old = await asyncio.gather(
            storage.put("new", value(1)), storage.put("old", value(2)), return_exceptions=True
        )
        assert isinstance(new, StorageFull)
        assert not isinstance(old, BaseException)
    assert (await storage.put("new", value(3))).key == "new"
    await storage.stop()


async def test_a_failed_transaction_fails_each_write_in_it_and_the_next_one_works(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "s.db", max_pages=40)
    await storage.start()
    big = json.dumps({"x": "y" * 500_000}).encode()
    results = await asyncio.gather(
        *(storage.put(f"k{n}", big if n == 3 else value(n)) for n in range(6)), return_exceptions=True
    )
    stored = {f"k{n}" for n, one in enumerate(results) if not isinstance(one, BaseException)}
    assert isinstance(results[3], StorageFull)
    assert {one.key for one in storage.list("").records} == stored
    assert (await storage.put("k3", value(3))).key == "k3"
    await storage.stop()


async def test_a_store_that_was_stopped_refuses_writes(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "s.db")
    await storage.start()
    await storage.stop()
    await storage.stop()
    with pytest.raises(StorageError, match="closed"):
        await storage.put("a", value(1))


_WRITER = """
import asyncio, json, sys
from pathlib import Path
from moorage_local.storage.sqlite import SqliteStorage

async def main():
    storage = SqliteStorage(Path(sys.argv[1]))
    await storage.start()
    start = storage.revision
    async def one(worker):
        count = 0
        while True:
            key = f"k/{worker}/{count % 7}"
            count += 1
            if count % 5 == 0:
                change = await storage.delete(key)
                if change is not None:
                    print(json.dumps([key, change.revision, None]), flush=True)
            else:
                text = json.dumps({"n": count, "from": start})
                record = await storage.put(key, text.encode())
                print(json.dumps([key, record.mod_revision, text]), flush=True)
    await asyncio.gather(*(one(n) for n in range(20)))

asyncio.run(main())
"""


def write_until_killed(path: Path, lines_wanted: int) -> list[str]:
    """Run the writer, kill -9 it after so many acknowledged writes, return all that it said."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert writer.stdout is not None
    lines = [line for _, line in zip(range(lines_wanted), writer.stdout, strict=False)]
    os.kill(writer.pid, signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.stdout.close()
    writer.wait()
    return [line for line in lines if line.endswith("\n")]  # a line cut by the kill was said to nobody


async def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "s.db"
    said: dict[str, tuple[int, str | None]] = {}
    highest = 0
    for _ in range(4):
        for line in write_until_killed(path, rng.randrange(1, 400)):
            key, revision, text = json.loads(line)
            if revision > said.get(key, (0, None))[0]:
                said[key] = (revision, text)
            highest = max(highest, revision)
        storage = SqliteStorage(path)
        await storage.start()
        assert storage.revision >= highest
        for key, (revision, text) in said.items():
            record = storage.get(key)
            if record is None:
                # deleted as said, or by a later write that was done but not said before the kill
                assert text is None or storage.revision > revision, key
            elif record.mod_revision == revision:
                assert record.value.decode() == text
            else:
                assert record.mod_revision > revision, key
        unsaid = storage.revision - highest
        assert unsaid <= 20, "each of the 20 workers has at most one write under way"
        gone = [key for key, (_, text) in said.items() if text is not None and storage.get(key) is None]
        assert len(gone) <= unsaid
        highest = storage.revision
        said = {one.key: (one.mod_revision, one.value.decode()) for one in storage.list("").records}
        await storage.stop()


# --- any sequence of operations, against a plain model

KEYS = st.sampled_from(["a/1", "a/2", "b/1"])


class AnySequence(RuleBasedStateMachine):
    make: Callable[[], Storage]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.storage = self.make()
        self.run(self.storage.start())
        self.model: dict[str, tuple[bytes, int, int]] = {}
        self.history: list[tuple[int, str]] = []
        self.revision = 0
        self.compacted = 0

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        self.run(self.storage.stop())
        self.loop.close()
        self.folder.cleanup()

    @rule(key=KEYS, number=st.integers(0, 9), guess=st.sampled_from(["any", "right", "wrong", "zero"]))
    def put(self, key: str, number: int, guess: str) -> None:
        at = self.model[key][2] if key in self.model else 0
        expected = {"any": None, "right": at, "wrong": at + 1000, "zero": 0}[guess]
        if expected is not None and expected != at:
            with pytest.raises(CompareFailed):
                self.run(self.storage.put(key, value(number), expected=expected))
            return
        record = self.run(self.storage.put(key, value(number), expected=expected))
        self.revision += 1
        created = self.model[key][1] if key in self.model else self.revision
        self.model[key] = (value(number), created, self.revision)
        self.history.append((self.revision, key))
        assert (record.value, record.create_revision, record.mod_revision) == self.model[key]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        change = self.run(self.storage.delete(key))
        if key not in self.model:
            assert change is None
            return
        self.revision += 1
        del self.model[key]
        self.history.append((self.revision, key))
        assert (change.revision, change.after) == (self.revision, None)

    @rule(back=st.integers(0, 5))
    def compact(self, back: int) -> None:
        self.storage.compact(self.revision - back)
        self.compacted = max(self.compacted, self.revision - back)

    @precondition(lambda self: self.revision > 0)
    @rule(back=st.integers(0, 8), prefix=st.sampled_from(["", "a/", "b/"]))
    def watch(self, back: int, prefix: str) -> None:
        after = max(0, self.revision - back)
        if after < self.compacted:
            with pytest.raises(Expired):
                self.storage.watch(prefix, after=after)
            return
        watch = self.storage.watch(prefix, after=after)
        wanted = [(at, key) for at, key in self.history if at > after and key.startswith(prefix)]
        if wanted:
            assert [(one.revision, one.key) for one in self.run(watch.next())] == wanted
        watch.close()

    @invariant()
    def reads_equal_the_model(self) -> None:
        assert self.storage.revision == self.revision
        found = {
            one.key: (one.value, one.create_revision, one.mod_revision) for one in self.storage.list("").records
        }
        assert found == self.model


class AnySequenceInMemory(AnySequence):
    def make(self) -> Storage:  # type: ignore[override]
        return MemoryStorage()


class AnySequenceInSqlite(AnySequence):
    def make(self) -> Storage:  # type: ignore[override]
        return SqliteStorage(Path(self.folder.name) / "s.db")

    @rule()
    def restart(self) -> None:
        self.run(self.storage.stop())
        self.storage = self.make()
        self.run(self.storage.start())
        self.compacted = self.revision


TestAnySequenceInMemory = AnySequenceInMemory.TestCase
TestAnySequenceInSqlite = AnySequenceInSqlite.TestCase
TestAnySequenceInMemory.settings = settings(
    max_examples=examples(20, full=60), stateful_step_count=30, deadline=None
)
TestAnySequenceInSqlite.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
