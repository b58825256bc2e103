-- readable by: 1
-- Since when a map waits for tokens of a limit, and until when that is believed; 0: it does not. Old code gives tokens
-- to whoever asks first.
ALTER TABLE map_limits ADD COLUMN waits_since bigint NOT NULL DEFAULT 0;
ALTER TABLE map_limits ADD COLUMN waits_until bigint NOT NULL DEFAULT 0;
