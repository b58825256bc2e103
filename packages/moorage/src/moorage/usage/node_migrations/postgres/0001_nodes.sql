-- readable by: 1
-- One row a node, and another when what it is changes. Times are microseconds since 1970-01-01 UTC.
CREATE TABLE node_lives (
    node_uid      TEXT    NOT NULL,
    started_at    BIGINT NOT NULL,
    node          TEXT    NOT NULL,
    instance_type TEXT    NOT NULL,  -- empty: its labels do not say, as in the next two
    region        TEXT    NOT NULL,
    market        TEXT    NOT NULL,
    gpu_type      TEXT    NOT NULL,  -- empty: no GPUs
    devices       TEXT    NOT NULL,  -- nvidia.com/gpu=8, or nvidia.com/gpu.shared=16:1/4 where each is a quarter
    cpu_milli     BIGINT NOT NULL CHECK (cpu_milli >= 0),
    memory_bytes  BIGINT NOT NULL CHECK (memory_bytes >= 0),
    ended_at      BIGINT CHECK (ended_at >= started_at),  -- null: there still
    first_seen_at BIGINT NOT NULL,
    last_seen_at  BIGINT NOT NULL,
    PRIMARY KEY (node_uid, started_at)
);

CREATE INDEX node_lives_ended ON node_lives (ended_at, started_at);

-- What the table of intervals does not say of a pod; a pod without a row here has nothing to add.
CREATE TABLE pod_amounts (
    pod_uid       TEXT    NOT NULL PRIMARY KEY,
    started_at    BIGINT NOT NULL,
    gpu_counts    TEXT    NOT NULL,  -- by resource: nvidia.com/gpu=2
    storage_bytes BIGINT NOT NULL CHECK (storage_bytes >= 0),
    reserved_for  TEXT    NOT NULL,  -- GROUP/TYPE of the machine whose place it keeps, empty: it keeps none
    part_of       TEXT    NOT NULL   -- map/NAME or workspace/NAME, empty: of neither
);

CREATE INDEX pod_amounts_started ON pod_amounts (started_at);
