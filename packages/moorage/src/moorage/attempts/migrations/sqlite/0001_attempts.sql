-- readable by: 1
-- Times are microseconds since 1970-01-01 UTC; null: not yet, or not known.
CREATE TABLE attempt_jobs (
    job_uid    TEXT    NOT NULL PRIMARY KEY,
    run_uid    TEXT    NOT NULL,  -- uid of the first attempt's Job
    namespace  TEXT    NOT NULL,
    run        TEXT    NOT NULL,
    attempt    INTEGER NOT NULL,
    document   TEXT    NOT NULL,  -- JSON: what is read of the Job; empty once it is forgotten
    created_at INTEGER,
    gone_at    INTEGER,
    forgotten  INTEGER NOT NULL DEFAULT 0  -- 1: erased; nothing is kept of it again
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_jobs_by_run ON attempt_jobs (namespace, run);
CREATE INDEX attempt_jobs_gone ON attempt_jobs (gone_at);

CREATE TABLE attempt_pods (
    pod_uid            TEXT    NOT NULL PRIMARY KEY,
    job_uid            TEXT    NOT NULL,
    namespace          TEXT    NOT NULL,
    run                TEXT    NOT NULL,
    attempt            INTEGER NOT NULL,
    pod                TEXT    NOT NULL,
    node               TEXT    NOT NULL,
    phase              TEXT    NOT NULL,
    created_at         INTEGER,
    started_at         INTEGER,
    ended_at           INTEGER,
    exit_code          INTEGER,
    reason             TEXT    NOT NULL,
    message            TEXT    NOT NULL,
    memory_limit_bytes INTEGER,
    peak_memory_bytes  INTEGER,
    gpus               INTEGER NOT NULL,
    gpu_type           TEXT    NOT NULL,
    disrupted          INTEGER NOT NULL,
    gone_at            INTEGER,
    container          TEXT    NOT NULL  -- whose log is the pod's; empty: not known
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_pods_by_job ON attempt_pods (job_uid);
CREATE INDEX attempt_pods_by_run ON attempt_pods (namespace, run);
CREATE INDEX attempt_pods_gone ON attempt_pods (gone_at);
