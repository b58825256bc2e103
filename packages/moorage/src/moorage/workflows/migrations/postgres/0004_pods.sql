-- readable by: 1
-- Which node a pod is of: a report of a pod without a node is refused.
CREATE INDEX workflow_nodes_by_pod ON workflow_nodes (uid, pod);
