"""Facts of attempts and their pods in SQL: `attempts.db` next to `usage.db`, or PostgreSQL.

Every row has the uid of its object as its key, so a repeated write changes nothing, and two servers on one
PostgreSQL write the same. The uids of an erased run's Jobs stay, so that it is not recorded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from moorage.api.storedrecords import StoredAttempt, StoredPod, StoredRun
from moorage.sql.database import Database, Row, Table
from moorage.sql.migrations import Schema
from moorage.sql.opening import open_database
from moorage.sql.timestamps import from_microseconds, to_microseconds

SCHEMA = Schema("moorage.attempts", "attempts.")
_TEXT, _NUMBER = "text", "bigint"
# Prefix of a Workflow's name, stored as the run and the Job. Names of runs have no slash.
_OF_WORKFLOW = "workflow/"
JOBS = Table(
    "attempt_jobs",
    ("job_uid", "run_uid", "namespace", "run", "attempt", "document", "created_at", "gone_at", "forgotten"),
    types=(_TEXT, _TEXT, _TEXT, _TEXT, _NUMBER, _TEXT, _NUMBER, _NUMBER, _NUMBER),
    keys=1,
)
PODS = Table(
    "attempt_pods",
    (
        "pod_uid",
        "job_uid",
        "namespace",
        "run",
        "attempt",
        "pod",
        "node",
        "phase",
        "created_at",
        "started_at",
        "ended_at",
        "exit_code",
        "reason",
        "message",
        "memory_limit_bytes",
        "peak_memory_bytes",
        "gpus",
        "gpu_type",
        "disrupted",
        "gone_at",
        "container",
    ),
    types=(
        *(_TEXT,) * 4, _NUMBER, *(_TEXT,) * 3, *(_NUMBER,) * 4, *(_TEXT,) * 2, *(_NUMBER,) * 3, _TEXT,
        *(_NUMBER,) * 2, _TEXT,
    ),
    keys=1,
)  # fmt: skip
PODS_BY_JOB = Table(PODS.name, ("job_uid",), types=(_TEXT,), keys=1)  # to be read by
_SELECT_JOBS = f"SELECT {', '.join(JOBS.columns)} FROM {JOBS.name}"
_SELECT_PODS = f"SELECT {', '.join(PODS.columns)} FROM {PODS.name}"


class AttemptStore:
    """Records of attempts. Methods block; use one thread at a time.

    They raise StorageError, StorageFull on a full disk.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def close(self) -> None:
        self._db.close()

    def write(self, attempts: Sequence[StoredAttempt], pods: Sequence[StoredPod]) -> None:
        """Add or replace, all or nothing. Records of an erased attempt are skipped."""
        if not attempts and not pods:
            return
        with self._db.transaction():
            erased = self.forgotten({*(job.job_uid for job in attempts), *(pod.job_uid for pod in pods)})
            self._db.upsert(JOBS, [_job_row(job) for job in attempts if job.job_uid not in erased])
            self._db.upsert(PODS, [_pod_row(pod) for pod in pods if pod.job_uid not in erased])

    def open(self) -> StoredRun:
        """The attempts and pods that are not recorded as deleted."""
        return StoredRun(
            attempts=self._jobs("WHERE gone_at IS NULL AND forgotten = 0"),
            pods=self._pods("WHERE gone_at IS NULL"),
        )

    def known(self, jobs: Iterable[str], pods: Iterable[str]) -> StoredRun:
        """The records of these uids."""
        job_rows = self._db.by_keys(JOBS, [(uid,) for uid in sorted(set(jobs))])
        pod_rows = self._db.by_keys(PODS, [(uid,) for uid in sorted(set(pods))])
        return StoredRun(
            attempts=tuple(_job(row) for row in job_rows if not row[-1]), pods=tuple(_pod(row) for row in pod_rows)
        )

    def pods_of(self, jobs: Iterable[str]) -> tuple[StoredPod, ...]:
        """The pods of the Jobs with these uids; the oldest attempt first."""
        rows = self._db.by_keys(PODS_BY_JOB, [(uid,) for uid in sorted(set(jobs))], columns=PODS.columns)
        return tuple(sorted(map(_pod, rows), key=lambda pod: (pod.attempt, _stamp(pod.created), pod.name)))

    def steps(self, namespace: str, workflow: str, uid: str, *, pod: str = "") -> tuple[StoredPod, ...]:
        """The pods of a Workflow's steps, sorted by start, for the Workflow's uid.

        `pod`: only pods with this name.
        """
        rows = self._pods(
            "WHERE job_uid = ? AND namespace = ? AND run = ?" + (" AND pod = ?" if pod else ""),
            *(uid, namespace, f"{_OF_WORKFLOW}{workflow}"),
            *((pod,) if pod else ()),
        )
        return tuple(sorted(rows, key=lambda row: (_stamp(row.started or row.created), row.name)))

    def run(self, namespace: str, name: str) -> StoredRun:
        """The newest run of this name, oldest attempt first; empty if there is none."""
        jobs = self._jobs("WHERE namespace = ? AND run = ? AND forgotten = 0", namespace, name)
        if not jobs:
            return StoredRun()
        newest = max(jobs, key=lambda job: (job.gone is None, _stamp(job.created), job.number)).run_uid
        attempts = sorted((job for job in jobs if job.run_uid == newest), key=lambda job: job.number)
        uids = {job.job_uid for job in attempts}
        pods = [
            pod for pod in self._pods("WHERE namespace = ? AND run = ?", namespace, name) if pod.job_uid in uids
        ]
        pods.sort(key=lambda pod: (pod.attempt, _stamp(pod.created), pod.name))
        return StoredRun(attempts=tuple(attempts), pods=tuple(pods))

    def forgotten(self, jobs: Iterable[str]) -> set[str]:
        """The uids among these Jobs that were erased."""
        rows = self._db.by_keys(JOBS, [(uid,) for uid in sorted(set(jobs))], columns=("job_uid", "forgotten"))
        return {uid for uid, erased in rows if erased}

    def erase(self, namespace: str, name: str, *, now: datetime, since: datetime | None = None) -> list[str]:
        """Erase every run of this name, for good; return the uids of its pods, to delete their logs.

        Runs that were created before `since` stay.
        """
        return self._erase(namespace, name, now, since)

    def erase_steps(
        self, namespace: str, workflow: str, *, now: datetime, since: datetime | None = None
    ) -> list[str]:
        """Erase the steps of every Workflow of this name, for good; return the uids of their pods.

        Steps that were created before `since` stay.
        """
        return self._erase(namespace, f"{_OF_WORKFLOW}{workflow}", now, since)

    def _erase(self, namespace: str, name: str, now: datetime, since: datetime | None) -> list[str]:
        where = "WHERE namespace = ? AND run = ?"
        chosen: tuple[Any, ...] = (namespace, name)
        if since is not None:
            where, chosen = f"{where} AND created_at >= ?", (*chosen, to_microseconds(since))
        with self._db.transaction():
            pods = self._pods(where, *chosen)
            owners = {pod.job_uid for pod in pods if pod.workflow}
            known = {row[0] for row in self._db.by_keys(JOBS, [(uid,) for uid in sorted(owners)])}
            self._db.upsert(JOBS, [_tombstone(uid, namespace, name, now) for uid in sorted(owners - known)])
            self._db.run(f"DELETE FROM attempt_pods {where}", *chosen)
            self._db.run(
                f"UPDATE attempt_jobs SET document = '', forgotten = 1, gone_at = COALESCE(gone_at, ?) {where}",
                to_microseconds(now),
                *chosen,
            )
        return [pod.uid for pod in pods]

    def forget(self, older: datetime) -> list[str]:
        """Delete records of pods deleted before a moment; return the uids of the pods, to delete their logs."""
        before = to_microseconds(older)
        with self._db.transaction():
            uids = [
                str(uid) for (uid,) in self._db.rows("SELECT pod_uid FROM attempt_pods WHERE gone_at < ?", before)
            ]
            self._db.run("DELETE FROM attempt_pods WHERE gone_at < ?", before)
            self._db.run("DELETE FROM attempt_jobs WHERE gone_at < ?", before)
        return uids

    def _jobs(self, where: str, *values: Any) -> tuple[StoredAttempt, ...]:
        return tuple(_job(row) for row in self._db.rows(f"{_SELECT_JOBS} {where}", *values))

    def _pods(self, where: str, *values: Any) -> tuple[StoredPod, ...]:
        return tuple(_pod(row) for row in self._db.rows(f"{_SELECT_PODS} {where}", *values))


