-- readable by: 1
-- One row a pod: what it held and when. Times are microseconds since 1970-01-01 UTC.
CREATE TABLE intervals (
    pod_uid      TEXT    NOT NULL PRIMARY KEY,
    namespace    TEXT    NOT NULL,
    pod          TEXT    NOT NULL,
    run          TEXT    NOT NULL,  -- empty: of no run
    attempt      INTEGER NOT NULL,
    owner        TEXT    NOT NULL,
    node         TEXT    NOT NULL,
    gpu_type     TEXT    NOT NULL,  -- empty: held no GPU
    gpus         INTEGER NOT NULL CHECK (gpus >= 0),
    cpu_milli    INTEGER NOT NULL CHECK (cpu_milli >= 0),
    memory_bytes INTEGER NOT NULL CHECK (memory_bytes >= 0),
    started_at   INTEGER NOT NULL,
    ended_at     INTEGER CHECK (ended_at >= started_at),  -- null: held still
    last_seen_at INTEGER NOT NULL,
    devices      TEXT    NOT NULL,  -- ids of its GPUs as the kubelet names them, with commas; empty: it does not
    work         TEXT    NOT NULL  -- a hash of what it ran: see decide.runs.forecast.work_of; empty: not known
) STRICT, WITHOUT ROWID;

CREATE INDEX intervals_ended ON intervals (ended_at, started_at);
