-- readable by: 1
-- What pods used. Times are seconds since 1970-01-01 UTC, memory is in KiB, utilisation in tenths of a percent,
-- power in milliwatts: see decide.usage.samples.Tally.
CREATE TABLE sample_pods (
    pod_uid   TEXT   NOT NULL PRIMARY KEY,
    number    INTEGER NOT NULL UNIQUE,  -- stands for it in the other tables
    namespace TEXT   NOT NULL,
    owner     TEXT   NOT NULL,
    first_at  BIGINT NOT NULL,
    last_at   BIGINT NOT NULL  -- of the last reading that is summed up; at least `first_at`
);

-- The newest reading of each pod of the last day.
CREATE TABLE sample_latest (
    pod     INTEGER NOT NULL PRIMARY KEY,
    read_at BIGINT NOT NULL,  -- microseconds since 1970
    reading TEXT   NOT NULL  -- as JSON
);

-- Wide columns come first: nothing is lost to alignment.
-- By time first: readings come together, and are summed up and forgotten together.
CREATE TABLE sample_slots (
    at              BIGINT   NOT NULL,  -- the beginning of 30 s
    read_at         BIGINT   NOT NULL,  -- microseconds since 1970: the newest in a slot counts
    memory_sum      BIGINT   NOT NULL,
    memory_peak     BIGINT   NOT NULL,
    gpu_memory_sum  BIGINT   NOT NULL,
    power_sum       BIGINT   NOT NULL,
    pod             INTEGER  NOT NULL,
    cpu_sum         INTEGER  NOT NULL,
    cpu_peak        INTEGER  NOT NULL,
    gpu_sum         INTEGER  NOT NULL,
    gpu_memory_peak INTEGER  NOT NULL,
    power_peak      INTEGER  NOT NULL,
    slots           SMALLINT NOT NULL,
    cpu_count       SMALLINT NOT NULL,
    memory_count    SMALLINT NOT NULL,
    gpu_count       SMALLINT NOT NULL,
    gpu_peak        SMALLINT NOT NULL,
    power_count     SMALLINT NOT NULL,
    gpus            SMALLINT NOT NULL,
    busy_gpus       SMALLINT NOT NULL,
    PRIMARY KEY (at, pod)
);

CREATE TABLE sample_windows (
    at              BIGINT   NOT NULL,  -- the beginning of five minutes
    memory_sum      BIGINT   NOT NULL,
    memory_peak     BIGINT   NOT NULL,
    gpu_memory_sum  BIGINT   NOT NULL,
    power_sum       BIGINT   NOT NULL,
    pod             INTEGER  NOT NULL,
    cpu_sum         INTEGER  NOT NULL,
    cpu_peak        INTEGER  NOT NULL,
    gpu_sum         INTEGER  NOT NULL,
    gpu_memory_peak INTEGER  NOT NULL,
    power_peak      INTEGER  NOT NULL,
    slots           SMALLINT NOT NULL,
    cpu_count       SMALLINT NOT NULL,
    memory_count    SMALLINT NOT NULL,
    gpu_count       SMALLINT NOT NULL,
    gpu_peak        SMALLINT NOT NULL,
    power_count     SMALLINT NOT NULL,
    gpus            SMALLINT NOT NULL,
    busy_gpus       SMALLINT NOT NULL,
    PRIMARY KEY (pod, at)
);

CREATE TABLE sample_hours (
    at              BIGINT   NOT NULL,  -- the beginning of an hour
    memory_sum      BIGINT   NOT NULL,
    memory_peak     BIGINT   NOT NULL,
    gpu_memory_sum  BIGINT   NOT NULL,
    power_sum       BIGINT   NOT NULL,
    pod             INTEGER  NOT NULL,
    cpu_sum         INTEGER  NOT NULL,
    cpu_peak        INTEGER  NOT NULL,
    gpu_sum         INTEGER  NOT NULL,
    gpu_memory_peak INTEGER  NOT NULL,
    power_peak      INTEGER  NOT NULL,
    slots           SMALLINT NOT NULL,
    cpu_count       SMALLINT NOT NULL,
    memory_count    SMALLINT NOT NULL,
    gpu_count       SMALLINT NOT NULL,
    gpu_peak        SMALLINT NOT NULL,
    power_count     SMALLINT NOT NULL,
    gpus            SMALLINT NOT NULL,
    busy_gpus       SMALLINT NOT NULL,
    windows         BIGINT NOT NULL,  -- of its five minutes: those with readings
    gpu_low         BIGINT NOT NULL,  -- the least `gpu_peak` of these
    cpu_high        BIGINT NOT NULL,  -- the highest mean of CPU of any
    PRIMARY KEY (pod, at)
);

-- Rows of one pod stand together, as decide.usage.packed makes them: a row's header and key cost as much as what is
-- in it. The tables above hold what is not packed yet.

-- The readings of five minutes, when these are summed up: (slot's number, read_at, measures).
CREATE TABLE sample_packed_slots (
    pod    INTEGER NOT NULL,
    at     BIGINT  NOT NULL,  -- the beginning of the five minutes
    packed BYTEA   NOT NULL,
    PRIMARY KEY (pod, at)
);

-- The sums of five minutes of an hour, when that is summed up: (number in the hour, measures).
CREATE TABLE sample_packed_windows (
    pod    INTEGER NOT NULL,
    at     BIGINT  NOT NULL,  -- the beginning of the hour
    packed BYTEA   NOT NULL,
    PRIMARY KEY (pod, at)
);

-- What all pods used together in a slot, five minutes or an hour: `level` is its length in seconds.
CREATE TABLE sample_sums (
    at              BIGINT   NOT NULL,  -- the beginning of the slot, window or hour
    slots           BIGINT   NOT NULL,
    cpu_count       BIGINT   NOT NULL,
    cpu_sum         BIGINT   NOT NULL,
    cpu_peak        BIGINT   NOT NULL,
    memory_count    BIGINT   NOT NULL,
    memory_sum      BIGINT   NOT NULL,
    memory_peak     BIGINT   NOT NULL,
    gpu_count       BIGINT   NOT NULL,
    gpu_sum         BIGINT   NOT NULL,
    gpu_peak        BIGINT   NOT NULL,
    gpu_memory_sum  BIGINT   NOT NULL,
    gpu_memory_peak BIGINT   NOT NULL,
    power_count     BIGINT   NOT NULL,
    power_sum       BIGINT   NOT NULL,
    power_peak      BIGINT   NOT NULL,
    gpus            BIGINT   NOT NULL,
    busy_gpus       BIGINT   NOT NULL,
    level           SMALLINT NOT NULL,
    PRIMARY KEY (level, at)
);

-- How far the tables above are summed up and forgotten: see decide.usage.samples.Marks.
CREATE TABLE sample_marks (
    name TEXT   NOT NULL PRIMARY KEY,
    at   BIGINT NOT NULL
);
