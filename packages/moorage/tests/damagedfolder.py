"""A whole data folder, as `moor up` leaves it when it is killed, and ways to damage it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from moorage.cli.datafolder import Config, DataFolder
from moorage.server.databases import databases
from moorage.sql.opening import open_database
from moorage_kube.databasefile import read_mark, write_mark
from moorage_local.apiserver.pki import ensure_pki
from moorage_local.copies import take_copy
from moorage_local.storage.sqlite import SqliteStorage, read_records

TAKEN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NODES = [{"name": "node-1", "gpus": 2}]
PORTS = {"api": 7001, "server": 7002, "ingress": 7003, "extender": 7004, "webhook": 7005, "operator": 7006}
OBJECTS = 300
ROWS = 100
SERVER_DATABASES = {database.file: database for database in databases() if database.file}
COPIED_DATABASES = ("cluster.db", *(name for name in SERVER_DATABASES if name != "outputs.db"))
SMALL = ("VERSION", "config.json", "tokens.json", "pki/ca.crt", "pki/ca.key", "pki/tokens.key")


def make_whole(path: Path) -> Path:
    """A folder with one copy; the last objects of cluster.db are in its write-ahead log, as after a kill."""
    folder = DataFolder(path)
    folder.prepare()
    folder.save_config(Config(nodes=NODES, ports=PORTS, user="ada"))
    folder.tokens("ada")
    ensure_pki(path / "pki")
    for name, made in SERVER_DATABASES.items():
        database = open_database(path / name, made.schema, durable=name != "outputs.db")
        with database.transaction():
            database.run("CREATE TABLE more (text TEXT)")
            database.run_each("INSERT INTO more VALUES (?)", [("x" * 900,)] * ROWS)
        database.close()
    asyncio.run(_fill(path))
    return path


async def _fill(path: Path) -> None:
    making = path.with_name("making")
    making.mkdir()
    for part in (
        range(OBJECTS - 20),
        range(OBJECTS - 20, OBJECTS),
    ):
        store = SqliteStorage(making / "cluster.db")
        await store.start()
        for number in part:
            text = json.dumps({"metadata": {"uid": f"u{number}"}, "x": "y" * 900})
            await store.put(f"core/configmaps/default/c{number:03}", text.encode())
        if part.stop < OBJECTS:
            await store.stop()
    for left in making.glob("cluster.db*"):
        shutil.copy(left, path)
    mark = read_mark(making / "cluster.db")
    assert mark is not None
    write_mark(path / "cluster.db", mark)
    take_copy(path, store.list("").records, store.revision, now=TAKEN)
    await store.stop()


def contents(path: Path) -> dict[str, bytes]:
    """Every file but the lock and what SQLite makes to read a log."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.endswith("-shm") and not str(file.relative_to(path)).startswith("run/")
    }


def rows_of(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return int(db.execute("SELECT COUNT(*) FROM more").fetchone()[0])


def all_there(data: Path, like: Path, *, but: str = "", only: str = "") -> bool:
    """Whether a folder has all rows, objects and settings, opened as by a cluster. `but`: one file less.

    `only`: of the server's databases no other is opened, for a folder where all other files are as they were.
    """
    for name, made in SERVER_DATABASES.items():
        if name != but and only in ("", name):
            open_database(data / name, made.schema, durable=name != "outputs.db").close()
            if rows_of(data / name) != ROWS:
                return False

    async def start() -> int:
        store = SqliteStorage(data / "cluster.db")
        await store.start()
        count = len(store.list("").records)
        await store.stop()
        return count

    same = all((data / name).read_bytes() == (like / name).read_bytes() for name in SMALL if name != but)
    return same and asyncio.run(start()) == OBJECTS and len(read_records(data / "cluster.db")) == OBJECTS


def gone(path: Path) -> None:
    path.unlink()


def gone_with_side_files(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_page(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3 // 4096 * 4096 or size // 3)
        file.write(random.Random(7).randbytes(min(4096, size // 2)))


def zero_page(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3 // 4096 * 4096 or size // 3)
        file.write(bytes(min(4096, size // 2)))


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(path.stat().st_size))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut_log(path: Path) -> None:
    os.truncate(path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-wal").stat().st_size // 2)


def without_log(path: Path) -> None:
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
