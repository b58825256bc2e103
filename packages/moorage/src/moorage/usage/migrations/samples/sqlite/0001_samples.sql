-- readable by: 1
-- What pods used. Times are seconds since 1970-01-01 UTC, memory is in KiB, utilisation in tenths of a percent,
-- power in milliwatts: see decide.usage.samples.Tally.
CREATE TABLE sample_pods (
    pod_uid   TEXT    NOT NULL PRIMARY KEY,
    number    INTEGER NOT NULL UNIQUE,  -- stands for it in the other tables
    namespace TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    first_at  INTEGER NOT NULL,
    last_at   INTEGER NOT NULL  -- of the last reading that is summed up; at least `first_at`
) STRICT, WITHOUT ROWID;

-- The newest reading of each pod of the last day.
CREATE TABLE sample_latest (
    pod     INTEGER NOT NULL PRIMARY KEY,
    read_at INTEGER NOT NULL,  -- microseconds since 1970
    reading TEXT    NOT NULL  -- as JSON
) STRICT, WITHOUT ROWID;

-- By time first: readings come together, and are summed up and forgotten together.
CREATE TABLE sample_slots (
    at              INTEGER NOT NULL,  -- the beginning of 30 s
    pod             INTEGER NOT NULL,
    read_at         INTEGER NOT NULL,  -- microseconds since 1970: the newest in a slot counts
    slots           INTEGER NOT NULL,
    cpu_count       INTEGER NOT NULL,
    cpu_sum         INTEGER NOT NULL,
    cpu_peak        INTEGER NOT NULL,
    memory_count    INTEGER NOT NULL,
    memory_sum      INTEGER NOT NULL,
    memory_peak     INTEGER NOT NULL,
    gpu_count       INTEGER NOT NULL,
    gpu_sum         INTEGER NOT NULL,
    gpu_peak        INTEGER NOT NULL,
    gpu_memory_sum  INTEGER NOT NULL,
    gpu_memory_peak INTEGER NOT NULL,
    power_count     INTEGER NOT NULL,
    power_sum       INTEGER NOT NULL,
    power_peak      INTEGER NOT NULL,
    gpus            INTEGER NOT NULL,
    busy_gpus       INTEGER NOT NULL,
    PRIMARY KEY (at, pod)
) STRICT, WITHOUT ROWID;

CREATE TABLE sample_windows (
    pod             INTEGER NOT NULL,
    at              INTEGER NOT NULL,  -- the beginning of five minutes
    slots           INTEGER NOT NULL,
    cpu_count       INTEGER NOT NULL,
    cpu_sum         INTEGER NOT NULL,
    cpu_peak        INTEGER NOT NULL,
    memory_count    INTEGER NOT NULL,
    memory_sum      INTEGER NOT NULL,
    memory_peak     INTEGER NOT NULL,
    gpu_count       INTEGER NOT NULL,
    gpu_sum         INTEGER NOT NULL,
    gpu_peak        INTEGER NOT NULL,
    gpu_memory_sum  INTEGER NOT NULL,
    gpu_memory_peak INTEGER NOT NULL,
    power_count     INTEGER NOT NULL,
    power_sum       INTEGER NOT NULL,
    power_peak      INTEGER NOT NULL,
    gpus            INTEGER NOT NULL,
    busy_gpus       INTEGER NOT NULL,
    PRIMARY KEY (pod, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE sample_hours (
    pod             INTEGER NOT NULL,
    at              INTEGER NOT NULL,  -- the beginning of an hour
    slots           INTEGER NOT NULL,
    cpu_count       INTEGER NOT NULL,
    cpu_sum         INTEGER NOT NULL,
    cpu_peak        INTEGER NOT NULL,
    memory_count    INTEGER NOT NULL,
    memory_sum      INTEGER NOT NULL,
    memory_peak     INTEGER NOT NULL,
    gpu_count       INTEGER NOT NULL,
    gpu_sum         INTEGER NOT NULL,
    gpu_peak        INTEGER NOT NULL,
    gpu_memory_sum  INTEGER NOT NULL,
    gpu_memory_peak INTEGER NOT NULL,
    power_count     INTEGER NOT NULL,
    power_sum       INTEGER NOT NULL,
    power_peak      INTEGER NOT NULL,
    gpus            INTEGER NOT NULL,
    busy_gpus       INTEGER NOT NULL,
    windows         INTEGER NOT NULL,  -- of its five minutes: those with readings
    gpu_low         INTEGER NOT NULL,  -- the least `gpu_peak` of these
    cpu_high        INTEGER NOT NULL,  -- the highest mean of CPU of any
    PRIMARY KEY (pod, at)
) STRICT, WITHOUT ROWID;

-- Rows of one pod stand together, as decide.usage.packed makes them: a row's header and key cost as much as what is
-- in it. The tables above hold what is not packed yet.

-- The readings of five minutes, when these are summed up: (slot's number, read_at, measures).
CREATE TABLE sample_packed_slots (
    pod    INTEGER NOT NULL,
    at     INTEGER NOT NULL,  -- the beginning of the five minutes
    packed BLOB    NOT NULL,
    PRIMARY KEY (pod, at)
) STRICT, WITHOUT ROWID;

-- The sums of five minutes of an hour, when that is summed up: (number in the hour, measures).
CREATE TABLE sample_packed_windows (
    pod    INTEGER NOT NULL,
    at     INTEGER NOT NULL,  -- the beginning of the hour
    packed BLOB    NOT NULL,
    PRIMARY KEY (pod, at)
) STRICT, WITHOUT ROWID;

-- What all pods used together in a slot, five minutes or an hour: `level` is its length in seconds.
CREATE TABLE sample_sums (
    level           INTEGER NOT NULL,
    at              INTEGER NOT NULL,  -- the beginning of the slot, window or hour
    slots           INTEGER NOT NULL,
    cpu_count       INTEGER NOT NULL,
    cpu_sum         INTEGER NOT NULL,
    cpu_peak        INTEGER NOT NULL,
    memory_count    INTEGER NOT NULL,
    memory_sum      INTEGER NOT NULL,
    memory_peak     INTEGER NOT NULL,
    gpu_count       INTEGER NOT NULL,
    gpu_sum         INTEGER NOT NULL,
    gpu_peak        INTEGER NOT NULL,
    gpu_memory_sum  INTEGER NOT NULL,
    gpu_memory_peak INTEGER NOT NULL,
    power_count     INTEGER NOT NULL,
    power_sum       INTEGER NOT NULL,
    power_peak      INTEGER NOT NULL,
    gpus            INTEGER NOT NULL,
    busy_gpus       INTEGER NOT NULL,
    PRIMARY KEY (level, at)
) STRICT, WITHOUT ROWID;

-- How far the tables above are summed up and forgotten: see decide.usage.samples.Marks.
CREATE TABLE sample_marks (
    name TEXT    NOT NULL PRIMARY KEY,
    at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
