-- readable by: 1
CREATE TABLE login_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    token_hash BLOB NOT NULL UNIQUE,
    login TEXT NOT NULL,
    person TEXT NOT NULL,
    source TEXT NOT NULL,
    subject TEXT NOT NULL,
    client TEXT NOT NULL,
    address TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    checked_at INTEGER NOT NULL,
    tokens_until INTEGER NOT NULL,
    refresh BLOB
) WITHOUT ROWID;
CREATE INDEX login_sessions_by_login ON login_sessions (login);
CREATE INDEX login_sessions_by_person ON login_sessions (person);
CREATE TABLE login_codes (
    code_hash BLOB NOT NULL PRIMARY KEY,
    expires_at INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE audit_log (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    person TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    what TEXT NOT NULL,
    address TEXT NOT NULL,
    status INTEGER NOT NULL,
    client TEXT NOT NULL
);
CREATE INDEX audit_log_by_time ON audit_log (at);
CREATE INDEX audit_log_by_person ON audit_log (person, number);
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
CREATE TABLE shared_values (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX shared_values_by_end ON shared_values (kind, expires_at);
