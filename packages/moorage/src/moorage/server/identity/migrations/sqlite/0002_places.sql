-- readable by: 1
CREATE TABLE login_places (
    person TEXT NOT NULL,
    address TEXT NOT NULL,
    used_at INTEGER NOT NULL,
    PRIMARY KEY (person, address)
) WITHOUT ROWID;
CREATE INDEX login_places_by_time ON login_places (used_at);
CREATE TABLE page_sessions (
    token_hash BLOB NOT NULL PRIMARY KEY,
    page_hash BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX page_sessions_by_time ON page_sessions (used_at);
