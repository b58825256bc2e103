-- readable by: 1
-- Times are milliseconds since 1970-01-01 UTC.
CREATE TABLE outputs (
    id     BIGSERIAL PRIMARY KEY,
    map    BIGINT NOT NULL,
    item   BIGINT NOT NULL,
    lease  BIGINT NOT NULL,
    at     BIGINT NOT NULL,
    pod    TEXT   NOT NULL,
    output BYTEA  NOT NULL
);
CREATE INDEX outputs_by_map ON outputs (map, id);
CREATE INDEX outputs_by_item ON outputs (map, item, id);
-- What a map's output takes. Who adds to a map locks its row first, so that ids become visible in their order.
CREATE TABLE output_sizes (map BIGINT PRIMARY KEY, bytes BIGINT NOT NULL);
