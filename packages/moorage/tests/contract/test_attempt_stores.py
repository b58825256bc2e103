"""What is kept of attempts: one suite for SQLite and PostgreSQL, beside the queue's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from moorage.api.storedrecords import StoredAttempt, StoredPod, StoredRun
from moorage.attempts.store import AttemptStore, open_attempts
from moorage.queue.store import open_store
from moorage_kube.testing.clock import NOON

DAY = timedelta(days=1)


@pytest.fixture
def where(database: Path | str) -> Path | str:
    return database


@pytest.fixture
def store(where: Path | str) -> Iterator[AttemptStore]:
    store = open_attempts(where)
    yield store
    store.close()


def an_attempt(number: int = 1, *, run_uid: str = "j1", name: str = "train", **fields: object) -> StoredAttempt:
    attempt = StoredAttempt(
        job_uid=run_uid if number == 1 else f"{run_uid}-{number}",
        run_uid=run_uid,
        namespace="lab",
        run=name,
        number=number,
        document={"metadata": {"name": name, "labels": {"a": "100% ?"}}},
        created=NOON + timedelta(minutes=number),
    )
    return msgspec.structs.replace(attempt, **fields)


def a_pod(uid: str = "p1", *, job_uid: str = "j1", attempt: int = 1, **fields: object) -> StoredPod:
    pod = StoredPod(
        uid=uid,
        job_uid=job_uid,
        namespace="lab",
        run="train",
        attempt=attempt,
        name=f"train-{uid}",
        node="gpu-1",
        phase="Failed",
        created=NOON,
        started=NOON,
        ended=NOON + timedelta(microseconds=1),
        exit_code=137,
        reason="OOMKilled",
        message="it's over; 100%",
        memory_limit_bytes=2**40,
        peak_memory_bytes=2**40,
        gpus=2,
        gpu_type="a100",
        disrupted=True,
        container="first",
    )
    return msgspec.structs.replace(pod, **fields)


def test_what_is_written_is_read_again_whole(store: AttemptStore) -> None:
    bare = a_pod("p2", created=None, started=None, ended=None, exit_code=None, memory_limit_bytes=None)
    store.write([an_attempt()], [a_pod(), bare])
    store.write([an_attempt()], [a_pod()])  # again: nothing is doubled
    assert store.run("lab", "train") == StoredRun(attempts=(an_attempt(),), pods=(bare, a_pod()))
    assert store.known(["j1", "no"], ["p2", "no"]) == StoredRun(attempts=(an_attempt(),), pods=(bare,))
    assert store.run("lab", "other") == store.run("' OR 1=1 --", "train") == StoredRun()


def test_the_pods_of_many_jobs_are_read_by_the_uids_of_these(store: AttemptStore) -> None:
    pods = [a_pod(f"p{at}", job_uid=f"j{at % 1500}", attempt=1 + at // 1500) for at in range(3000)]
    store.write([], pods)
    assert store.pods_of(f"j{at}" for at in range(1, 1500)) == tuple(
        sorted((pod for pod in pods if pod.job_uid != "j0"), key=lambda pod: (pod.attempt, pod.name))
    )
    assert store.pods_of([]) == store.pods_of(["no", "' OR 1=1 --"]) == ()


def test_what_is_gone_is_no_longer_open(store: AttemptStore) -> None:
    store.write([an_attempt(), an_attempt(2)], [a_pod(), a_pod("p2")])
    store.write([an_attempt(gone=NOON)], [a_pod(gone=NOON)])
    assert store.open() == StoredRun(attempts=(an_attempt(2),), pods=(a_pod("p2"),))


def test_of_a_name_that_was_used_twice_the_newest_run_is_given(store: AttemptStore) -> None:
    old = [an_attempt(gone=NOON), an_attempt(2, gone=NOON)]
    new = an_attempt(run_uid="k1", created=NOON + DAY, gone=NOON + 2 * DAY)
    pods = [a_pod(), a_pod("p2", job_uid="j1-2", attempt=2), a_pod("p3", job_uid="k1")]
    store.write([*old, new], pods)
    assert store.run("lab", "train") == StoredRun(attempts=(new,), pods=(pods[2],))
    store.write([an_attempt(created=NOON, gone=None)], [])  # the one that is there counts more than a newer one
    assert [attempt.number for attempt in store.run("lab", "train").attempts] == [1, 2]


def test_an_erased_run_is_never_kept_again(store: AttemptStore) -> None:
    store.write([an_attempt()], [a_pod()])
    store.write([an_attempt(run_uid="x1", name="other")], [a_pod("p9", job_uid="x1", run="other")])
    assert store.erase("lab", "train", now=NOON) == ["p1"]
    store.write([an_attempt()], [a_pod(), a_pod("p2")])  # its pods are still ending
    assert (store.run("lab", "train"), store.forgotten(["j1", "x1"])) == (StoredRun(), {"j1"})
    assert [pod.uid for pod in store.run("lab", "other").pods] == ["p9"]
    assert store.open().attempts == (an_attempt(run_uid="x1", name="other"),)
    again = an_attempt(run_uid="k1")
    store.write([again], [])  # another run of the same name
    assert store.run("lab", "train") == StoredRun(attempts=(again,))


def test_what_was_gone_long_ago_is_dropped_whole(store: AttemptStore) -> None:
    store.write(
        [an_attempt(gone=NOON), an_attempt(run_uid="k1", gone=NOON + DAY), an_attempt(run_uid="l1")],
        [a_pod(gone=NOON), a_pod("p2", job_uid="k1", gone=NOON + DAY), a_pod("p3", job_uid="l1")],
    )
    store.erase("lab", "never", now=NOON)
    assert store.forget(NOON + DAY / 2) == ["p1"]
    assert store.known(["j1", "k1", "l1"], ["p1", "p2", "p3"]) == StoredRun(
        attempts=(an_attempt(run_uid="k1", gone=NOON + DAY), an_attempt(run_uid="l1")),
        pods=(a_pod("p2", job_uid="k1", gone=NOON + DAY), a_pod("p3", job_uid="l1")),
    )


def test_a_store_is_opened_again_with_what_it_held(where: Path | str) -> None:
    queue, first = open_store(where), open_attempts(where)
    first.write([an_attempt()], [a_pod()])
    first.close()
    queue.close()
    second = open_attempts(where)
    try:
        assert second.run("lab", "train").pods == (a_pod(),)
    finally:
        second.close()
