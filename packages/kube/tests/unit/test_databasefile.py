"""A database that comes back with less than it acknowledged is refused; one that was merely killed is not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.databasefile import (
    ENTRY_BYTES,
    LINE_BYTES,
    MANIFEST,
    REMOVED,
    HighWater,
    Manifest,
    Mark,
    close_database,
    find_problem,
    forget,
    read_manifest,
    read_mark,
    reading,
    refuse_less,
    write_mark,
)
from moorage_kube.errors import StorageDamaged

_WRITER = """
import os, signal, sqlite3, sys
from pathlib import Path
from moorage_kube.databasefile import HighWater, close_database, refuse_less

path = Path(sys.argv[1])
refuse_less(path)
water = HighWater(path)
water.begin()
db = sqlite3.connect(path, isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, text TEXT)")
count = water.attach(db)
for _ in range(int(sys.argv[2])):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t (text) VALUES (?)", ("x" * 900,))
    count = water.next(db)
    db.execute("COMMIT")
    water.acknowledge(count)
    print(count, flush=True)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
water.close()
close_database(db)
"""


def write(path: Path, transactions: int, end: str) -> int:
    """Write in a process that then closes the database or is killed; returns the last count it said."""
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, str(path), str(transactions), end],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 0), done.stderr
    return int(done.stdout.split()[-1]) if done.stdout else 0


def contents(path: Path) -> dict[str, bytes]:
    """The database and what must not change beside it; the index of the log holds nothing of its own."""
    return {path.name: path.read_bytes() for path in path.parent.iterdir() if not path.name.endswith("-shm")}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What a database of 200 transactions leaves in its folder, closed or killed."""
    found = {}
    for end in ("close", "kill"):
        path = tmp_path_factory.mktemp(end) / "x.db"
        write(path, 200, end)
        found[end] = contents(path)
    return found


def lay_out(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "x.db"


def cut(path: Path, keep: float) -> None:
    os.truncate(path, int(path.stat().st_size * keep))


def damage_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(random.Random(1).randbytes(4096))


WAYS: list[tuple[str, str, Callable[[Path], object], str]] = [
    ("close", "gone", lambda path: path.unlink(), "is missing"),
    ("kill", "gone", lambda path: path.unlink(), "is missing"),
    ("close", "empty", lambda path: cut(path, 0), "is empty"),
    ("close", "truncated", lambda path: cut(path, 0.5), "is damaged"),
    ("close", "cut to a part of a page", lambda path: cut(path, 0.001), "is damaged"),
    ("close", "one damaged page", damage_page, "is damaged"),
    ("close", "no database at all", lambda path: path.write_bytes(b"x" * 9000), "is damaged"),
    ("kill", "log cut", lambda path: cut(path.with_name("x.db-wal"), 0.5), "change 200 was acknowledged"),
    ("kill", "log cut by its last change", lambda path: cut(path.with_name("x.db-wal"), 0.99), "was acknowledged"),
    ("kill", "log empty", lambda path: cut(path.with_name("x.db-wal"), 0), "acknowledged"),
    ("kill", "log gone", lambda path: path.with_name("x.db-wal").unlink(), "acknowledged"),
]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("end", "harm", "word"),
    [pytest.param(end, harm, word, id=f"{end}d: {name}") for end, name, harm, word in WAYS],
)
def test_a_damaged_database_is_found_and_left_as_it_is(
    tmp_path: Path,
    left: dict[str, dict[str, bytes]],
    end: str,
    harm: Callable[[Path], object],
    word: str,
) -> None:
    path = lay_out(tmp_path, left[end])
    assert find_problem(path, deep=True) is None
    harm(path)
    before = contents(path)
    assert word in str(find_problem(path, deep=True))
    assert contents(path) == before


@pytest.mark.parametrize("part", range(0, 100, 7))
def test_wherever_the_log_is_cut_it_is_found_before_anything_is_written(
    tmp_path: Path, left: dict[str, dict[str, bytes]], part: int
) -> None:
    path = lay_out(tmp_path, left["kill"])
    cut(path.with_name("x.db-wal"), part / 100)
    before = contents(path)
    with pytest.raises(StorageDamaged, match=r"x\.db ends at|x\.db holds none") as caught:
        refuse_less(path)
    assert "moor restore" in str(caught.value.hint)
    assert contents(path) == before


