from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from moorage.decide.usage.intervals import Open
from moorage.usage.store import UsageStore
from moorage_kube.errors import StorageError, StorageFull
from moorage_testing.intervals import an_interval


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "usage.db"
    path.write_text("my diary, of no concern to anybody else" * 20)
    with pytest.raises(StorageError, match="not a database"):
        UsageStore(path)
    assert path.read_text().startswith("my diary")


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"could not open .*none/usage\.db"):
        UsageStore(tmp_path / "none" / "usage.db")


def test_a_newer_file_is_refused_with_what_to_do(tmp_path):
    UsageStore(tmp_path / "usage.db").close()
    db = sqlite3.connect(tmp_path / "usage.db")
    db.execute("UPDATE meta SET value = '99'")
    db.commit()
    db.close()
    with pytest.raises(StorageError, match="schema version 99; this Moorage knows versions up to") as caught:
        UsageStore(tmp_path / "usage.db")
    assert caught.value.hint == "use the Moorage that wrote it, or a newer one"


def test_a_full_disk_is_told_as_such(tmp_path):
    store = UsageStore(tmp_path / "usage.db")
    ((pages,),) = store._db.rows("PRAGMA page_count")
    store._db.rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFull, match="the disk is full"):
        store.apply([Open(an_interval(f"u{at}", node="n" * 1000)) for at in range(100)])
    assert store.open_intervals() == []
    store.close()


@pytest.mark.processes
def test_what_was_written_survives_a_kill(tmp_path):
    code = f"""
import os, signal
from datetime import UTC, datetime
from moorage.decide.usage.intervals import Interval, Open
from moorage_testing.intervals import HOUR, TEN, an_interval
from moorage.usage.store import UsageStore
store = UsageStore({str(tmp_path / "usage.db")!r})
when = datetime(2026, 1, 5, tzinfo=UTC)
for at in range(5):
    store.apply([Open(Interval(pod_uid=f"u{{at}}", namespace="n", pod="p", run="", attempt=1, owner="a", node="n",
        gpu_type="t", gpus=1, cpu_milli=1, memory_bytes=1, started_at=when, ended_at=None, last_seen_at=when))])
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == -9
    store = UsageStore(tmp_path / "usage.db")
    assert [interval.pod_uid for interval in store.open_intervals()] == [f"u{at}" for at in range(5)]
    store.close()
