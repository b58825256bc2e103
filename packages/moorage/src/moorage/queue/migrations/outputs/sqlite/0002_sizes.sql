-- readable by: 1
-- What a map's output takes. Code before this does not count; the next start of newer code counts anew.
CREATE TABLE output_sizes (map INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
