-- readable by: 3
-- The workflow whose step it was; empty: of none.
ALTER TABLE intervals ADD COLUMN workflow TEXT NOT NULL DEFAULT '';
