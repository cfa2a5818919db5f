-- The life of a job, one statement an arrow, in the order of a life.
-- Every ending is fenced by the lease, locked_by and attempts: no row changed means that the lease was lost.
-- The literal status stands in each search: SQLite uses a partial index only when it can see that it applies.

-- name: enqueue
-- A new job; nothing when its key is there already.
INSERT INTO jobs (type, payload, idempotency_key, priority, run_at, max_attempts, timeout_seconds, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
ON CONFLICT (idempotency_key) DO NOTHING;

-- name: enqueue_traced
-- A new job with its trace context. Apart, as one value more costs half a microsecond: a twentieth of a job in a batch.
INSERT INTO jobs (type, payload, idempotency_key, priority, run_at, max_attempts, timeout_seconds, created_at, updated_at,
                  trace_context)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9)
ON CONFLICT (idempotency_key) DO NOTHING;

-- name: id_of_key
-- The job that holds a key.
SELECT id FROM jobs WHERE idempotency_key = :key;

-- name: next_due
-- A claim's first half: the best due job, as it will be once claimed (Job). That is the lowest priority number, then the
-- oldest due time, then the lowest id. The first probe looks only at the best priority there is. When that one has
-- nothing due (future jobs alone), the second steps from priority to priority, a seek each, so a million future jobs in
-- front cost nothing.
SELECT id, type, payload, attempts + 1, max_attempts, timeout_seconds, crashes, run_at, priority, ?1 AS worker
FROM jobs
WHERE id = coalesce(
    (SELECT id FROM jobs
     WHERE status = 'queued' AND run_at <= ?2 AND priority = (
         SELECT priority FROM jobs WHERE status = 'queued' ORDER BY priority LIMIT 1)
     ORDER BY run_at, id LIMIT 1),
    (WITH RECURSIVE level (priority) AS (
         SELECT (SELECT priority FROM jobs WHERE status = 'queued' ORDER BY priority LIMIT 1)
         UNION ALL
         SELECT (SELECT priority FROM jobs WHERE status = 'queued' AND priority > level.priority ORDER BY priority LIMIT 1)
         FROM level WHERE level.priority IS NOT NULL)
     SELECT (SELECT id FROM jobs
             WHERE status = 'queued' AND priority = level.priority AND run_at <= ?2
             ORDER BY run_at, id LIMIT 1) AS due
     FROM level WHERE due IS NOT NULL LIMIT 1));

-- name: next_due_group
-- The same job and others of its type and priority, for a group: looked for among the next due ones only, as many as the
-- group may have, so that other types in front cost no more than that. One suspected of killing its worker joins none.
SELECT * FROM (
    SELECT id, type, payload, attempts + 1, max_attempts, timeout_seconds, crashes, run_at, priority, ?1 AS worker
    FROM jobs WHERE status = 'queued' AND priority = ?3 AND run_at <= ?2 ORDER BY run_at, id LIMIT ?4)
WHERE type = ?5 AND crashes = 0;

-- name: claim
-- queued -> running: the second half, within the same transaction. Not one UPDATE with RETURNING, which costs twice as
-- much: SQLite runs RETURNING as a trigger.
UPDATE jobs SET status = 'running', locked_by = ?1, locked_at = ?2, attempts = attempts + 1, updated_at = ?2
WHERE id = ?3 AND status = 'queued';

-- name: claim_group
-- The same for a group, its ids as a JSON array.
UPDATE jobs SET status = 'running', locked_by = ?1, locked_at = ?2, attempts = attempts + 1, updated_at = ?2
WHERE id IN (SELECT value FROM json_each(?3)) AND status = 'queued';

-- name: trace_context
-- Read only by a worker that traces, so that a claim costs nobody more.
SELECT trace_context FROM jobs WHERE id = :id;

-- name: release
-- running -> queued: claimed in a group and never begun.
UPDATE jobs
SET status = 'queued', attempts = attempts - 1, locked_by = NULL, locked_at = NULL, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempts;

-- name: renew
-- A lease kept fresh by hand.
UPDATE jobs SET locked_at = :now WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempts;

-- name: complete
-- running -> done
UPDATE jobs SET status = 'done', locked_by = NULL, locked_at = NULL, result = ?4, updated_at = ?5
WHERE id = ?1 AND status = 'running' AND locked_by = ?2 AND attempts = ?3;

-- name: complete_group
-- The same for the jobs of a group without a result, their ids as a JSON array: half the time for each. The plus keeps
-- SQLite from going by jobs_running, a seek more for each.
UPDATE jobs SET status = 'done', locked_by = NULL, locked_at = NULL, result = NULL, updated_at = ?4
WHERE id IN (SELECT value FROM json_each(?1)) AND +status = 'running' AND locked_by = ?2 AND attempts = ?3;

-- name: fail
-- running -> queued for a retry, or dead when its tries are used up or it can never work.
UPDATE jobs
SET status = CASE WHEN :permanent OR attempts >= max_attempts THEN 'dead' ELSE 'queued' END,
    run_at = :run_at, locked_by = NULL, locked_at = NULL, last_error = :error, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempts
RETURNING status;

-- name: snooze
-- running -> queued for later, the attempt not counted.
UPDATE jobs
SET status = 'queued', run_at = :run_at, attempts = attempts - 1, locked_by = NULL, locked_at = NULL, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempts;

