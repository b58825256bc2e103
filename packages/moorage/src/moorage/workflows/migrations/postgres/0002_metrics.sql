-- readable by: 1
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
