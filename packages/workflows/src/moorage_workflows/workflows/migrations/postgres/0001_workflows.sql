-- readable by: 1
-- Times are microseconds since 1970-01-01 UTC; null: not yet, or not known.
CREATE TABLE workflow_runs (
    uid         TEXT    NOT NULL PRIMARY KEY,
    namespace   TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    phase       TEXT    NOT NULL,
    cron        TEXT    NOT NULL,
    created_at  BIGINT  NOT NULL,
    finished_at BIGINT ,
    gone_at     BIGINT ,
    holder      TEXT    NOT NULL,  -- the only operator whose writes count
    labels      TEXT    NOT NULL,  -- JSON: those of the object when the run began
    record      TEXT    NOT NULL,  -- JSON: WorkflowRecord without its document
    document    TEXT    NOT NULL   -- JSON: written once
);

CREATE INDEX workflow_runs_by_time ON workflow_runs (created_at, uid);
CREATE INDEX workflow_runs_by_name ON workflow_runs (namespace, name);
CREATE INDEX workflow_runs_gone ON workflow_runs (gone_at);
CREATE INDEX workflow_runs_unfinished ON workflow_runs (created_at) WHERE finished_at IS NULL AND gone_at IS NULL;

CREATE TABLE workflow_nodes (
    uid    TEXT NOT NULL,
    id     TEXT NOT NULL,
    phase  TEXT NOT NULL,
    pod    TEXT NOT NULL,
    record TEXT NOT NULL,  -- JSON: NodeRecord
    PRIMARY KEY (uid, id)
);

-- A report of a pod without a node is refused.
CREATE INDEX workflow_nodes_by_pod ON workflow_nodes (uid, pod);

CREATE TABLE workflow_reports (
    uid    TEXT NOT NULL,
    pod    TEXT NOT NULL,
    report TEXT NOT NULL,  -- JSON: StepReport; the first that came
    PRIMARY KEY (uid, pod)
);

CREATE TABLE workflow_memos (
    namespace TEXT    NOT NULL,
    cache     TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    kept_at   BIGINT  NOT NULL,
    memo      TEXT    NOT NULL,  -- JSON: Memo
    bytes     BIGINT  NOT NULL,
    PRIMARY KEY (namespace, cache, name)
);

CREATE INDEX workflow_memos_by_time ON workflow_memos (kept_at);
CREATE INDEX workflow_memos_sizes ON workflow_memos (namespace, bytes);

-- Metrics that workflows define: a row for each set of labels in a namespace.
CREATE TABLE workflow_metrics (
    namespace  TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    labels     TEXT   NOT NULL,  -- SHA-256 of the labels
    changed_at BIGINT NOT NULL,
    uid        TEXT   NOT NULL,  -- of the run that a value in real time is of; else empty
    series     TEXT   NOT NULL,  -- JSON: MetricSeries
    PRIMARY KEY (namespace, name, labels)
);

CREATE INDEX workflow_metrics_by_run ON workflow_metrics (uid);

-- Bytes of each run's records: see _make_room in store.py.
CREATE TABLE workflow_sizes (
    uid       TEXT   NOT NULL PRIMARY KEY,
    namespace TEXT   NOT NULL,
    bytes     BIGINT NOT NULL
);
CREATE INDEX workflow_sizes_by_namespace ON workflow_sizes (namespace, bytes);