-- name: crash
-- running -> queued, at once, after the worker died under it; dead when its tries or its crash budget are used up.
UPDATE jobs
SET status = CASE WHEN attempts >= max_attempts OR crashes + 1 >= :max_crashes THEN 'dead' ELSE 'queued' END,
    last_error = :error || CASE WHEN crashes + 1 >= :max_crashes
                           THEN '; crash ' || (crashes + 1) || ' of at most ' || :max_crashes ELSE '' END,
    crashes = crashes + 1, locked_by = NULL, locked_at = NULL, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempts
RETURNING status;

-- name: give_back
-- running -> queued, through no fault of the job: the attempt is not counted. From the :at_most-th time on it is,
-- for a job that takes its whole pool down each time must not loop for ever.
UPDATE jobs
SET status = CASE WHEN interruptions >= :at_most AND attempts >= max_attempts THEN 'dead' ELSE 'queued' END,
    last_error = CASE WHEN interruptions >= :at_most AND attempts >= max_attempts
                      THEN :error || '; interrupted ' || (interruptions + 1) || ' times' ELSE last_error END,
    attempts = attempts - (interruptions < :at_most), interruptions = interruptions + 1,
    locked_by = NULL, locked_at = NULL, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempts
RETURNING status;

-- name: requeue
-- dead, or queued for later -> queued, due now, with all its tries.
UPDATE jobs
SET status = 'queued', run_at = :now, attempts = 0, crashes = 0, interruptions = 0,
    locked_by = NULL, locked_at = NULL, cancel_requested_at = NULL, cancel_requested_by = NULL, updated_at = :now
WHERE id = :id AND status IN ('dead', 'queued')
RETURNING id;

-- name: run_again
-- done -> queued: only where the caller knows that the work has to be done anew.
UPDATE jobs
SET status = 'queued', run_at = :now, attempts = 0, crashes = 0, interruptions = 0, result = NULL,
    locked_by = NULL, locked_at = NULL, cancel_requested_at = NULL, cancel_requested_by = NULL, updated_at = :now
WHERE id = :id AND status = 'done'
RETURNING id;

-- name: archive_copy
-- A job that is not running, copied to the archive. Columns by name: a newer version may add one while a pool of this one
-- runs.
INSERT INTO jobs_archive (id, type, payload, status, attempts, max_attempts, run_at, locked_by, locked_at, last_error,
                          idempotency_key, created_at, updated_at, priority, timeout_seconds, crashes, interruptions,
                          result, cancel_requested_at, cancel_requested_by, archived_at, archived_by, archive_reason,
                          trace_context)
SELECT id, type, payload, status, attempts, max_attempts, run_at, locked_by, locked_at, last_error, idempotency_key,
       created_at, updated_at, priority, timeout_seconds, crashes, interruptions, result,
       cancel_requested_at, cancel_requested_by, :now, :by, :reason, trace_context
FROM jobs WHERE id = :id AND status <> 'running'
RETURNING id;

-- name: archive_delete
-- The second half of the move.
DELETE FROM jobs WHERE id = :id AND status <> 'running';

-- name: unarchive_copy
-- A job back from the archive: queued, due now, with all its tries and without a cancel.
INSERT INTO jobs (id, type, payload, max_attempts, run_at, last_error, idempotency_key, created_at, updated_at,
                  priority, timeout_seconds, trace_context)
SELECT id, type, payload, max_attempts, :now, last_error, idempotency_key, created_at, :now, priority, timeout_seconds,
       trace_context
FROM jobs_archive WHERE id = :id
RETURNING id;

-- name: unarchive_delete
-- The second half of the move back.
DELETE FROM jobs_archive WHERE id = :id;

-- name: queued_status
-- Whether a job waits.
SELECT id FROM jobs WHERE id = :id AND status = 'queued';

-- name: request_cancel
-- A running job is asked to end; its supervisor sees to it.
UPDATE jobs SET cancel_requested_at = :now, cancel_requested_by = :by, updated_at = :now
WHERE id = :id AND status = 'running'
RETURNING id;

-- name: cancelled_copy
-- running -> archive: how every attempt of a cancelled job ends, whatever else happened to it.
INSERT INTO jobs_archive (id, type, payload, status, attempts, max_attempts, run_at, locked_by, locked_at, last_error,
                          idempotency_key, created_at, updated_at, priority, timeout_seconds, crashes, interruptions,
                          result, cancel_requested_at, cancel_requested_by, archived_at, archived_by, archive_reason,
                          trace_context)
SELECT id, type, payload, status, attempts, max_attempts, run_at, NULL, NULL, :error, idempotency_key,
       created_at, :now, priority, timeout_seconds, crashes, interruptions, result,
       cancel_requested_at, cancel_requested_by, :now, cancel_requested_by, 'cancelled', trace_context
FROM jobs
WHERE id = :id AND status = 'running' AND locked_by IS :worker AND attempts = :attempts AND cancel_requested_at IS NOT NULL
RETURNING id;

-- name: cancelled_delete
-- The second half of the move.
DELETE FROM jobs
WHERE id = :id AND status = 'running' AND locked_by IS :worker AND attempts = :attempts AND cancel_requested_at IS NOT NULL;

-- name: record_attempt
-- The evidence of an attempt that did not complete.
INSERT INTO attempts (job_id, attempt, worker, started_at, ended_at, outcome, error, traceback, exit_code, signal,
                      stack, output, peak_memory_bytes, cpu_seconds)
VALUES (:job_id, :attempt, :worker, :started_at, :ended_at, :outcome, :error, :traceback, :exit_code, :signal,
        :stack, :output, :peak_memory_bytes, :cpu_seconds);
