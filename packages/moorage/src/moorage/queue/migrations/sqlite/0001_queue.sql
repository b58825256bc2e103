-- readable by: 1
-- Times are milliseconds since 1970-01-01 UTC. States of items: see decide/leasing.py.
CREATE TABLE maps (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again
    uid          TEXT    NOT NULL UNIQUE,
    namespace    TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    owner        TEXT    NOT NULL,
    request      TEXT    NOT NULL,  -- by which it was made
    state        TEXT    NOT NULL,
    closed       INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    policy       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    rate_level   REAL    NOT NULL,
    rate_at      INTEGER NOT NULL,
    total        INTEGER NOT NULL DEFAULT 0,
    waiting      INTEGER NOT NULL DEFAULT 0,
    ready        INTEGER NOT NULL DEFAULT 0,
    leased       INTEGER NOT NULL DEFAULT 0,
    done         INTEGER NOT NULL DEFAULT 0,
    dead         INTEGER NOT NULL DEFAULT 0,
    large        INTEGER NOT NULL DEFAULT 0,
    leases       INTEGER NOT NULL DEFAULT 0,
    workers      INTEGER NOT NULL DEFAULT 0,
    granted      INTEGER NOT NULL DEFAULT 0,
    lost         INTEGER NOT NULL DEFAULT 0,
    returned     INTEGER NOT NULL DEFAULT 0,
    failed       INTEGER NOT NULL DEFAULT 0,
    refused      INTEGER NOT NULL DEFAULT 0,
    twinned      INTEGER NOT NULL DEFAULT 0,
    measured     INTEGER NOT NULL DEFAULT 0,
    spent_ms     INTEGER NOT NULL DEFAULT 0,
    hinted       INTEGER NOT NULL DEFAULT 0,
    hinted_ms    INTEGER NOT NULL DEFAULT 0,
    output_bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (namespace, name)
) STRICT;

CREATE TABLE items (
    map          INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    state        INTEGER NOT NULL,
    rank         INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    holder       INTEGER NOT NULL,
    twin         INTEGER NOT NULL,
    settled      INTEGER NOT NULL,
    tries        INTEGER NOT NULL,
    losses       INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    ready_at     INTEGER NOT NULL,
    PRIMARY KEY (map, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX items_ready ON items (map, rank, seq) WHERE state = 1;
CREATE INDEX items_large ON items (map, memory_bytes, rank, seq) WHERE state = 5;
CREATE INDEX items_waiting ON items (ready_at) WHERE state = 0;
CREATE INDEX items_dead ON items (map, seq) WHERE state = 4;

-- What was asked for: written once. `value` is JSON.
CREATE TABLE inputs (
    map   INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    key   TEXT,
    value BLOB    NOT NULL,
    PRIMARY KEY (map, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    map        INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    expires_at INTEGER NOT NULL,
    request    INTEGER NOT NULL,
    leases     BLOB    NOT NULL,  -- JSON: [[item, fence, at, request], …]
    PRIMARY KEY (map, name)
) STRICT, WITHOUT ROWID;

-- The primary key is the promise: one recorded result per item.
CREATE TABLE results (
    map     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    lease   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    seconds REAL,
    memory  INTEGER,
    value   BLOB    NOT NULL,
    path    TEXT,
    PRIMARY KEY (map, seq)
) STRICT, WITHOUT ROWID;

-- The last failure of an item.
CREATE TABLE failures (
    map     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    lease   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    cause   TEXT    NOT NULL,
    message TEXT    NOT NULL,
    exit    INTEGER,
    output  BLOB    NOT NULL,
    tries   INTEGER NOT NULL,
    PRIMARY KEY (map, seq)
) STRICT, WITHOUT ROWID;

-- Requests that added items, so that one told again adds nothing.
CREATE TABLE additions (
    map     INTEGER NOT NULL,
    request TEXT    NOT NULL,
    first   INTEGER NOT NULL,
    items   INTEGER NOT NULL,
    PRIMARY KEY (map, request)
) STRICT, WITHOUT ROWID;

CREATE TABLE limits (
    name     TEXT    NOT NULL PRIMARY KEY,
    capacity INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE map_limits (
    map    INTEGER NOT NULL,
    name   TEXT    NOT NULL,
    weight INTEGER NOT NULL,
    waits_since INTEGER NOT NULL DEFAULT 0,  -- for tokens of the limit; 0: it does not wait
    waits_until INTEGER NOT NULL DEFAULT 0,  -- the wait is believed until then
    PRIMARY KEY (map, name)
) STRICT, WITHOUT ROWID;

-- Bytes of values, keys and results of each map, and of its rows: see queue/quota.py.
CREATE TABLE map_sizes (
    map   INTEGER NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
