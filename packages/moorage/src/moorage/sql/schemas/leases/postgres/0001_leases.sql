-- readable by: 1
-- What one server at a time does. `term` counts the holders, `beat` every write; holder empty: given back.
CREATE TABLE server_leases (
    name   TEXT    NOT NULL PRIMARY KEY,
    holder TEXT    NOT NULL,
    term   BIGINT NOT NULL,
    beat   BIGINT NOT NULL
);
