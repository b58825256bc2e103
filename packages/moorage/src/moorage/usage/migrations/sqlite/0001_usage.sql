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
    work         TEXT    NOT NULL,  -- a hash of what it ran: see decide.runs.forecast.work_of; empty: not known
    workflow     TEXT    NOT NULL,  -- empty: a step of none
    gpu_counts   TEXT    NOT NULL,  -- by resource: nvidia.com/gpu=2
    storage_bytes INTEGER NOT NULL CHECK (storage_bytes >= 0),
    reserved_for TEXT    NOT NULL,  -- GROUP/TYPE of the machine whose place it keeps, empty: it keeps none
    part_of      TEXT    NOT NULL   -- map/NAME or workspace/NAME, empty: of neither
) STRICT, WITHOUT ROWID;

CREATE INDEX intervals_ended ON intervals (ended_at, started_at);

-- One row a node, and another when what it is changes.
CREATE TABLE node_lives (
    node_uid      TEXT    NOT NULL,
    started_at    INTEGER NOT NULL,
    node          TEXT    NOT NULL,
    instance_type TEXT    NOT NULL,  -- empty: its labels do not say, as in the next two
    region        TEXT    NOT NULL,
    market        TEXT    NOT NULL,
    gpu_type      TEXT    NOT NULL,  -- empty: no GPUs
    devices       TEXT    NOT NULL,  -- nvidia.com/gpu=8, or nvidia.com/gpu.shared=16:1/4 where each is a quarter
    cpu_milli     INTEGER NOT NULL CHECK (cpu_milli >= 0),
    memory_bytes  INTEGER NOT NULL CHECK (memory_bytes >= 0),
    ended_at      INTEGER CHECK (ended_at >= started_at),  -- null: there still
    first_seen_at INTEGER NOT NULL,
    last_seen_at  INTEGER NOT NULL,
    PRIMARY KEY (node_uid, started_at)
) STRICT, WITHOUT ROWID;

CREATE INDEX node_lives_ended ON node_lives (ended_at, started_at);
