-- readable by: 2
-- Rows of one pod stand together, as decide.usage.packed makes them: a row's header and key cost as much as what is
-- in it. The tables of the first migration hold what is not packed yet. What they held before stays until it is old.

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

INSERT INTO sample_sums (
    level, at, slots, cpu_count, cpu_sum, cpu_peak, memory_count, memory_sum, memory_peak, gpu_count,
    gpu_sum, gpu_peak, gpu_memory_sum, gpu_memory_peak, power_count, power_sum, power_peak, gpus, busy_gpus
)
SELECT 30, s.at,
       SUM(s.slots), SUM(s.cpu_count), SUM(s.cpu_sum), MAX(s.cpu_peak), SUM(s.memory_count),
       SUM(s.memory_sum), MAX(s.memory_peak), SUM(s.gpu_count), SUM(s.gpu_sum), MAX(s.gpu_peak),
       SUM(s.gpu_memory_sum), MAX(s.gpu_memory_peak), SUM(s.power_count), SUM(s.power_sum), MAX(s.power_peak),
       MAX(s.gpus), MAX(s.busy_gpus)
FROM sample_slots s WHERE s.at < (SELECT m.at FROM sample_marks m WHERE m.name = 'slots_summed')
GROUP BY s.at;

INSERT INTO sample_sums (
    level, at, slots, cpu_count, cpu_sum, cpu_peak, memory_count, memory_sum, memory_peak, gpu_count,
    gpu_sum, gpu_peak, gpu_memory_sum, gpu_memory_peak, power_count, power_sum, power_peak, gpus, busy_gpus
)
SELECT 300, s.at,
       SUM(s.slots), SUM(s.cpu_count), SUM(s.cpu_sum), MAX(s.cpu_peak), SUM(s.memory_count),
       SUM(s.memory_sum), MAX(s.memory_peak), SUM(s.gpu_count), SUM(s.gpu_sum), MAX(s.gpu_peak),
       SUM(s.gpu_memory_sum), MAX(s.gpu_memory_peak), SUM(s.power_count), SUM(s.power_sum), MAX(s.power_peak),
       MAX(s.gpus), MAX(s.busy_gpus)
FROM sample_windows s GROUP BY s.at;

INSERT INTO sample_sums (
    level, at, slots, cpu_count, cpu_sum, cpu_peak, memory_count, memory_sum, memory_peak, gpu_count,
    gpu_sum, gpu_peak, gpu_memory_sum, gpu_memory_peak, power_count, power_sum, power_peak, gpus, busy_gpus
)
SELECT 3600, s.at,
       SUM(s.slots), SUM(s.cpu_count), SUM(s.cpu_sum), MAX(s.cpu_peak), SUM(s.memory_count),
       SUM(s.memory_sum), MAX(s.memory_peak), SUM(s.gpu_count), SUM(s.gpu_sum), MAX(s.gpu_peak),
       SUM(s.gpu_memory_sum), MAX(s.gpu_memory_peak), SUM(s.power_count), SUM(s.power_sum), MAX(s.power_peak),
       MAX(s.gpus), MAX(s.busy_gpus)
FROM sample_hours s GROUP BY s.at;
