-- readable by: 1
-- Bytes of each run's records: see _make_room in store.py. Old code does not count them.
CREATE TABLE workflow_sizes (
    uid       TEXT    NOT NULL PRIMARY KEY,
    namespace TEXT    NOT NULL,
    bytes     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX workflow_sizes_by_namespace ON workflow_sizes (namespace, bytes);
INSERT INTO workflow_sizes (uid, namespace, bytes)
SELECT r.uid, r.namespace, 200 + LENGTH(CAST(r.record AS BLOB)) + LENGTH(CAST(r.document AS BLOB))
    + COALESCE((SELECT SUM(200 + LENGTH(CAST(n.record AS BLOB))) FROM workflow_nodes AS n WHERE n.uid = r.uid
        AND n.phase NOT IN ('Pending', 'Running')), 0)
    + COALESCE((SELECT SUM(200 + LENGTH(CAST(p.report AS BLOB))) FROM workflow_reports AS p WHERE p.uid = r.uid), 0)
FROM workflow_runs AS r;
ALTER TABLE workflow_memos ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE workflow_memos SET bytes = 200 + LENGTH(CAST(memo AS BLOB));
CREATE INDEX workflow_memos_sizes ON workflow_memos (namespace, bytes);
