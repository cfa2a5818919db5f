-- What people and programs read.

-- name: count_queued
SELECT count(*) FROM jobs WHERE status = 'queued';

-- name: count_running
SELECT count(*) FROM jobs WHERE status = 'running';

-- name: count_dead
SELECT count(*) FROM jobs WHERE status = 'dead';

-- name: count_all
SELECT count(*) FROM jobs;

-- name: oldest_run_at
SELECT run_at FROM jobs WHERE status = 'queued' ORDER BY run_at LIMIT 1;

-- name: last_errors
-- The newest attempts that failed.
SELECT a.job_id, coalesce(j.type, r.type) AS type, a.attempt, a.outcome, a.error, a.ended_at
FROM attempts AS a LEFT JOIN jobs AS j ON j.id = a.job_id LEFT JOIN jobs_archive AS r ON r.id = a.job_id
ORDER BY a.id DESC LIMIT :limit;

-- name: job
SELECT *, NULL AS archived_at, NULL AS archived_by, NULL AS archive_reason FROM jobs WHERE id = :id;

-- name: archived_job
SELECT * FROM jobs_archive WHERE id = :id;

-- name: job_attempts
SELECT * FROM attempts WHERE job_id = :id ORDER BY id;

-- name: list_all
SELECT * FROM jobs WHERE id < :before AND (:type IS NULL OR type = :type) ORDER BY id DESC LIMIT :limit;

-- name: list_queued
SELECT * FROM jobs WHERE status = 'queued' AND (:type IS NULL OR type = :type) ORDER BY run_at, id LIMIT :limit;

-- name: list_running
SELECT * FROM jobs WHERE status = 'running' AND (:type IS NULL OR type = :type) ORDER BY id LIMIT :limit;

-- name: list_done
SELECT * FROM jobs WHERE status = 'done' AND id < :before AND (:type IS NULL OR type = :type) ORDER BY id DESC LIMIT :limit;

-- name: list_dead
SELECT * FROM jobs WHERE status = 'dead' AND (:type IS NULL OR type = :type) ORDER BY updated_at DESC, id DESC LIMIT :limit;

-- name: list_archive
SELECT * FROM jobs_archive WHERE id < :before AND (:type IS NULL OR type = :type) ORDER BY id DESC LIMIT :limit;

-- name: by_keys
-- The jobs of a JSON list of keys.
SELECT id, type, status, attempts, max_attempts, run_at, last_error, idempotency_key, payload FROM jobs
WHERE idempotency_key IN (SELECT value FROM json_each(:keys));
