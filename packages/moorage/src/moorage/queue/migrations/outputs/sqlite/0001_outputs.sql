-- readable by: 1
-- Times are milliseconds since 1970-01-01 UTC.
CREATE TABLE outputs (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    map    INTEGER NOT NULL,
    item   INTEGER NOT NULL,
    lease  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    pod    TEXT    NOT NULL,
    output BLOB    NOT NULL
);
CREATE INDEX outputs_by_map ON outputs (map, id);
CREATE INDEX outputs_by_item ON outputs (map, item, id);
-- What a map's output takes.
CREATE TABLE output_sizes (map INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
