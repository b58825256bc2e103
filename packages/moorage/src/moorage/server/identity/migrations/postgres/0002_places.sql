-- readable by: 1
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
