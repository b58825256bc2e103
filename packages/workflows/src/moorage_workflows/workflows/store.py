"""Runs of workflows in SQL: `workflows.db` next to `usage.db`, or PostgreSQL.

A run is a row, and so is each of its nodes: a save writes only the nodes that changed. The document of a run,
which may have a megabyte, is written once. A run has one holder at a time, the operator that loaded it last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from moorage.settings import WORKFLOW_BYTES_PER_NAMESPACE
from moorage.sql.database import Database, Row, Table
from moorage.sql.migrations import Schema
from moorage.sql.opening import open_database
from moorage.sql.timestamps import from_microseconds, to_microseconds
from moorage_kube.errors import BadRequest, Conflict, NotFound, QuotaExceeded
from moorage_kube.integers import integer_or
from moorage_kube.moments import moment, rfc3339
from moorage_workflows.decide.workflows.metrics import counted
from moorage_workflows.model.workflow import (
    ENDED_PHASES,
    ArtifactName,
    Loaded,
    Memo,
    MetricPoint,
    MetricSeries,
    NodePhase,
    NodeRecord,
    StepReport,
    WorkflowRecord,
)
from moorage_workflows.workflows import metrics as metric_rows
from moorage_workflows.workflows.query import NODES_PAGE_MAX, PAGE_MAX, NodePage, RunPage, RunQuery

SCHEMA = Schema("moorage_workflows.workflows", "workflows.")
_TEXT, _NUMBER = "text", "bigint"
RUNS = Table(
    "workflow_runs",
    (
        "uid",
        "namespace",
        "name",
        "phase",
        "cron",
        "created_at",
        "finished_at",
        "gone_at",
        "holder",
        "labels",
        "record",
        "document",
    ),
    types=(*(_TEXT,) * 5, *(_NUMBER,) * 3, *(_TEXT,) * 4),
    keys=1,
)
NODES = Table("workflow_nodes", ("uid", "id", "phase", "pod", "record"), types=(_TEXT,) * 5)
REPORTS = Table("workflow_reports", ("uid", "pod", "report"), types=(_TEXT,) * 3)
MEMOS = Table(
    "workflow_memos",
    ("namespace", "cache", "name", "kept_at", "memo", "bytes"),
    types=(_TEXT, _TEXT, _TEXT, _NUMBER, _TEXT, _NUMBER),
    keys=3,
)
SIZES = Table("workflow_sizes", ("uid", "namespace", "bytes"), types=(_TEXT, _TEXT, _NUMBER), keys=1)
OPEN_PHASES = frozenset({NodePhase.PENDING, NodePhase.RUNNING})
SCAN = 500  # rows that are read at a time, where labels or names decide which of them are meant
HOLDERS_MAX = 100  # of locks, in one answer
ROW_BYTES = 200  # of a row and its indexes, without its text
ROOM_SHARE = 20  # this part of a quota is made free at once, where it is used up
BATCH = 5000  # rows in one statement of a save, and runs in one transaction of `forget`

EPOCH = datetime.fromtimestamp(0, UTC)

_encode = msgspec.json.Encoder().encode
_NODE = msgspec.json.Decoder(NodeRecord)
_RUN = msgspec.json.Decoder(WorkflowRecord)
_REPORT = msgspec.json.Decoder(StepReport)
_MEMO = msgspec.json.Decoder(Memo)


class WorkflowStore:
    """The database of runs. Its methods block; only one thread at a time may use them.

    Each method raises StorageError, and StorageFull if the disk is full.
    """

    def __init__(self, database: Database, quota: int = 0) -> None:
        """`quota`: the maximum number of bytes of all records and memos of a namespace; 0: no limit."""
        self._db, self._quota = database, quota

    def close(self) -> None:
        self._db.close()

    # --- for the operator; see `moorage_workflows.controllers.workflow.records`

    def begin(self, record: WorkflowRecord, since: datetime | None = None) -> WorkflowRecord:
        """Store a new run; return the stored record. Raises BadRequest for an invalid time, and QuotaExceeded.

        `since`: when its namespace was created. Older metrics are deleted: they belong to an earlier namespace.
        """
        # times and labels of the object, for columns that are searched
        created = _micro(record.created_at, "createdAt") or 0
        metadata = record.document.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
        # a repeated call returns the first record
        with self._db.transaction():
            if kept := self._kept(record.uid):
                return kept
            if since is not None:
                metric_rows.forget(self._db, since, record.namespace)
            # the object of an older run of this name cannot exist any more
            self._db.run(
                "UPDATE workflow_runs SET gone_at = ? WHERE namespace = ? AND name = ? AND gone_at IS NULL"
                " AND created_at <= ?",
                created,
                record.namespace,
                record.name,
                created,
            )
            # the row, which counts against the quota only if it is new
            row = (
                record.uid,
                record.namespace,
                record.name,
                record.phase,
                record.cron,
                created,
                _finished(record),
                _micro(record.gone_at, "goneAt"),
                "",
                _json(labels or {}),
                _record_json(record),
                _json(record.document),
            )
            marks = ", ".join("?" * len(row))
            columns = ", ".join(RUNS.columns)
            if self._db.run(
                f"INSERT INTO workflow_runs ({columns}) VALUES ({marks}) ON CONFLICT (uid) DO NOTHING", *row
            ):
                self._take(record.namespace, record.uid, _size(*row[-2:]))
            # metrics count the run in the same transaction
            kept = self._kept(record.uid)
            points = [counted("total_count", phase=_phase(record), namespace=record.namespace)]
            if record.cron:
                points.append(
                    counted("cronworkflows_triggered_total", name=record.cron, namespace=record.namespace)
                )
            metric_rows.count(self._db, points, from_microseconds(created))
        return kept or record

    def load(self, uid: str, holder: str) -> Loaded:
        """All records of a run; from now on only this holder may write to it. Raises NotFound."""
        with self._db.transaction():
            if not self._db.run("UPDATE workflow_runs SET holder = ? WHERE uid = ?", holder, uid):
                raise _unknown(uid)
            run = self._kept(uid)
            nodes = self._db.rows("SELECT record FROM workflow_nodes WHERE uid = ?", uid)
            reports = self._db.rows("SELECT report FROM workflow_reports WHERE uid = ?", uid)
        if run is None:
            raise _unknown(uid)
        return Loaded(
            workflow=run,
            nodes=tuple(_NODE.decode(row[0]) for row in nodes),
            reports=tuple(_REPORT.decode(row[0]) for row in reports),
        )

    def save(
        self,
        uid: str,
        holder: str,
        nodes: Sequence[NodeRecord] = (),
        workflow: WorkflowRecord | None = None,
        *,
        metrics: Sequence[MetricPoint] = (),
        at: datetime = EPOCH,
    ) -> tuple[str, ...]:
        """Save nodes and the run, all or nothing. Final nodes are not changed. Raises Conflict and NotFound.

        `metrics` count only for nodes and runs that become final now; `at`: the time. Returns why some were
        refused.
        """
        newest = {node.id: node for node in nodes}
        with self._db.transaction():
            namespace = self._hold(uid, holder)
            points = self._new_points(uid, metrics)
            size = 0
            for batch in _batches(list(newest.values())):
                keys = [(uid, node.id) for node in batch]
                kept = self._db.by_keys(NODES, keys, columns=("id", "phase"))
                final = {str(node_id) for node_id, phase in kept if phase not in OPEN_PHASES}
                rows = [_node_row(uid, node) for node in batch if node.id not in final]
                self._db.upsert(NODES, rows)
                size += sum(_size(row[-1]) for row in rows if row[2] not in OPEN_PHASES)  # it is written once
            problems = metric_rows.add(self._db, namespace, uid, points, at) if points else ()
            self._grow(uid, namespace, size + self._replace(uid, namespace, workflow, at))
        return problems

    def forget_nodes(
        self,
        uid: str,
        holder: str,
        ids: Collection[str],
        workflow: WorkflowRecord | None = None,
        *,
        at: datetime = EPOCH,
    ) -> None:
        """Delete nodes and the reports of their pods, and save the run; all or nothing.

        Raises Conflict, NotFound.
        """
        with self._db.transaction():
            namespace = self._hold(uid, holder)
            size = 0
            for batch in _batches(sorted(set(ids))):
                columns = ("pod", "phase", "record")
                kept = self._db.by_keys(NODES, [(uid, node_id) for node_id in batch], columns=columns)
                pods = [(uid, pod) for pod, _, _ in kept if pod]
                texts = [(record,) for _, phase, record in kept if phase not in OPEN_PHASES]
                size -= sum(
                    _size(text) for (text,) in texts + self._db.by_keys(REPORTS, pods, columns=("report",))
                )
                self._db.run_each("DELETE FROM workflow_reports WHERE uid = ? AND pod = ?", pods)
                self._db.run_each(
                    "DELETE FROM workflow_nodes WHERE uid = ? AND id = ?", [(uid, node_id) for node_id in batch]
                )
            self._grow(uid, namespace, size + self._replace(uid, namespace, workflow, at))

    def mark_deleted(self, uid: str, holder: str, artifacts: Iterable[ArtifactName]) -> None:
        """Mark artifacts as deleted; unknown nodes are ignored. Raises Conflict, NotFound."""
        names: dict[str, set[str]] = {}
        for artifact in artifacts:
            names.setdefault(artifact.node, set()).add(artifact.name)
        with self._db.transaction():
            self._hold(uid, holder)
            for batch in _batches(sorted(names)):
                rows = self._db.by_keys(NODES, [(uid, node_id) for node_id in batch], columns=("record",))
                nodes = [_NODE.decode(row[0]) for row in rows]
                self._db.upsert(NODES, [_node_row(uid, _without(node, names[node.id])) for node in nodes])

    def reports(self, uid: str, pods: Iterable[str]) -> tuple[StepReport, ...]:
        rows = self._db.by_keys(REPORTS, [(uid, pod) for pod in sorted(set(pods))], columns=("report",))
        return tuple(_REPORT.decode(row[0]) for row in rows)

    def unfinished(self) -> tuple[str, ...]:
        """Return the uids of unfinished runs, oldest first."""
        rows = self._db.rows(
            "SELECT uid FROM workflow_runs WHERE finished_at IS NULL AND gone_at IS NULL ORDER BY created_at, uid"
        )
        return tuple(str(uid) for (uid,) in rows)

    def gone(self, uid: str, at: datetime) -> None:
        """Record that the object was deleted. A second call does not change the time."""
        self._db.run(
            "UPDATE workflow_runs SET gone_at = ? WHERE uid = ? AND gone_at IS NULL", to_microseconds(at), uid
        )
        metric_rows.forget_run(self._db, uid)

    def remember(self, namespace: str, cache: str, key: str, memo: Memo) -> None:
        """Store outputs in a cache. Raises BadRequest for an invalid time, and QuotaExceeded."""
        at, text = _micro(memo.at, "at") or 0, _json(memo)
        with self._db.transaction():
            self._make_room(namespace, _size(text))
            self._db.upsert(MEMOS, [(namespace, cache, key, at, text, _size(text))])

    def recall(self, namespace: str, cache: str, key: str, *, since: datetime | None = None) -> Memo | None:
        rows = self._db.rows(
            "SELECT kept_at, memo FROM workflow_memos WHERE namespace = ? AND cache = ? AND name = ?",
            namespace,
            cache,
            key,
        )
        if not rows or (since is not None and rows[0][0] < to_microseconds(since)):
            return None
        return _MEMO.decode(rows[0][1])

    def metrics(self) -> Sequence[MetricSeries]:
        """Return all metrics with values of workflows, sorted by name."""
        return metric_rows.all_series(self._db)

    def phases(self) -> dict[str, int]:
        """Number of runs with existing objects, by phase."""
        rows = self._db.rows("SELECT phase, count(*) FROM workflow_runs WHERE gone_at IS NULL GROUP BY phase")
        counts: dict[str, int] = {}
        for phase, many in rows:
            counts[phase or "Pending"] = counts.get(phase or "Pending", 0) + int(many)
        return counts

    # --- for steps

    def run(self, uid: str) -> WorkflowRecord | None:
        """Return the run with this uid, with an empty document; None if it is unknown."""
        rows = self._db.rows("SELECT record, gone_at FROM workflow_runs WHERE uid = ?", uid)
        return _run(rows[0][0], {}, rows[0][1]) if rows else None

    def has_pod(self, uid: str, pod: str) -> bool:
        """Whether a node of this run has a pod of this name. A node is saved before its pod is created."""
        return bool(self._db.rows("SELECT 1 FROM workflow_nodes WHERE uid = ? AND pod = ? LIMIT 1", uid, pod))

    def report(self, uid: str, pod: str, report: StepReport) -> bool:
        """Store the report of a step's pod; False if the pod has reported before: the first report counts.

        Raises NotFound and QuotaExceeded.
        """
        text = _json(msgspec.structs.replace(report, pod=pod))
        with self._db.transaction():
            runs = self._db.rows("SELECT namespace FROM workflow_runs WHERE uid = ?", uid)
            if not runs:
                raise _unknown(uid)
            is_new = self._db.run(
                "INSERT INTO workflow_reports (uid, pod, report) VALUES (?, ?, ?)"
                " ON CONFLICT (uid, pod) DO NOTHING",
                uid,
                pod,
                text,
            )
            if is_new:
                self._take(runs[0][0], uid, _size(text))
            return bool(is_new)

    # --- for people

    def get(self, namespace: str, name: str, since: datetime | None = None) -> WorkflowRecord | None:
        """Return the newest run of this name with its document. Runs older than `since` are ignored."""
        runs = self.history(namespace, name, since)
        return self._kept(runs[0].uid) if runs else None

    def history(self, namespace: str, name: str, since: datetime | None = None) -> tuple[WorkflowRecord, ...]:
        """Return the runs of this name since `since`, newest first, with empty documents."""
        rows = self._db.rows(
            "SELECT record, gone_at FROM workflow_runs WHERE namespace = ? AND name = ? AND created_at >= ?"
            " ORDER BY created_at DESC, uid DESC",
            namespace,
            name,
            to_microseconds(since or EPOCH),
        )
        return tuple(_run(record, {}, gone) for record, gone in rows)

    def by_uid(self, uid: str) -> WorkflowRecord | None:
        """Return the run with this uid, with its document; None if it is unknown."""
        return self._kept(uid)

    def list(self, query: RunQuery) -> RunPage:
        """A page of runs, the newest first. Raises BadRequest for an `after` that is not from an earlier page."""
        limit = max(1, min(query.limit, PAGE_MAX))
        chosen: Rows = []
        for row in self._newest(query):
            chosen.append(row)
            if len(chosen) > limit:
                break
        page = chosen[:limit]
        documents: dict[str, Mapping[str, Any]] = {}
        if query.documents:
            rows = self._db.by_keys(RUNS, [(row[0],) for row in page], columns=("uid", "document"))
            documents = {str(uid): msgspec.json.decode(text) for uid, text in rows}
        runs = []
        for uid, namespace, name, _created, labels, record, gone in page:
            metadata = {"name": name, "namespace": namespace, "labels": msgspec.json.decode(labels)}
            runs.append(_run(record, documents.get(uid, {"metadata": metadata}), gone))
        after = f"{page[-1][3]}.{page[-1][0]}" if len(chosen) > limit else ""
        return RunPage(runs=tuple(runs), after=after)

    def nodes(self, uid: str, *, after: str = "", limit: int = NODES_PAGE_MAX) -> NodePage:
        """Return a page of a run's nodes, sorted by id; empty for an unknown run."""
        limit = max(1, min(limit, NODES_PAGE_MAX))
        rows = self._db.rows(
            "SELECT id, record FROM workflow_nodes WHERE uid = ? AND id > ? ORDER BY id LIMIT ?",
            uid,
            after,
            limit + 1,
        )
        page = rows[:limit]
        return NodePage(
            nodes=tuple(_NODE.decode(record) for _, record in page),
            after=str(page[-1][0]) if len(rows) > limit else "",
        )

    def node(self, uid: str, node_id: str) -> NodeRecord | None:
        rows = self._db.rows("SELECT record FROM workflow_nodes WHERE uid = ? AND id = ?", uid, node_id)
        return _NODE.decode(rows[0][0]) if rows else None

    def holders(self, locks: Collection[str]) -> tuple[tuple[WorkflowRecord, NodeRecord | None], ...]:
        """Return the runs that hold one of these locks, each with the node that holds it; at most HOLDERS_MAX.

        None: the run itself holds the lock.
        """
        rows = self._db.rows(
            "SELECT r.record, r.gone_at, n.record FROM workflow_runs r JOIN workflow_nodes n ON n.uid = r.uid"
            " WHERE r.finished_at IS NULL AND r.gone_at IS NULL AND n.phase IN ('Pending', 'Running')"
            " AND n.record LIKE ?"
            " UNION ALL SELECT record, gone_at, NULL FROM workflow_runs"
            " WHERE finished_at IS NULL AND gone_at IS NULL AND record LIKE ?",
            '%"locks":[%',
            '%"locks":[%',
        )
        pairs = ((_run(run, {}, gone), _NODE.decode(node) if node else None) for run, gone, node in rows)
        held = [(run, node) for run, node in pairs if not set(locks).isdisjoint((node or run).locks)]
        return tuple(held[:HOLDERS_MAX])

    def forget(self, older: datetime, *, present: Collection[str] | None = None) -> int:
        """Delete runs whose objects were deleted before a moment, and older memos and metrics.

        Returns the number of runs. `present`: uids of all existing Workflow objects. A run that ended before that
        moment and is not among them is deleted too: its deletion was missed. None: the uids are unknown.
        """
        before = to_microseconds(older)
        uids = [str(uid) for (uid,) in self._db.rows("SELECT uid FROM workflow_runs WHERE gone_at < ?", before)]
        if present is not None:
            ended = self._db.rows(
                "SELECT uid FROM workflow_runs WHERE gone_at IS NULL AND finished_at < ?", before
            )
            uids += [str(uid) for (uid,) in ended if uid not in present]
        for batch in _batches(uids):
            with self._db.transaction():
                self._drop(batch)
        self._db.run("DELETE FROM workflow_memos WHERE kept_at < ?", before)
        metric_rows.forget(self._db, older)
        return len(uids)

    def take_over(self, other: WorkflowStore) -> int:
        """Copy the missing runs of another store, with their records, memos and metrics; return their number.

        Each run is copied completely or not at all. Nothing else may write to the other store meanwhile.
        """
        count = 0
        for (uid,) in other._db.rows("SELECT uid FROM workflow_runs ORDER BY created_at, uid"):
            copied = {
                table: other._db.rows(f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE uid = ?", uid)
                for table in (RUNS, NODES, REPORTS, SIZES)
            }
            with self._db.transaction():
                if self._db.rows("SELECT 1 FROM workflow_runs WHERE uid = ?", uid):
                    continue
                for table, rows in copied.items():
                    for batch in _batches(rows):
                        self._db.upsert(table, batch)
            count += 1
        for table in (MEMOS, metric_rows.METRICS):
            rows = other._db.rows(f"SELECT {', '.join(table.columns)} FROM {table.name}")
            with self._db.transaction():
                for batch in _batches(rows):
                    keys = [row[: table.keys] for row in batch]
                    there = set(self._db.by_keys(table, keys, columns=table.columns[: table.keys]))
                    self._db.upsert(table, [row for row in batch if row[: table.keys] not in there])
        return count

    # --- rows

    def _kept(self, uid: str) -> WorkflowRecord | None:
        rows = self._db.rows("SELECT record, document, gone_at FROM workflow_runs WHERE uid = ?", uid)
        if not rows:
            return None
        record, document, gone = rows[0]
        return _run(record, msgspec.json.decode(document), gone)

    def _drop(self, uids: Sequence[str]) -> None:
        """Delete these runs. Call it inside a transaction."""
        for table in (NODES, REPORTS, SIZES, RUNS):
            self._db.run_each(f"DELETE FROM {table.name} WHERE uid = ?", [(uid,) for uid in uids])

    def _take(self, namespace: str, uid: str, size: int) -> None:
        """Let a run grow by `size` bytes. Call it inside a transaction. Raises QuotaExceeded."""
        self._make_room(namespace, size)
        self._grow(uid, namespace, size)

    def _grow(self, uid: str, namespace: str, size: int) -> None:
        """Update the sizes. Call it last in a transaction: see the order of locks in `sql.postgres`."""
        if size:
            self._db.run(
                "INSERT INTO workflow_sizes (uid, namespace, bytes) VALUES (?, ?, ?)"
                " ON CONFLICT (uid) DO UPDATE SET bytes = workflow_sizes.bytes + excluded.bytes",
                uid,
                namespace,
                size,
            )

    def _make_room(self, namespace: str, size: int) -> None:
        """Reserve `size` bytes more for a namespace. Call it inside a transaction.

        Above the quota, the oldest runs whose objects are deleted are removed, then all memos. Raises
        QuotaExceeded if that is not enough.
        """
        if not self._quota:
            return
        sums = "SELECT COALESCE(SUM(bytes), 0) FROM {} WHERE namespace = ?"
        runs, memos = (int(self._db.rows(sums.format(table.name), namespace)[0][0]) for table in (SIZES, MEMOS))
        if (over := runs + memos + size - self._quota) <= 0:
            return
        gone = self._db.rows(
            "SELECT s.uid, s.bytes FROM workflow_sizes AS s JOIN workflow_runs AS r ON r.uid = s.uid"
            " WHERE s.namespace = ? AND r.gone_at IS NOT NULL ORDER BY r.gone_at, s.uid",
            namespace,
        )
        if sum(row[1] for row in gone) + memos < over:
            raise QuotaExceeded(
                f"the records of workflows in namespace {namespace} have {runs + memos:,} bytes; {size:,} more"
                f" exceed the limit of {self._quota:,}",
                hint="delete Workflows that have ended, and save large outputs as artifacts; an administrator sets"
                f" {WORKFLOW_BYTES_PER_NAMESPACE.name}",
            )
        dropped: list[str] = []
        for uid, freed in gone:
            if over + self._quota // ROOM_SHARE <= 0:
                break
            dropped.append(str(uid))
            over -= freed
        self._drop(dropped)
        if over > 0:
            self._db.run("DELETE FROM workflow_memos WHERE namespace = ?", namespace)

    def _hold(self, uid: str, holder: str) -> str:
        """Lock a run until the end of the transaction, for one writer at a time. Returns its namespace."""
        lock = self._db.locking(" FOR UPDATE")
        rows = self._db.rows(f"SELECT holder, namespace FROM workflow_runs WHERE uid = ?{lock}", uid)
        if not rows:
            raise _unknown(uid)
        if rows[0][0] != holder or not holder:
            raise Conflict(
                f"the records of workflow {uid} are held by {rows[0][0] or 'nobody'}, not by {holder!r}",
                hint="load the run again",
            )
        return str(rows[0][1])

    def _new_points(self, uid: str, metrics: Sequence[MetricPoint]) -> tuple[MetricPoint, ...]:
        """Return the points whose node or run had not ended before."""
        if not metrics:
            return ()
        run = self._db.rows("SELECT finished_at FROM workflow_runs WHERE uid = ?", uid)
        ids = sorted({point.node for point in metrics if point.node})
        kept = self._db.by_keys(NODES, [(uid, node) for node in ids], columns=("id", "phase"))
        ended = {str(node) for node, phase in kept if phase not in OPEN_PHASES}
        ended |= {""} if run[0][0] is not None else set()
        return tuple(point for point in metrics if point.node not in ended)

    def _replace(self, uid: str, namespace: str, workflow: WorkflowRecord | None, at: datetime) -> int:
        """Save the run, and count a new phase. Returns by how many bytes it grew."""
        if workflow is None:
            return 0
        was, before = self._db.rows("SELECT phase, record FROM workflow_runs WHERE uid = ?", uid)[0]
        if (phase := _phase(workflow)) != (was or "Pending"):
            metric_rows.count(self._db, [counted("total_count", phase=phase, namespace=namespace)], at)
        text = _record_json(msgspec.structs.replace(workflow, uid=uid))
        self._db.run(
            "UPDATE workflow_runs SET phase = ?, finished_at = ?, record = ?, gone_at = COALESCE(gone_at, ?)"
            " WHERE uid = ?",
            workflow.phase,
            _finished(workflow),
            text,
            _micro(workflow.gone_at, "goneAt"),
            uid,
        )
        return _size(text) - _size(before)

    def _newest(self, query: RunQuery) -> Iterator[Row]:
        """Yield the rows of a query, newest first. They are read in small batches."""
        wheres: list[str] = ["1 = 1"]
        values: list[Any] = []
        for column, wanted in (("namespace", query.namespaces), ("phase", query.phases or None)):
            if wanted is not None:
                if not wanted:
                    return
                wheres.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += sorted(wanted)
        if query.cron:
            wheres.append("cron = ?")
            values.append(query.cron)
        if query.present:
            wheres.append("gone_at IS NULL")
        if query.since is not None:
            wheres.append("created_at >= ?")
            values.append(to_microseconds(query.since))
        created, uid = _cursor(query.after)
        while True:
            rows = self._db.rows(
                "SELECT uid, namespace, name, created_at, labels, record, gone_at FROM workflow_runs"
                f" WHERE {' AND '.join(wheres)} AND (created_at, uid) < (?, ?)"
                f" ORDER BY created_at DESC, uid DESC LIMIT {SCAN}",
                *values,
                created,
                uid,
            )
            for row in rows:
                if row[2].startswith(query.prefix) and query.labels.matches(msgspec.json.decode(row[4])):
                    yield row
            if len(rows) < SCAN:
                return
            uid, created = str(rows[-1][0]), int(rows[-1][3])


Rows = list[Row]
_LAST = 2**62  # later than any moment


def open_workflows(where: Path | str, quota: int = 0) -> WorkflowStore:
    """Open the database, a file or a `postgresql://` address. `quota`: as for WorkflowStore.

    Raises StorageError.
    """
    return WorkflowStore(open_database(where, SCHEMA), quota)


def _cursor(after: str) -> tuple[int, str]:
    if not after:
        return _LAST, ""
    created, _, uid = after.partition(".")
    number = integer_or(created, -1)
    if number < 0 or not uid:
        raise BadRequest(f"{after!r} is not a place in the list of workflows", hint="take it from the page before")
    return number, uid


def _unknown(uid: str) -> NotFound:
    return NotFound(f"there are no records of workflow {uid}")


def _json(value: Any) -> str:
    return _encode(value).decode()


def _size(*texts: str) -> int:
    """Return the size in bytes of a row with these strings."""
    return ROW_BYTES + sum(len(text.encode()) for text in texts)


def _record_json(record: WorkflowRecord) -> str:
    return _json(msgspec.structs.replace(record, document={}, gone_at=""))


def _run(record: str, document: Mapping[str, Any], gone: int | None) -> WorkflowRecord:
    kept = _RUN.decode(record)
    gone_at = rfc3339(from_microseconds(gone)) if gone is not None else ""
    return msgspec.structs.replace(kept, document=document, gone_at=gone_at)


def _without(node: NodeRecord, names: Collection[str]) -> NodeRecord:
    """Return the node with these artifacts marked as deleted."""
    if node.outputs is None:
        return node
    artifacts = tuple(
        msgspec.structs.replace(artifact, is_deleted=True) if artifact.name in names else artifact
        for artifact in node.outputs.artifacts
    )
    return msgspec.structs.replace(node, outputs=msgspec.structs.replace(node.outputs, artifacts=artifacts))


def _node_row(uid: str, node: NodeRecord) -> Row:
    return (uid, node.id, str(node.phase), node.pod_name, _json(node))


def _phase(record: WorkflowRecord) -> str:
    return record.phase or "Pending"


def _finished(record: WorkflowRecord) -> int | None:
    """The end of a run in microseconds; None while it is active, even if the record has an end time."""
    if record.phase not in ENDED_PHASES:
        return None
    return _micro(record.finished_at, "finishedAt") or _micro(record.created_at, "createdAt") or 0


def _micro(text: str, field: str) -> int | None:
    try:
        at = moment(text)
    except ValueError as error:
        raise BadRequest(f"invalid time {text!r}", hint="write it as RFC 3339", field=field) from error
    return None if at is None else to_microseconds(at)


def _batches(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(values), BATCH):
        yield values[at : at + BATCH]