@pytest.mark.processes
def test_an_older_file_in_its_place_and_one_of_another_cluster_are_found(
    tmp_path: Path, left: dict[str, dict[str, bytes]]
) -> None:
    path = lay_out(tmp_path, left["close"])
    older = path.read_bytes()
    write(path, 5, "close")
    newer = path.read_bytes()
    path.write_bytes(older)
    assert "ends at change 200, but change 205 was acknowledged" in str(find_problem(path, deep=True))
    path.write_bytes(newer)
    assert find_problem(path, deep=True) is None
    path.write_bytes(left["kill"]["x.db"])
    path.with_name("x.db-wal").write_bytes(left["kill"]["x.db-wal"])
    assert "is not the file that was used here last" in str(find_problem(path, deep=True))


@pytest.mark.processes
def test_a_kill_at_any_moment_gives_no_false_alarm(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    told = 0
    for lines in (0, 1, 2, 7, 40, 300):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), "100000", "kill"], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _, line in zip(range(lines), writer.stdout, strict=False):
            told = int(line)
        os.kill(writer.pid, signal.SIGKILL)
        rest = [line for line in writer.stdout if line.endswith("\n")]
        told = int(rest[-1]) if rest else told
        writer.stdout.close()
        writer.wait()
        assert find_problem(path, deep=True) is None
        mark = read_mark(path)
        assert (mark.count if mark else 0) >= told


def test_an_older_mark_after_a_power_cut_gives_no_false_alarm(
    tmp_path: Path, left: dict[str, dict[str, bytes]]
) -> None:
    path = lay_out(tmp_path, left["kill"])
    mark = read_mark(path)
    assert mark is not None
    for older in (0, 1, mark.count - 1):
        write_mark(path, Mark(mark.identity, older))
        assert find_problem(path, deep=True) is None
    path.with_name(MANIFEST).unlink()
    assert find_problem(path, deep=True) is None


def test_a_new_file_and_one_that_never_began_are_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    assert find_problem(path, deep=True) is None
    path.touch()
    assert find_problem(path, deep=True) is None


def test_a_database_of_before_marks_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (id INTEGER)")
    assert find_problem(path, deep=True) is None
    assert HighWater(path).attach(db, count=7) == 7
    db.close()
    assert read_mark(path) is not None
    cut(path, 0)
    assert "is empty" in str(find_problem(path, deep=True))


@given(counts=st.lists(st.integers(0, 10**12), min_size=1, max_size=8), torn=st.binary(max_size=LINE_BYTES))
def test_a_line_that_was_half_written_leaves_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], torn: bytes
) -> None:
    path = tmp_path_factory.mktemp("torn") / "x.db"
    counts = sorted(counts)
    write_mark(path.with_name("w.db"), Mark("other", 5))
    water = HighWater(path)
    water._identity, water._at = "id", write_mark(path, Mark("id", counts[0]))
    write_mark(path.with_name("y.db"), Mark("other", 6))
    water._file = os.open(path.with_name(MANIFEST), os.O_WRONLY)
    for count in counts:
        water.acknowledge(count)
    assert read_mark(path) == Mark("id", counts[-1])
    os.pwrite(water._file, torn, water._at + water._second * LINE_BYTES)  # the next one, cut off
    marks = {"w.db": Mark("other", 5), "x.db": Mark("id", counts[-1]), "y.db": Mark("other", 6)}
    assert read_manifest(path.parent) == Manifest(marks, is_whole=True)
    water.close()


def test_a_damaged_entry_is_written_anew_by_the_database_that_misses_its_own(tmp_path: Path) -> None:
    names = ("a.db", "b.db", "c.db")
    for number, name in enumerate(names):
        assert write_mark(tmp_path / name, Mark(name, number)) == number * ENTRY_BYTES
    with (tmp_path / MANIFEST).open("r+b") as file:
        file.seek(ENTRY_BYTES)
        file.write(bytes(ENTRY_BYTES))
    rest = {name: Mark(name, number) for number, name in enumerate(names) if name != "b.db"}
    assert read_manifest(tmp_path) == Manifest(rest, is_whole=False)
    assert write_mark(tmp_path / "b.db", Mark("b.db", 1)) == ENTRY_BYTES
    assert read_manifest(tmp_path) == Manifest(rest | {"b.db": Mark("b.db", 1)}, is_whole=True)
    for size in (2 * ENTRY_BYTES + 7, 2 * ENTRY_BYTES):
        os.truncate(tmp_path / MANIFEST, size)
        assert not read_manifest(tmp_path).is_whole
        assert write_mark(tmp_path / "c.db", Mark("c.db", 2)) == 2 * ENTRY_BYTES
        assert read_manifest(tmp_path).is_whole


