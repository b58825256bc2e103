"""The runner of migrations, and the first schemas."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.queue.tables import QUEUE
from moorage.server.databases import ServerDatabase, databases
from moorage.sql.migrations import Migration, Schema, Version, migrate, migrations
from moorage.sql.sqlite import SqliteDatabase, statements
from moorage_kube.errors import StorageError

SCHEMAS = Path(__file__).with_name("schemas-0.1.0.json")  # SHA-256 of each first migration


class FakeLedger:
    """A database of which only the version matters; others may migrate it in between."""

    name = "fake"

    def __init__(self, version: Version, others: list[int]) -> None:
        self._version = version
        self.others = others  # steps that other processes take before each of our transactions
        self.applied: list[int] = []
        self.locked = False

    def version(self) -> Version:
        return self._version

    @contextmanager
    def migrating(self) -> Iterator[None]:
        if self.others:
            number = self._version.number + self.others.pop()
            self._version = Version(number, max(self._version.readable_by, 1))
        self.locked = True
        yield
        self.locked = False

    def apply(self, step: Migration) -> None:
        assert self.locked
        assert step.number == self._version.number + 1
        self.applied.append(step.number)
        self._version = Version(step.number, step.readable_by)


@given(known=st.integers(1, 6), done=st.integers(0, 8), others=st.lists(st.integers(0, 3), max_size=4))
def test_each_step_runs_once_whatever_other_processes_do(known: int, done: int, others: list[int]) -> None:
    steps = [Migration(number, "", 1) for number in range(1, known + 1)]
    ledger = FakeLedger(Version(done, min(done, 1)), others)
    migrate(ledger, steps)
    assert ledger.version().number >= known
    assert ledger.applied == sorted(set(ledger.applied))


@pytest.fixture
def schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schema:
    """A package of migrations to write files into."""
    package = f"package_{tmp_path.name}"
    (tmp_path / package / "migrations" / "sqlite").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    return Schema(package)


def write(tmp_path: Path, schema: Schema, number: int, sql: str) -> None:
    folder = tmp_path / schema.package / "migrations" / "sqlite"
    (folder / f"{number:04d}_x.sql").write_text(f"-- readable by: 1\n{sql}")


def tables(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    db.close()
    return names


def test_a_step_that_fails_leaves_the_schema_before_it(tmp_path: Path, schema: Schema) -> None:
    path = tmp_path / "x.db"
    write(tmp_path, schema, 1, "CREATE TABLE a (x); CREATE TABLE b (x);")
    SqliteDatabase(path, schema).close()
    write(tmp_path, schema, 2, "ALTER TABLE a ADD y;")
    SqliteDatabase(path, schema).close()
    before = tables(path)
    write(tmp_path, schema, 3, "CREATE TABLE c (x);\nSELECT nonsense FROM nowhere;\n")
    with pytest.raises(StorageError, match="no such table: nowhere"):
        SqliteDatabase(path, schema)
    assert tables(path) == before
    write(tmp_path, schema, 3, "CREATE TABLE c (x);")
    database = SqliteDatabase(path, schema)
    assert database.version() == Version(3, 1)
    database.close()


def test_the_first_schemas_are_those_of_0_1_0() -> None:
    """Databases have them: what comes after is a migration of its own, and no edit of the first."""
    for file, checksum in json.loads(SCHEMAS.read_text()).items():
        assert (
            sha256(resources.files(Path(file).parts[0]).joinpath(*Path(file).parts[1:]).read_bytes()).hexdigest()
            == checksum
        ), file


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
@pytest.mark.parametrize("database", databases(), ids=lambda database: database.name)
def test_every_migration_is_numbered_and_the_first_is_recorded(database: ServerDatabase, dialect: str) -> None:
    if dialect == "sqlite" and not database.file:
        pytest.skip("kept in no file")
    schema = database.schema
    first = migrations(dialect, schema)[0]
    folder = Path(schema.package.replace(".", "/")) / schema.folder / dialect
    recorded = [file for file in json.loads(SCHEMAS.read_text()) if Path(file).parent == folder]
    assert (first.number, first.readable_by, len(recorded)) == (1, 1, 1)


def test_a_gap_in_the_numbers_is_refused(tmp_path: Path, schema: Schema) -> None:
    write(tmp_path, schema, 2, "SELECT 1;")
    with pytest.raises(StorageError, match="not numbered 1 to 1"):
        migrations("sqlite", schema)


def test_a_semicolon_inside_a_trigger_ends_no_statement() -> None:
    script = (
        "CREATE TABLE a (x);\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM a;\n  SELECT ';';\nEND;\n"
    )
    assert [statement.split()[1] for statement in statements(script)] == ["TABLE", "TRIGGER"]


DYING = """
import os, signal, sys
from moorage.sql.migrations import Schema
from moorage.sql.sqlite import SqliteDatabase
package, path, step, is_written = sys.argv[1:]

class Dying(SqliteDatabase):
    def apply(self, migration):
        if migration.number == int(step) and not int(is_written):
            os.kill(os.getpid(), signal.SIGKILL)
        super().apply(migration)
        if migration.number == int(step):
            os.kill(os.getpid(), signal.SIGKILL)

Dying(path, Schema(package))
"""


@pytest.mark.processes
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("is_written", [0, 1])  # 1: all its statements have run, and nothing is committed
def test_a_step_that_is_killed_is_done_at_the_next_start(
    tmp_path: Path, schema: Schema, step: int, is_written: int
) -> None:
    write(tmp_path, schema, 1, "CREATE TABLE a (x);")
    write(tmp_path, schema, 2, "ALTER TABLE a ADD y; CREATE TABLE b (x);")
    words = [sys.executable, "-c", DYING, schema.package, str(tmp_path / "x.db"), str(step), str(is_written)]
    path = os.pathsep.join((str(tmp_path), *sys.path))
    killed = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, check=False)
    assert killed.returncode == -signal.SIGKILL
    database = SqliteDatabase(tmp_path / "x.db", schema)
    assert database.version().number == 2
    assert database.rows("SELECT x, y FROM a") == database.rows("SELECT x FROM b") == []
    database.close()


def test_opening_a_file_that_is_up_to_date_changes_its_header_alone(tmp_path: Path) -> None:
    header_bytes = 100  # it has a counter of the changes, and whether there is a log
    SqliteDatabase(tmp_path / "queue.db", QUEUE).close()
    before = (tmp_path / "queue.db").read_bytes()
    SqliteDatabase(tmp_path / "queue.db", QUEUE).close()
    assert (tmp_path / "queue.db").read_bytes()[header_bytes:] == before[header_bytes:]
