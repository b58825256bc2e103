-- readable by: 3
-- What it ran, as a hash (decide.runs.forecast.work_of): like is compared with like. Empty: not known.
ALTER TABLE intervals ADD COLUMN work TEXT NOT NULL DEFAULT '';
