-- The sums of what the histograms count: ``run_us``, ``wait_us`` by type, and ``write_ns``. What was counted before was
-- kept in buckets alone, so its sum begins as an estimate: each count stands for the middle of its bucket.
INSERT INTO counters (name, label, bucket, value)
SELECT name || iif(name = 'write', '_ns', '_us'), label, 0,
       CAST(sum(iif(bucket > 0, value * 0.75 * (1 << bucket), 0)) AS INTEGER)
FROM counters WHERE name IN ('run', 'wait', 'write') GROUP BY name, label;
