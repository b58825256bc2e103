-- readable by: 1
CREATE TABLE login_sessions (
    id text NOT NULL PRIMARY KEY,
    token_hash bytea NOT NULL UNIQUE,
    login text NOT NULL,
    person text NOT NULL,
    source text NOT NULL,
    subject text NOT NULL,
    client text NOT NULL,
    address text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    used_at bigint NOT NULL,
    checked_at bigint NOT NULL,
    tokens_until bigint NOT NULL,
    refresh bytea
);
CREATE INDEX login_sessions_by_login ON login_sessions (login);
CREATE INDEX login_sessions_by_person ON login_sessions (person);
CREATE TABLE login_codes (
    code_hash bytea NOT NULL PRIMARY KEY,
    expires_at bigint NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE audit_log (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    person text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    what text NOT NULL,
    address text NOT NULL,
    status bigint NOT NULL,
    client text NOT NULL
);
CREATE INDEX audit_log_by_time ON audit_log (at);
CREATE INDEX audit_log_by_person ON audit_log (person, number);
CREATE TABLE login_places (
    person text NOT NULL,
    address text NOT NULL,
    used_at bigint NOT NULL,
    PRIMARY KEY (person, address)
);
CREATE INDEX login_places_by_time ON login_places (used_at);
CREATE TABLE page_sessions (
    token_hash bytea NOT NULL PRIMARY KEY,
    page_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    used_at bigint NOT NULL
);
CREATE INDEX page_sessions_by_time ON page_sessions (used_at);
CREATE TABLE shared_values (
    kind text NOT NULL,
    name text NOT NULL,
    body bytea NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX shared_values_by_end ON shared_values (kind, expires_at);
