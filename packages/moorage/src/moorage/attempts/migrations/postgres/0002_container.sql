-- readable by: 1
-- The container whose log is the pod's; empty: not known. Logs of others have keys of their own.
ALTER TABLE attempt_pods ADD COLUMN container TEXT NOT NULL DEFAULT '';
