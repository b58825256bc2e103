-- readable by: 1
CREATE TABLE shared_values (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX shared_values_by_end ON shared_values (kind, expires_at);