def test_a_database_that_was_taken_away_on_purpose_is_not_missed_and_may_come_back(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    write(path, 3, "close")
    content = path.read_bytes()
    path.unlink()
    assert find_problem(path, deep=True) == "is missing"
    forget(path)
    assert find_problem(path, deep=True) is None
    assert read_manifest(tmp_path).marks["x.db"].count == REMOVED
    path.write_bytes(content)
    assert find_problem(path, deep=True) is None
    assert write(path, 1, "close") == 4


@pytest.mark.parametrize("end", ["close", "kill"])
def test_without_a_manifest_a_database_is_taken_as_it_is_unless_its_log_is_gone(tmp_path: Path, end: str) -> None:
    path = tmp_path / "x.db"
    write(path, 30, end)
    path.with_name(MANIFEST).unlink()
    assert find_problem(path, deep=True) is None
    for side in ("x.db-wal", "x.db-shm"):
        path.with_name(side).unlink(missing_ok=True)
    problem = find_problem(path, deep=True)
    assert problem == (None if end == "close" else f"lacks its write-ahead log, and {MANIFEST} does not know it")


def test_a_database_of_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write(tmp_path / "a" / "x.db", 1, "close")
    write(tmp_path / "b" / "y.db", 1, "close")
    (tmp_path / "b" / "x.db").write_bytes((tmp_path / "a" / "x.db").read_bytes())
    assert "is not a database of this folder" in str(find_problem(tmp_path / "b" / "x.db", deep=True))


def test_a_database_keeps_its_log_until_its_last_connection_closes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.db"
    first, second = (sqlite3.connect(path, isolation_level=None) for _ in range(2))
    first.execute("PRAGMA journal_mode=WAL")
    first.execute("CREATE TABLE t (n INTEGER)")
    second.execute("INSERT INTO t VALUES (1)")
    close_database(first)
    assert path.with_name("x.db-wal").exists()
    close_database(second)
    assert [left.name for left in tmp_path.iterdir()] == ["x.db"]
    assert path.read_bytes()[18:20] == b"\x01\x01"


def test_the_manifest_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_mark(tmp_path / "x.db", Mark("id", 1))
    assert (tmp_path / MANIFEST).stat().st_mode & 0o777 == 0o600


def test_a_database_that_others_may_have_open_is_read_with_their_changes(tmp_path):
    path = tmp_path / "x.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (n INTEGER)")
    assert not path.with_name("x.db-wal").exists()
    with reading(path, in_use=True) as db, contextlib.closing(sqlite3.connect(path)) as other:
        other.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
        other.commit()
        assert db.execute("SELECT COUNT(*) FROM t").fetchone() == (2,)


_KILLED = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("PRAGMA locking_mode=EXCLUSIVE")
db.execute("CREATE TABLE t (x)")
os.kill(os.getpid(), signal.SIGKILL)
"""
_LOOKED_AT = """
import resource, sys
from pathlib import Path
from moorage_kube.databasefile import find_problem
from moorage_kube.errors import StorageFull
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
try:
    found = find_problem(Path(sys.argv[1]), deep=False)
except StorageFull as error:
    found = error.message
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(found)
"""


def test_a_database_that_finds_no_room_is_not_damaged(tmp_path):
    """After a kill its log needs a new index, which SQLite cannot write: it says "disk I/O error"."""
    path = tmp_path / "cluster.db"
    subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert (tmp_path / "cluster.db-wal").stat().st_size > 0
    looked = subprocess.run(
        [sys.executable, "-c", _LOOKED_AT, str(path)], check=True, capture_output=True, text=True
    )
    assert looked.stdout == f"could not read {path}: the disk is full\n"
    assert find_problem(path, deep=True) is None
