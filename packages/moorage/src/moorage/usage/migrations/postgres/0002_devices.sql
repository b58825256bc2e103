-- readable by: 2
-- Which GPUs: their ids as the kubelet names them, separated by commas; empty when it does not.
ALTER TABLE intervals ADD COLUMN devices TEXT NOT NULL DEFAULT '';
