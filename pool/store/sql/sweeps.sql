-- What supervisors do for all jobs: leases, the reaper, registration, waking.

-- name: held_by
-- What a worker holds.
SELECT id, type, payload, attempts, max_attempts, timeout_seconds, crashes, run_at, priority, locked_by FROM jobs
WHERE status = 'running' AND locked_by = :worker;

-- name: holders
-- Everyone who holds a job, with the age of the oldest lease.
SELECT locked_by, min(locked_at) AS oldest, count(*) AS jobs FROM jobs WHERE status = 'running' GROUP BY locked_by;

-- name: renew_held
-- Leases of a living worker kept fresh.
UPDATE jobs SET locked_at = :now WHERE status = 'running' AND locked_by = :worker;

-- name: stale_leases
-- Jobs whose lease was not renewed since :before; who holds them decides the rest.
SELECT id, type, payload, attempts, max_attempts, timeout_seconds, crashes, run_at, priority, locked_by, locked_at FROM jobs
WHERE status = 'running' AND (locked_at IS NULL OR locked_at < :before);

-- name: stale_lease
-- Whether a lease is as old as it was when it was read.
SELECT id FROM jobs WHERE id = :id AND status = 'running' AND locked_by IS :worker AND attempts = :attempts
  AND (locked_at IS NULL OR locked_at < :before);

-- name: expire
-- running -> queued, or dead when its tries are used up. Fenced by the lease and by the age that was read.
UPDATE jobs
SET status = CASE WHEN attempts >= max_attempts THEN 'dead' ELSE 'queued' END,
    locked_by = NULL, locked_at = NULL, last_error = :error, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by IS :worker AND attempts = :attempts
  AND (locked_at IS NULL OR locked_at < :before)
RETURNING status;

-- name: due_count
-- How many jobs are due, counted no further than :most.
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 'queued' AND run_at <= :now LIMIT :most);

-- name: newest_created_at
-- When the newest job was made; a stranger's time has no milliseconds.
SELECT created_at FROM jobs ORDER BY id DESC LIMIT 1;

-- name: next_run_at
-- When the next waiting job is due.
SELECT run_at FROM jobs WHERE status = 'queued' AND run_at > :now ORDER BY run_at LIMIT 1;

-- name: cancel_requests
-- Running jobs someone has asked to cancel.
SELECT id, attempts, locked_by FROM jobs WHERE status = 'running' AND cancel_requested_at IS NOT NULL;

-- name: register_pool
INSERT INTO pools (host, machine, boot_id, pid_namespace, pid, start_time, started_at, seen_at, state, target, exclusive)
VALUES (:host, :machine, :boot_id, :pid_namespace, :pid, :start_time, :now, :now, :state, :target, :exclusive)
RETURNING id;

-- name: report_pool
-- The pool's own account of itself.
UPDATE pools SET seen_at = :now, state = :state, target = :target, report = :report WHERE id = :pool;

-- name: pool_orders
-- What people asked of this pool since.
SELECT wanted_target, reload_requested_at FROM pools WHERE id = :pool;

-- name: target_taken
UPDATE pools SET wanted_target = NULL WHERE id = :pool AND wanted_target = :target;

-- name: current_pause
-- Whether claims are paused.
SELECT by, reason, at, until FROM pauses WHERE until IS NULL OR until > :now;

-- name: forget_pool
DELETE FROM pools WHERE id = :pool;

-- name: forget_workers_of
DELETE FROM workers WHERE pool_id = :pool;

-- name: pools
SELECT id, host, machine, boot_id, pid_namespace, pid, start_time, started_at, seen_at, state, target, exclusive, report
FROM pools ORDER BY id;

-- name: register_worker
-- Before its first claim, so that whatever it holds can be traced to a process.
INSERT INTO workers (identity, pool_id, number, machine, boot_id, pid_namespace, pid, start_time, started_at)
VALUES (:identity, :pool, :number, :machine, :boot_id, :pid_namespace, :pid, :start_time, :now);

-- name: forget_worker
DELETE FROM workers WHERE identity = :identity;

-- name: workers
SELECT identity, pool_id, number, machine, boot_id, pid_namespace, pid, start_time, started_at FROM workers ORDER BY pool_id, number;

-- name: order_scale
-- How many workers living pools shall have; :pool NULL for each.
UPDATE pools SET wanted_target = :target WHERE :pool IS NULL OR id = :pool RETURNING id;

-- name: order_reload
-- Have pools replace their workers one by one; :pool NULL for each.
UPDATE pools SET reload_requested_at = :now WHERE :pool IS NULL OR id = :pool RETURNING id;

-- name: pause
-- No claims by any pool, until resumed or until an instant.
INSERT INTO pauses (id, by, reason, at, until) VALUES (1, :by, :reason, :now, :until)
ON CONFLICT (id) DO UPDATE SET by = excluded.by, reason = excluded.reason, at = excluded.at, until = excluded.until;

-- name: resume
DELETE FROM pauses RETURNING by, reason, at, until;

-- name: count
INSERT INTO counters (name, label, bucket, value) VALUES (:name, :label, :bucket, :value)
ON CONFLICT (name, label, bucket) DO UPDATE SET value = value + excluded.value;

-- name: count_minute
INSERT INTO minutes (minute, type, done, failed) VALUES (:minute, :type, :done, :failed)
ON CONFLICT (minute, type) DO UPDATE SET done = done + excluded.done, failed = failed + excluded.failed;

-- name: forget_minutes
DELETE FROM minutes WHERE minute < :before;

-- name: died_since
-- Jobs that became dead after an instant, for alerts.
SELECT id, type, last_error, updated_at FROM jobs WHERE status = 'dead' AND updated_at > :since ORDER BY updated_at;
