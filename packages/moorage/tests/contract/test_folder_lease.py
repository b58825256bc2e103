"""Two processes on one folder: one of them has its databases open at a time, whatever ends or stops the other."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from moorage_kube.errors import StorageError
from moorage_kube.folderlease import FILE, FolderLease, Times, check_lease
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

WRITER = """
import asyncio, sys
from pathlib import Path
from moorage_kube.folderlease import FolderLease, Times
from moorage_kube.errors import StorageError
from moorage.sql.sqlite import SqliteDatabase
from moorage.queue.tables import QUEUE

def no_lock(descriptor, flags):
    raise OSError(95, "not supported")

folder, name, locks = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "locks"
times = Times(retry=0.1, lease=3.0, deadline=2.0)
given = {} if locks else {"lock": no_lock}
lease = FolderLease(folder, renew=True, times=times, **given)

async def main():
    print("waits", flush=True)
    await lease.acquire()
    database = SqliteDatabase(folder / "x.db", QUEUE)
    database.run("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, who TEXT, n INTEGER)")
    print("holds", flush=True)
    for n in range(1_000_000):
        try:
            database.run("INSERT INTO rows (who, n) VALUES (?, ?)", name, n)
        except StorageError as error:
            print("refused", flush=True)
            return
        print(n, flush=True)
        await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Server:
    """A process that writes rows once it holds the folder, and says of each that it is stored."""

    def __init__(self, folder: Path, name: str, locks: str) -> None:
        self.name = name
        self._said = folder.parent / f"{name}.said"
        with self._said.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, "-c", WRITER, folder, name, locks], stdout=out)

    def said(self) -> list[str]:
        return self._said.read_text().splitlines()

    def acknowledged(self) -> list[int]:
        return [int(line) for line in self.said() if line.isdecimal()]

    def stop_between_commits(self, database: Path) -> None:
        """Stopped in one, it would hold SQLite's own lock, which other nodes of such a volume do not see."""
        while True:
            os.kill(self.process.pid, signal.SIGSTOP)
            os.waitpid(self.process.pid, os.WUNTRACED)
            try:
                with contextlib.closing(sqlite3.connect(database, timeout=0)) as db:
                    db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(self.process.pid, signal.SIGCONT)

    def until_writing(self, more: int = 3) -> None:
        count = len(self.acknowledged())
        wait_until(f"{self.name} to write", lambda: len(self.acknowledged()) >= count + more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@contextlib.contextmanager
def two_servers(folder: Path, locks: str) -> Iterator[tuple[Server, Server]]:
    first = Server(folder, "first", locks)
    servers = [first]
    try:
        first.until_writing()
        servers.append(Server(folder, "second", locks))
        wait_until("the second to wait", lambda: "waits" in servers[1].said())
        yield first, servers[1]
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


def check_rows(folder: Path, *servers: Server) -> None:
    """All that was acknowledged is there, and no server wrote while another did."""
    with contextlib.closing(sqlite3.connect(folder / "x.db")) as db:
        rows = db.execute("SELECT who, n FROM rows ORDER BY id").fetchall()
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len([who for who, _ in groupby(rows, key=lambda row: row[0])]) == len(servers)
    for server in servers:
        assert {(server.name, n) for n in server.acknowledged()} <= set(rows)


@pytest.mark.parametrize("locks", ["locks", "no locks"])
async def test_a_server_that_is_killed_is_replaced_and_nothing_is_lost(folder: Path, locks: str) -> None:
    with two_servers(folder, locks) as (first, second):
        first.until_writing(20)
        assert "holds" not in second.said()
        first.process.kill()
        second.until_writing()
    check_rows(folder, first, second)


async def test_a_server_that_is_stopped_keeps_the_folder_by_its_lock(folder: Path) -> None:
    with two_servers(folder, "locks") as (first, second):
        os.kill(first.process.pid, signal.SIGSTOP)
        with (folder / FILE).open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "holds" not in second.said()
        os.kill(first.process.pid, signal.SIGKILL)
        second.until_writing()
    check_rows(folder, first, second)


async def test_without_locks_a_server_that_was_stopped_too_long_writes_no_more(folder: Path) -> None:
    with two_servers(folder, "no locks") as (first, second):
        first.stop_between_commits(folder / "x.db")
        before = len(first.acknowledged())
        second.until_writing()
        os.kill(first.process.pid, signal.SIGCONT)
        first.process.wait()
        assert len(first.acknowledged()) <= before + 1  # one that was stored before, and not yet said
        second.until_writing()
    check_rows(folder, first, second)


async def test_a_folder_that_was_released_is_taken_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    first, second = (FolderLease(tmp_path, renew=False, clock=clock) for _ in range(2))
    await first.acquire()
    check_lease(tmp_path)
    record = json.loads((tmp_path / FILE).read_bytes())
    assert (record["holder"] != "", record["beat"]) == (True, 1)
    first.release()
    check_lease(tmp_path)  # nobody's here
    await second.acquire()
    second.release()
    assert json.loads((tmp_path / FILE).read_bytes())["holder"] == ""


async def test_a_holder_that_could_not_renew_in_time_refuses_to_write(tmp_path: Path) -> None:
    clock, lost = FakeClock(), []
    lease = FolderLease(
        tmp_path, renew=True, times=Times(retry=3600, lease=15, deadline=10), clock=clock,
        on_lost=lambda: lost.append(True),
    )  # fmt: skip
    await lease.acquire()
    lease.check()
    clock.advance(10.5)
    with pytest.raises(StorageError, match="was not renewed in time: another server may have taken over"):
        check_lease(tmp_path)
    lease.release()
