-- What people and programs read.

-- name: count_queued
SELECT count(*) FROM jobs WHERE status = 'queued';

-- name: count_future
SELECT count(*) FROM jobs WHERE status = 'queued' AND run_at > :now;

-- name: count_running
SELECT count(*) FROM jobs WHERE status = 'running';

-- name: count_dead
SELECT count(*) FROM jobs WHERE status = 'dead';

-- name: count_queued_to
-- The same, counted no further than :most.
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 'queued' LIMIT :most);

-- name: count_dead_to
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 'dead' LIMIT :most);

-- name: count_all
SELECT count(*) FROM jobs;

-- name: oldest_run_at
SELECT run_at FROM jobs WHERE status = 'queued' ORDER BY run_at LIMIT 1;

-- name: last_errors
-- The newest attempts that failed, among the last thousand on record; what was stopped by hand is no error.
SELECT a.job_id, coalesce(j.type, r.type) AS type, a.attempt, a.outcome, a.error, a.ended_at
FROM attempts AS a LEFT JOIN jobs AS j ON j.id = a.job_id LEFT JOIN jobs_archive AS r ON r.id = a.job_id
WHERE a.id > (SELECT max(id) FROM attempts) - 1000 AND a.outcome NOT IN ('interrupted', 'cancelled')
ORDER BY a.id DESC LIMIT :limit;

-- name: job
SELECT *, NULL AS archived_at, NULL AS archived_by, NULL AS archive_reason FROM jobs WHERE id = :id;

-- name: archived_job
SELECT * FROM jobs_archive WHERE id = :id;

-- name: job_attempts
SELECT * FROM attempts WHERE job_id = :id ORDER BY id;

-- name: by_keys
-- The jobs of a JSON list of keys.
SELECT id, type, status, attempts, max_attempts, run_at, last_error, idempotency_key, payload FROM jobs
WHERE idempotency_key IN (SELECT value FROM json_each(:keys));

-- name: tail_ends
-- Where following begins.
SELECT coalesce((SELECT max(id) FROM attempts), 0) AS attempts, coalesce((SELECT max(id) FROM audit), 0) AS audit;

-- name: tail_attempts
-- Attempts that ended otherwise than done, after one.
SELECT a.id, a.ended_at AS at, a.job_id, coalesce(j.type, r.type) AS type, a.attempt, a.worker, a.outcome, a.error
FROM attempts AS a LEFT JOIN jobs AS j ON j.id = a.job_id LEFT JOIN jobs_archive AS r ON r.id = a.job_id
WHERE a.id > :after ORDER BY a.id;

-- name: tail_attempts_last
-- The last of them.
SELECT a.id, a.ended_at AS at, a.job_id, coalesce(j.type, r.type) AS type, a.attempt, a.worker, a.outcome, a.error
FROM attempts AS a LEFT JOIN jobs AS j ON j.id = a.job_id LEFT JOIN jobs_archive AS r ON r.id = a.job_id
ORDER BY a.id DESC LIMIT :limit;

-- name: tail_running
-- What runs, as long as that is not very much.
SELECT id, type, attempts, locked_by, locked_at FROM jobs WHERE status = 'running' LIMIT :most;

-- name: tail_next
-- The jobs that will be claimed next, in the order in which that is; the levels as in a claim.
WITH RECURSIVE level (priority) AS (
    SELECT (SELECT priority FROM jobs WHERE status = 'queued' ORDER BY priority LIMIT 1)
    UNION ALL
    SELECT (SELECT priority FROM jobs WHERE status = 'queued' AND priority > level.priority ORDER BY priority LIMIT 1)
    FROM level WHERE level.priority IS NOT NULL)
SELECT j.id FROM level CROSS JOIN jobs AS j INDEXED BY jobs_claim
WHERE j.status = 'queued' AND j.priority = level.priority AND j.run_at <= :now LIMIT :most;

-- name: tail_done
-- Which of these are done.
SELECT id, type, attempts, updated_at FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'done';

-- name: tail_new
-- Jobs enqueued after one that are done already; :everything for the others, too.
SELECT id, type, status, attempts, run_at, created_at, updated_at FROM jobs
WHERE id > :after AND (status = 'done' OR :everything) ORDER BY id LIMIT :most;

-- name: tail_done_last
-- Those that are done of the :back jobs before one.
SELECT id, type, attempts, updated_at FROM (SELECT * FROM jobs WHERE id <= :id ORDER BY id DESC LIMIT :back)
WHERE status = 'done';

-- name: tail_audit
-- What people changed, after one change.
SELECT id, at, by, action, jobs, filter, detail FROM audit WHERE id > :after ORDER BY id;

-- name: tail_audit_last
-- The last of it.
SELECT id, at, by, action, jobs, filter, detail FROM audit ORDER BY id DESC LIMIT :limit;
