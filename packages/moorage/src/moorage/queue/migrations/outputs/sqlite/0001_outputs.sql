-- readable by: 1
-- Times are milliseconds since 1970-01-01 UTC. Files made before migrations had these tables already.
CREATE TABLE IF NOT EXISTS outputs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, map INTEGER NOT NULL, item INTEGER NOT NULL, lease INTEGER NOT NULL,
    at INTEGER NOT NULL, pod TEXT NOT NULL, output BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS outputs_by_map ON outputs (map, id);
CREATE INDEX IF NOT EXISTS outputs_by_item ON outputs (map, item, id);
