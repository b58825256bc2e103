-- readable by: 1
CREATE TABLE shared_values (
    kind text NOT NULL,
    name text NOT NULL,
    body bytea NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX shared_values_by_end ON shared_values (kind, expires_at);
