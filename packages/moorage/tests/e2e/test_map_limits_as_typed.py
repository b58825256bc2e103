"""Named limits against a real PostgreSQL that allows 25 connections, 22 of them to an ordinary user."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_kube.errors import NotReady
from moorage_testing.cluster import Cluster
from moorage_testing.postgres import Postgres, throwaway_postgres

pytestmark = pytest.mark.cluster("scheduler", "controllers", "kubelet")

ALLOWED, TOKENS, ITEMS = 25, 20, 60
WORKERS, SLOTS = 2, 16  # of each of two maps: 64 items could run at once

# Each item speaks PostgreSQL's protocol itself: it opens a connection as the user "app", counts how many that user
# has, and holds its own until `full` of them were seen at once, or somebody was refused.
# https://www.postgresql.org/docs/current/protocol-flow.html
ITEM = """
import json, os, pathlib, socket, struct, sys, time
here, folder, full, item = pathlib.Path.cwd(), sys.argv[1], int(sys.argv[2]), sys.argv[3]
seen = here / "seen"
talk = socket.socket(socket.AF_UNIX)
talk.connect(folder + "/.s.PGSQL.5432")
head = struct.pack("!i", 196608) + b"user\\0app\\0database\\0postgres\\0\\0"
talk.sendall(struct.pack("!i", len(head) + 4) + head)
stream = talk.makefile("rb")
def told():
    kind, size = struct.unpack("!ci", stream.read(5))
    return kind, stream.read(size - 4)
def rows():
    found = []
    while True:
        kind, body = told()
        if kind == b"E":
            seen.touch()
            sys.exit("refused: " + body.decode().replace(chr(0), " "))
        if kind == b"D":
            found.append(int(body[6:]))
        if kind == b"Z":
            return found
rows()
most = 0
while True:
    text = b"SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'\\0"
    talk.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
    most = max(most, *rows())
    if most >= full:
        seen.touch()
    if seen.exists():
        break
    time.sleep(0.02)
open(os.environ["MOORAGE_RESULT"], "w").write(json.dumps(most))
talk.sendall(b"X" + struct.pack("!i", 4))
stream.read()  # until the server has ended, too: no item begins while this connection is still counted
"""


@pytest.fixture
def server() -> Iterator[Postgres]:
    try:
        with throwaway_postgres(connections=ALLOWED) as found:
            import psycopg

            with psycopg.connect(found.url, autocommit=True) as db:
                db.execute("CREATE ROLE app LOGIN")
                db.execute("GRANT pg_read_all_stats TO app")
            yield found
    except NotReady as error:
        pytest.skip(f"{error.message}: {error.hint}")


def run_two_maps(
    cluster: Cluster, server: Postgres, unique: str, folder: Path, *options: str, until: int
) -> tuple[list[int], list[str]]:
    """What the items of both maps counted, and how the others failed. Items hold on until so many were seen."""
    (folder / "item.py").write_text(ITEM)
    names = [f"{unique}-features", f"{unique}-labels"]
    command = ("--", sys.executable, str(folder / "item.py"), str(server.folder), str(until), "{item}")
    sizes = ("--parallelism", str(WORKERS), "--slots", str(SLOTS), "--cpu", "100m", "--memory", "1Gi")
    counted: list[int] = []
    failed: list[str] = []
    try:
        for name in names:
            made = ("map", "create", name, *sizes, "--retries", "0", "--open", *options, *command)
            cluster.moor(*made[:3], "--range", "0:1", *made[3:], cwd=folder)
        for name in names:
            cluster.moor("map", "add", name, "--range", f"1:{ITEMS}", "--close")
        for name in names:
            cluster.moor("map", "status", name, "--watch", check=False, timeout=400)
            lines = cluster.moor("map", "results", name, check=False).stdout.splitlines()
            counted += [json.loads(line)["value"] for line in lines]
            dead = json.loads(cluster.moor("map", "items", "--failed", name, "-o", "json").stdout)
            failed += [one["failure"]["message"] for one in dead]
    finally:
        for name in names:
            cluster.moor("map", "delete", name, check=False)
    return counted, failed


def test_two_maps_that_share_a_limit_never_open_more_connections_than_it_has(cluster, server, unique, tmp_path):
    limit = ("--limit", f"mysql-{unique}={TOKENS}")
    counted, failed = run_two_maps(cluster, server, unique, tmp_path, *limit, until=TOKENS)
    assert failed == []
    assert len(counted) == 2 * ITEMS
    assert max(counted) == TOKENS


def test_without_the_limit_the_database_refuses_connections(cluster, server, unique, tmp_path):
    _, failed = run_two_maps(cluster, server, unique, tmp_path, until=ALLOWED + 1)
    assert failed
    assert all("53300" in one for one in failed), failed[:3]
