"""The kept ends of logs: one suite for files and PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from moorage.api.storedrecords import StoredAttempt, StoredPod
from moorage.attempts.logs import FULL_SEGMENTS, LogEnd, LogFolder, Logs, log_key
from moorage.attempts.logtable import JOIN_BYTES, LogTable
from moorage.attempts.store import open_attempts
from moorage.sql.leases import SCHEMA as LEASES
from moorage.sql.leases import LeaseTable
from moorage.sql.opening import open_database
from moorage_kube.errors import StorageError
from moorage_kube.testing.clock import NOON

KEEP = 8 * 1024
MakeLogs = Callable[[], Logs]


def lines(first: int, last: int) -> bytes:
    return b"".join(b"%06d some text that a program prints\n" % at for at in range(first, last))


def keep_pods(url: str, *uids: str) -> None:
    """Lines are kept of pods whose facts are."""
    store = open_attempts(url)
    attempt = StoredAttempt(
        job_uid="j", run_uid="j", namespace="lab", run="train", number=1, document={}, created=NOON
    )
    pods = [
        StoredPod(
            uid=uid, job_uid="j", namespace="lab", run="train", attempt=1, name=uid, node="n", phase="Running"
        )
        for uid in uids
    ]
    store.write([attempt], pods)
    store.close()


@pytest.fixture(params=["files", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeLogs]:
    """Opens the logs of pods p1, p2, … again and again, as servers that come one after another do."""
    opened: list[Logs] = []
    url = ""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        keep_pods(url, *(f"p{at}" for at in range(10)))

    def open_logs() -> Logs:
        opened.append(LogTable(url, keep_bytes=KEEP) if url else LogFolder(tmp_path / "logs", keep_bytes=KEEP))
        return opened[-1]

    yield open_logs
    for logs in opened:
        logs.close()


def test_a_short_log_is_kept_whole(make: MakeLogs) -> None:
    folder = make()
    assert folder.read("p1") == LogEnd()
    folder.append("p1", lines(0, 5))
    folder.append("p1", lines(5, 9))
    assert folder.read("p1") == LogEnd(lines(0, 9), cut=False)


def test_the_logs_of_the_containers_of_a_pod_are_kept_each_for_itself(make: MakeLogs) -> None:
    folder, beside = make(), log_key("p1", "proxy")
    folder.append("p1", lines(0, 5))
    folder.append(beside, lines(5, 900))
    folder.finish(beside)
    assert folder.read("p1") == LogEnd(lines(0, 5), cut=False)
    assert folder.read(beside).cut
    assert len(folder.read(beside).data) <= KEEP
    assert (folder.is_finished("p1"), folder.is_finished(beside)) == (False, True)
    assert {size.key for size in folder.sizes()} == {"p1", beside}
    folder.erase("p1")
    assert [size.key for size in folder.sizes()] == [beside]


def test_of_a_pod_that_is_not_kept_no_container_has_a_log(postgres_url: str) -> None:
    keep_pods(postgres_url, "p1")
    logs = LogTable(postgres_url, keep_bytes=KEEP)
    logs.append(log_key("p1", "proxy"), lines(0, 1))
    logs.append(log_key("gone", "proxy"), lines(0, 1))
    assert [size.key for size in logs.sizes()] == [log_key("p1", "proxy")]
    logs.close()


def test_a_line_longer_than_all_that_is_kept_is_kept_alone(make: MakeLogs) -> None:
    folder = make()
    folder.append("p1", lines(0, 3) + b"x" * KEEP * 2 + b"\n")
    assert folder.read("p1") == LogEnd(b"x" * KEEP * 2 + b"\n", cut=True)


def test_a_log_read_to_its_end_says_so_until_it_is_erased(make: MakeLogs) -> None:
    folder = make()
    assert not folder.is_finished("p1")
    folder.finish("p1")
    assert folder.is_finished("p1")
    assert folder.read("p1") == LogEnd()
    folder.append("p2", lines(0, 1))
    assert [(size.key, size.bytes) for size in folder.sizes()] in (
        [("p1", 0), ("p2", len(lines(0, 1)))],
        [("p2", len(lines(0, 1))), ("p1", 0)],
    )
    folder.erase("p1")
    folder.erase("p1")
    assert not folder.is_finished("p1")


@pytest.mark.parametrize(
    "pieces", [[1] * 400, [120] * 30, [7, 90, 1, 1, 300, 2] * 8], ids=["small", "large", "mixed"]
)
def test_of_a_long_log_the_end_is_kept_when_servers_take_turns(make: MakeLogs, pieces: list[int]) -> None:
    logs, at = make(), 0
    for number, piece in enumerate(pieces):
        logs = make() if number % 50 == 25 else logs
        logs.append("p1", lines(at, at + piece))
        at += piece
    whole, end = lines(0, at), make().read("p1")
    assert whole.endswith(end.data)
    assert end.cut == (end.data != whole)
    assert KEEP - 100 < len(end.data) <= KEEP


def test_a_log_takes_a_bounded_number_of_rows_of_bounded_size(postgres_url: str) -> None:
    keep_pods(postgres_url, "p1")
    keep = 16 * JOIN_BYTES
    logs = LogTable(postgres_url, keep_bytes=keep)
    for at in range(600):
        logs.append("p1", os.urandom(500).hex().encode() + b"\n")
        if at % 100 == 99:
            with psycopg.connect(postgres_url) as db:
                ((rows, largest),) = db.execute(
                    "SELECT COUNT(*), MAX(LENGTH(data)) FROM kept_log_parts"
                ).fetchall()
            assert rows <= FULL_SEGMENTS + keep // FULL_SEGMENTS // JOIN_BYTES + 1
            assert largest <= keep // FULL_SEGMENTS + 1001
    (size,) = logs.sizes()
    with psycopg.connect(postgres_url) as db:
        assert db.execute("SELECT SUM(LENGTH(data)) FROM kept_log_parts").fetchall() == [(size.bytes,)]
    logs.close()


def test_of_a_pod_that_was_erased_nothing_is_kept_again(postgres_url: str) -> None:
    keep_pods(postgres_url, "p1")
    logs, store = LogTable(postgres_url, keep_bytes=KEEP), open_attempts(postgres_url)
    logs.append("p1", lines(0, 5))
    assert store.erase("lab", "train", now=NOON) == ["p1"]
    logs.erase("p1")
    logs.append("p1", lines(5, 9))  # of another server, which has not heard yet
    logs.finish("p1")
    assert logs.read("p1") == LogEnd()
    assert logs.sizes() == []
    logs.close()
    store.close()


def test_a_server_whose_term_is_over_adds_nothing(postgres_url: str) -> None:
    keep_pods(postgres_url, "p1")
    leases = LeaseTable(open_database(postgres_url, LEASES))
    lease = leases.take("recording", "a", None)
    old = LogTable(postgres_url, keep_bytes=KEEP, term=lambda: ("recording", 1))
    new = LogTable(postgres_url, keep_bytes=KEEP, term=lambda: ("recording", 2))
    old.append("p1", lines(0, 5))
    leases.take("recording", "b", lease)
    new.append("p1", lines(5, 9))
    with pytest.raises(StorageError, match="another server has taken over"):
        old.append("p1", lines(5, 9))
    assert new.read("p1").data == lines(0, 9)
    old.close()
    new.close()
    leases.close()
