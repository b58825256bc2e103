-- readable by: 1
-- Times are milliseconds since 1970-01-01 UTC. States of items: see decide/leasing.py.
CREATE TABLE maps (
    id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid          TEXT    NOT NULL UNIQUE,
    namespace    TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    owner        TEXT    NOT NULL,
    request      TEXT    NOT NULL,  -- by which it was made
    state        TEXT    NOT NULL,
    closed       BIGINT  NOT NULL,
    priority     BIGINT  NOT NULL,
    policy       TEXT    NOT NULL,
    created_at   BIGINT  NOT NULL,
    rate_level   DOUBLE PRECISION    NOT NULL,
    rate_at      BIGINT  NOT NULL,
    total        BIGINT  NOT NULL DEFAULT 0,
    waiting      BIGINT  NOT NULL DEFAULT 0,
    ready        BIGINT  NOT NULL DEFAULT 0,
    leased       BIGINT  NOT NULL DEFAULT 0,
    done         BIGINT  NOT NULL DEFAULT 0,
    dead         BIGINT  NOT NULL DEFAULT 0,
    large        BIGINT  NOT NULL DEFAULT 0,
    leases       BIGINT  NOT NULL DEFAULT 0,
    workers      BIGINT  NOT NULL DEFAULT 0,
    granted      BIGINT  NOT NULL DEFAULT 0,
    lost         BIGINT  NOT NULL DEFAULT 0,
    returned     BIGINT  NOT NULL DEFAULT 0,
    failed       BIGINT  NOT NULL DEFAULT 0,
    refused      BIGINT  NOT NULL DEFAULT 0,
    twinned      BIGINT  NOT NULL DEFAULT 0,
    measured     BIGINT  NOT NULL DEFAULT 0,
    spent_ms     BIGINT  NOT NULL DEFAULT 0,
    hinted       BIGINT  NOT NULL DEFAULT 0,
    hinted_ms    BIGINT  NOT NULL DEFAULT 0,
    output_bytes BIGINT  NOT NULL DEFAULT 0,
    UNIQUE (namespace, name)
);

CREATE TABLE items (
    map          BIGINT  NOT NULL,
    seq          BIGINT  NOT NULL,
    state        BIGINT  NOT NULL,
    rank         BIGINT  NOT NULL,
    fence        BIGINT  NOT NULL,
    holder       BIGINT  NOT NULL,
    twin         BIGINT  NOT NULL,
    settled      BIGINT  NOT NULL,
    tries        BIGINT  NOT NULL,
    losses       BIGINT  NOT NULL,
    memory_bytes BIGINT  NOT NULL,
    ready_at     BIGINT  NOT NULL,
    PRIMARY KEY (map, seq)
);
CREATE INDEX items_ready ON items (map, rank, seq) WHERE state = 1;
CREATE INDEX items_large ON items (map, memory_bytes, rank, seq) WHERE state = 5;
CREATE INDEX items_waiting ON items (ready_at) WHERE state = 0;
CREATE INDEX items_dead ON items (map, seq) WHERE state = 4;

-- What was asked for: written once. `value` is JSON.
CREATE TABLE inputs (
    map   BIGINT  NOT NULL,
    seq   BIGINT  NOT NULL,
    key   TEXT,
    value BYTEA   NOT NULL,
    PRIMARY KEY (map, seq)
);

CREATE TABLE sessions (
    map        BIGINT  NOT NULL,
    name       TEXT    NOT NULL,
    expires_at BIGINT  NOT NULL,
    request    BIGINT  NOT NULL,
    leases     BYTEA   NOT NULL,  -- JSON: [[item, fence, at, request], …]
    PRIMARY KEY (map, name)
);

-- The primary key is the promise: one recorded result per item.
CREATE TABLE results (
    map     BIGINT  NOT NULL,
    seq     BIGINT  NOT NULL,
    lease   BIGINT  NOT NULL,
    at      BIGINT  NOT NULL,
    seconds DOUBLE PRECISION,
    memory  BIGINT,
    value   BYTEA   NOT NULL,
    path    TEXT,
    PRIMARY KEY (map, seq)
);

-- The last failure of an item.
CREATE TABLE failures (
    map     BIGINT  NOT NULL,
    seq     BIGINT  NOT NULL,
    lease   BIGINT  NOT NULL,
    at      BIGINT  NOT NULL,
    cause   TEXT    NOT NULL,
    message TEXT    NOT NULL,
    exit    BIGINT,
    output  BYTEA   NOT NULL,
    tries   BIGINT  NOT NULL,
    PRIMARY KEY (map, seq)
);

-- Requests that added items, so that one told again adds nothing.
CREATE TABLE additions (
    map     BIGINT  NOT NULL,
    request TEXT    NOT NULL,
    first   BIGINT  NOT NULL,
    items   BIGINT  NOT NULL,
    PRIMARY KEY (map, request)
);

CREATE TABLE limits (
    name     TEXT    NOT NULL PRIMARY KEY,
    capacity BIGINT  NOT NULL
);

CREATE TABLE map_limits (
    map    BIGINT  NOT NULL,
    name   TEXT    NOT NULL,
    weight BIGINT  NOT NULL,
    waits_since BIGINT NOT NULL DEFAULT 0,  -- for tokens of the limit; 0: it does not wait
    waits_until BIGINT NOT NULL DEFAULT 0,  -- the wait is believed until then
    PRIMARY KEY (map, name)
);

-- Bytes of values, keys and results of each map, and of its rows: see queue/quota.py.
CREATE TABLE map_sizes (
    map   BIGINT NOT NULL PRIMARY KEY,
    bytes BIGINT NOT NULL
);

-- Rows change three times each in quick succession: leave room on the page, and clean up early.
ALTER TABLE items SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE sessions SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
