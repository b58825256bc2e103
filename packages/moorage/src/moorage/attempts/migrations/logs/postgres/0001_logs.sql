-- readable by: 1
-- The kept end of each pod's log, in parts of whole lines. Times are microseconds since 1970-01-01 UTC.
CREATE TABLE kept_logs (
    pod_uid    TEXT   NOT NULL PRIMARY KEY,
    bytes      BIGINT NOT NULL,            -- of its parts, as stored
    cut        BIGINT NOT NULL DEFAULT 0,  -- 1: older parts were dropped
    finished   BIGINT NOT NULL DEFAULT 0,  -- 1: it was read to its end
    changed_at BIGINT NOT NULL
);

CREATE INDEX kept_logs_changed ON kept_logs (changed_at, pod_uid);

CREATE TABLE kept_log_parts (
    pod_uid TEXT   NOT NULL REFERENCES kept_logs ON DELETE CASCADE,
    number  BIGINT NOT NULL,
    packed  BIGINT NOT NULL,  -- 1: zlib
    bytes   BIGINT NOT NULL,  -- of the lines, unpacked
    data    BYTEA  NOT NULL,
    PRIMARY KEY (pod_uid, number)
);