def open_attempts(where: Path | str) -> AttemptStore:
    """Open the database, a file or a `postgresql://` address. Raises StorageError."""
    return AttemptStore(open_database(where, SCHEMA))


def _job_row(job: StoredAttempt) -> Row:
    document = msgspec.json.encode(job.document).decode()
    moments = (_micro(job.created), _micro(job.gone))
    return (job.job_uid, job.run_uid, job.namespace, job.run, job.number, document, *moments, 0)


def _tombstone(uid: str, namespace: str, name: str, now: datetime) -> Row:
    """Prevents new records of the Workflow with this uid."""
    return (uid, uid, namespace, name, 0, "", None, to_microseconds(now), 1)


def _job(row: Row) -> StoredAttempt:
    job_uid, run_uid, namespace, run, number, document, created, gone, _ = row
    return StoredAttempt(
        job_uid=job_uid,
        run_uid=run_uid,
        namespace=namespace,
        run=run,
        number=number,
        document=msgspec.json.decode(document) if document else {},
        created=_moment(created),
        gone=_moment(gone),
    )


def _pod_row(pod: StoredPod) -> Row:
    return (
        pod.uid,
        pod.job_uid,
        pod.namespace,
        f"{_OF_WORKFLOW}{pod.workflow}" if pod.workflow else pod.run,
        pod.attempt,
        pod.name,
        pod.node,
        pod.phase,
        _micro(pod.created),
        _micro(pod.started),
        _micro(pod.ended),
        pod.exit_code,
        pod.reason,
        pod.message,
        pod.memory_limit_bytes,
        pod.peak_memory_bytes,
        pod.gpus,
        pod.gpu_type,
        int(pod.disrupted),
        _micro(pod.gone),
        pod.container,
    )


def _pod(row: Row) -> StoredPod:
    values = dict(zip(PODS.columns, row, strict=True))
    is_step = values["run"].startswith(_OF_WORKFLOW)
    return StoredPod(
        uid=values["pod_uid"],
        job_uid=values["job_uid"],
        namespace=values["namespace"],
        run="" if is_step else values["run"],
        workflow=values["run"].removeprefix(_OF_WORKFLOW) if is_step else "",
        attempt=values["attempt"],
        name=values["pod"],
        node=values["node"],
        phase=values["phase"],
        created=_moment(values["created_at"]),
        started=_moment(values["started_at"]),
        ended=_moment(values["ended_at"]),
        exit_code=values["exit_code"],
        reason=values["reason"],
        message=values["message"],
        memory_limit_bytes=values["memory_limit_bytes"],
        peak_memory_bytes=values["peak_memory_bytes"],
        gpus=values["gpus"],
        gpu_type=values["gpu_type"],
        disrupted=bool(values["disrupted"]),
        gone=_moment(values["gone_at"]),
        container=values["container"],
    )


def _micro(moment: datetime | None) -> int | None:
    return None if moment is None else to_microseconds(moment)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)


def _stamp(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0
