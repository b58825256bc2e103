-- readable by: 1
-- Bytes of values, keys and results of each map, and of its rows: see queue/quota.py. Old code does not count them.
CREATE TABLE map_sizes (
    map   INTEGER NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO map_sizes (map, bytes)
SELECT m.id,
    COALESCE((SELECT SUM(200 + LENGTH(n.value) + COALESCE(LENGTH(n.key), 0)) FROM inputs AS n WHERE n.map = m.id), 0)
    + COALESCE((SELECT SUM(COALESCE(LENGTH(r.value), 0)) FROM results AS r WHERE r.map = m.id), 0)
FROM maps AS m;
