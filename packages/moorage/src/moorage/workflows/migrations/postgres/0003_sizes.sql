-- readable by: 1
-- Bytes of each run's records: see _make_room in store.py. Old code does not count them.
CREATE TABLE workflow_sizes (
    uid       TEXT   NOT NULL PRIMARY KEY,
    namespace TEXT   NOT NULL,
    bytes     BIGINT NOT NULL
);
CREATE INDEX workflow_sizes_by_namespace ON workflow_sizes (namespace, bytes);
INSERT INTO workflow_sizes (uid, namespace, bytes)
SELECT r.uid, r.namespace, 200 + OCTET_LENGTH(r.record) + OCTET_LENGTH(r.document)
    + COALESCE((SELECT SUM(200 + OCTET_LENGTH(n.record)) FROM workflow_nodes AS n WHERE n.uid = r.uid
        AND n.phase NOT IN ('Pending', 'Running')), 0)
    + COALESCE((SELECT SUM(200 + OCTET_LENGTH(p.report)) FROM workflow_reports AS p WHERE p.uid = r.uid), 0)
FROM workflow_runs AS r;
ALTER TABLE workflow_memos ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE workflow_memos SET bytes = 200 + OCTET_LENGTH(memo);
CREATE INDEX workflow_memos_sizes ON workflow_memos (namespace, bytes);
