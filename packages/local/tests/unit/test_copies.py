"""Copies of a data folder: whole or not there, a few of them kept."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.databasefile import HighWater
from moorage_kube.errors import StorageDamaged, StorageError
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.testing.waiting import until
from moorage_local import copies
from moorage_local.copies import (
    KEEP_DAYS,
    KEEP_NEWEST,
    check_copy,
    copy_now,
    keep_copies,
    list_copies,
    take_copy,
    to_drop,
)
from moorage_local.storage import MemoryStorage, Record
from moorage_local.storage.sqlite import read_records

pytestmark = pytest.mark.anyio
RECORDS = [Record("b", b'{"n": 1}', 1, 2), Record("a", b'{"n": 2}', 3, 3)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "pki").mkdir()
    (tmp_path / "VERSION").write_text("1\n")
    (tmp_path / "pki" / "tokens.key").write_bytes(b"k" * 32)
    db = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    db.execute("CREATE TABLE t (text TEXT)")
    db.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 50)
    HighWater(tmp_path / "queue.db").attach(db)
    db.close()
    return tmp_path


def test_a_copy_holds_the_store_the_databases_and_the_small_files(data: Path) -> None:
    copy = take_copy(data, RECORDS, 7, now=NOON)
    assert (copy.name, copy.taken, copy.revision, copy.objects) == ("20261121T120000Z", NOON, 7, 2)
    assert set(copy.files) == {"cluster.db", "queue.db", "VERSION", "pki/tokens.key"}
    check_copy(copy, copy.files)
    assert read_records(copy.path / "cluster.db") == sorted(RECORDS, key=lambda record: record.key)
    db = sqlite3.connect(copy.path / "queue.db")
    assert db.execute("SELECT COUNT(*) FROM t").fetchone() == (50,)
    db.close()
    assert list_copies(data) == [copy]
    modes = {path.stat().st_mode & 0o077 for path in (data / "copies").rglob("*")}
    assert modes == {0}, "others can read a copy"


def test_a_database_in_use_is_copied_as_it_is_at_one_moment(data: Path) -> None:
    db = sqlite3.connect(data / "queue.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("INSERT INTO t VALUES ('newest')")
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES ('not committed')")
    copy = take_copy(data, RECORDS, 7, now=NOON)
    found = sqlite3.connect(copy.path / "queue.db")
    assert found.execute("SELECT text FROM t WHERE length(text) < 500").fetchall() == [("newest",)]
    found.close()
    db.close()


def test_a_database_that_cannot_be_copied_leaves_the_older_copies_and_nothing_else(data: Path) -> None:
    first = take_copy(data, RECORDS, 7, now=NOON)
    content = bytearray((data / "queue.db").read_bytes())
    content[4096:12288] = b"\xff" * 8192
    (data / "queue.db").write_bytes(content)
    with pytest.raises(StorageError, match=r"queue\.db"):
        take_copy(data, RECORDS, 8, now=NOON + timedelta(hours=1))
    assert [path.name for path in (data / "copies").iterdir()] == [first.name]


def test_what_an_earlier_process_did_not_finish_is_no_copy_and_goes(data: Path) -> None:
    half = data / "copies" / ".making-1"
    half.mkdir(parents=True)
    (half / "cluster.db").write_bytes(b"half")
    assert list_copies(data) == []
    take_copy(data, RECORDS, 7, now=NOON)
    assert not half.exists()


class AsksForAnother(Sequence[Record]):
    """Records whose second reading, while the copy is filled, starts another copy in a thread."""

    def __init__(self, another: threading.Thread) -> None:
        self.another = another
        self.readings = 0

    def __len__(self) -> int:
        return len(RECORDS)

    def __getitem__(self, at: Any) -> Any:
        return RECORDS[at]

    def __iter__(self) -> Iterator[Record]:
        self.readings += 1
        if self.readings == 2:
            self.another.start()
            self.another.join(0.1)  # where copies do not wait for each other, this one tears the first
        return iter(RECORDS)


def test_a_copy_waits_for_the_one_that_a_cancelled_caller_left_behind(data: Path) -> None:
    later = NOON + timedelta(minutes=1)
    another = threading.Thread(target=take_copy, args=(data, RECORDS, 8), kwargs={"now": later})
    take_copy(data, AsksForAnother(another), 7, now=NOON)
    another.join()
    both = list_copies(data)
    assert [(copy.taken, copy.problem) for copy in both] == [(later, None), (NOON, None)]
    for copy in both:
        check_copy(copy, copy.files)


def test_no_copy_is_made_where_the_disk_is_nearly_full(data: Path) -> None:
    with pytest.raises(StorageError, match=r"not enough free disk space; it needs \d+ bytes and \d+ are free"):
        take_copy(data, RECORDS, 7, now=NOON, spare_bytes=2**62)
    assert list((data / "copies").iterdir()) == []


def test_a_changed_byte_of_a_copy_is_found(data: Path) -> None:
    copy = take_copy(data, RECORDS, 7, now=NOON)
    check_copy(copy, ["cluster.db"])
    with (copy.path / "cluster.db").open("r+b") as file:
        file.seek(200)
        file.write(b"?")
    with pytest.raises(StorageDamaged, match=r"cluster\.db of the copy 20261121T120000Z is damaged"):
        check_copy(copy, ["cluster.db"])
    check_copy(copy, ["VERSION"])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"taken": 1}', "\xff"])
def test_a_copy_whose_list_is_damaged_says_so(data: Path, text: str) -> None:
    copy = take_copy(data, RECORDS, 7, now=NOON)
    (copy.path / "copy.json").write_text(text)
    (found,) = list_copies(data)
    assert found.problem is not None
    assert found.taken == NOON


def test_a_folder_of_somebody_else_is_no_copy_and_stays(data: Path) -> None:
    (data / "copies" / "mine").mkdir(parents=True)
    for hour in range(100):
        take_copy(data, RECORDS, 7, now=NOON + timedelta(hours=hour))
    assert (data / "copies" / "mine").is_dir()
    assert len(list_copies(data)) == KEEP_NEWEST + 4  # and the newest of each day before


moments = st.integers(0, 40 * 24 * 4).map(lambda quarters: NOON - timedelta(minutes=15 * quarters))


@given(st.lists(moments, unique=True))
def test_a_few_copies_are_kept_the_newest_and_one_of_each_day(taken: list[datetime]) -> None:
    gone = to_drop(taken, now=NOON)
    kept = sorted(set(taken) - set(gone), reverse=True)
    assert kept[:KEEP_NEWEST] == sorted(taken, reverse=True)[:KEEP_NEWEST]
    assert len(kept) <= KEEP_NEWEST + KEEP_DAYS + 1
    for moment in taken:
        if NOON - moment <= timedelta(days=KEEP_DAYS):
            assert any(one.date() == moment.date() and one >= moment for one in kept)
    assert to_drop(kept, now=NOON) == []


async def test_copies_are_made_soon_after_the_start_and_then_every_quarter_of_an_hour(data: Path) -> None:
    clock = FakeClock()
    storage = MemoryStorage()
    await storage.put("a", b"{}")
    keeper = asyncio.create_task(keep_copies(data, storage, clock=clock))
    for number, seconds in enumerate((copies.FIRST_SECONDS, copies.EVERY_SECONDS, copies.EVERY_SECONDS)):

        async def sleeps() -> bool:
            return bool(clock._sleepers)

        async def copied(wanted: int = number + 1) -> bool:
            return len(list_copies(data)) == wanted

        await until("the keeper to wait", sleeps)
        clock.advance(seconds)
        await until("a copy", copied)
    keeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeper
    assert [copy.revision for copy in list_copies(data)] == [1, 1, 1]


async def test_a_copy_that_cannot_be_made_stops_nothing(
    data: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    shutil.rmtree(data / "pki")
    (data / "copies").write_text("in the way")
    await copy_now(data, MemoryStorage(), clock=FakeClock())
    assert "the data folder is not copied" in caplog.text


def test_names_of_copies_are_in_universal_time(data: Path) -> None:
    from datetime import timezone

    there = datetime(2026, 11, 21, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    assert take_copy(data, RECORDS, 7, now=there).taken == datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
