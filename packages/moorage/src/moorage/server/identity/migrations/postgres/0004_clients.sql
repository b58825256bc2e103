-- readable by: 1
ALTER TABLE audit_log ADD COLUMN client TEXT NOT NULL DEFAULT '';
