-- readable by: 1
-- One row a pod: what it held and when. Times are microseconds since 1970-01-01 UTC.
CREATE TABLE intervals (
    pod_uid      TEXT    NOT NULL PRIMARY KEY,
    namespace    TEXT    NOT NULL,
    pod          TEXT    NOT NULL,
    run          TEXT    NOT NULL,  -- empty: of no run
    attempt      BIGINT NOT NULL,
    owner        TEXT    NOT NULL,
    node         TEXT    NOT NULL,
    gpu_type     TEXT    NOT NULL,  -- empty: held no GPU
    gpus         BIGINT NOT NULL CHECK (gpus >= 0),
    cpu_milli    BIGINT NOT NULL CHECK (cpu_milli >= 0),
    memory_bytes BIGINT NOT NULL CHECK (memory_bytes >= 0),
    started_at   BIGINT NOT NULL,
    ended_at     BIGINT CHECK (ended_at >= started_at),  -- null: held still
    last_seen_at BIGINT NOT NULL,
    devices      TEXT    NOT NULL,  -- ids of its GPUs as the kubelet names them, with commas; empty: it does not
    work         TEXT    NOT NULL  -- a hash of what it ran: see decide.runs.forecast.work_of; empty: not known
);

CREATE INDEX intervals_ended ON intervals (ended_at, started_at);
