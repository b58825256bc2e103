-- readable by: 2
-- Of an hour: how many of its windows of five minutes have readings, the least `gpu_peak` of these, and the highest
-- mean of CPU of any. They tell without a look at the windows whether all are alike. Null: summed up before this.
ALTER TABLE sample_hours ADD COLUMN windows BIGINT;
ALTER TABLE sample_hours ADD COLUMN gpu_low BIGINT;
ALTER TABLE sample_hours ADD COLUMN cpu_high BIGINT;
