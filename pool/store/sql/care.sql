-- What a person on call reads and changes: selections, bulk changes, retention, backup, audit.

-- Parts of a selection, put together by pool.selection: one source, its conditions, one order. Each source names its
-- index, because the planner has no statistics here and would take whichever looks best on paper.

-- name: part_pick_by_id
SELECT id, '' AS at

-- name: part_pick_by_due
SELECT id, run_at AS at

-- name: part_pick_by_change
SELECT id, updated_at AS at

-- name: part_pick_by_archived
SELECT id, archived_at AS at

-- name: part_pick_by_key
SELECT id, idempotency_key AS at

-- name: part_count
SELECT count(*)

-- name: part_limit
LIMIT :limit

-- name: part_from_jobs
FROM jobs NOT INDEXED WHERE TRUE

-- name: part_from_queued
FROM jobs INDEXED BY jobs_due WHERE TRUE

-- name: part_from_running
FROM jobs INDEXED BY jobs_running WHERE TRUE

-- name: part_from_dead
FROM jobs INDEXED BY jobs_dead WHERE TRUE

-- name: part_from_type
FROM jobs INDEXED BY jobs_type WHERE TRUE

-- name: part_from_key
FROM jobs INDEXED BY sqlite_autoindex_jobs_1 WHERE TRUE

-- name: part_from_failed
FROM jobs INDEXED BY jobs_failed WHERE last_error IS NOT NULL

-- name: part_from_archive
FROM jobs_archive INDEXED BY archive_at WHERE TRUE

-- name: part_from_archive_ids
FROM jobs_archive NOT INDEXED WHERE TRUE

-- name: part_from_archive_type
FROM jobs_archive INDEXED BY archive_type WHERE TRUE

-- name: part_from_archive_key
FROM jobs_archive INDEXED BY archive_key WHERE idempotency_key IS NOT NULL

-- name: part_status_queued
AND status = 'queued'

-- name: part_status_scheduled
AND status = 'queued' AND run_at > :now

-- name: part_status_running
AND status = 'running'

-- name: part_status_done
AND status = 'done'

-- name: part_status_dead
AND status = 'dead'

-- name: part_ids
AND id IN (SELECT value FROM json_each(:ids))

-- name: part_type
AND type = :type

-- name: part_key
AND idempotency_key = :key

-- name: part_key_from
AND idempotency_key >= :key

-- name: part_key_to
AND idempotency_key < :key_end

-- name: part_error
AND last_error LIKE :error ESCAPE '\'

-- name: part_older
AND updated_at < :older

-- name: part_newer
AND updated_at > :newer

-- name: part_archive_older
AND archived_at < :older

-- name: part_archive_newer
AND archived_at > :newer

-- name: part_after_by_id
AND id < :after_id

-- name: part_order_by_id
ORDER BY id DESC

-- Places in an order are bound as bytes and cast, so that a stranger's text which is not UTF-8 has its place, too.

-- name: part_after_by_due
AND (run_at, id) > (iif(:after_text, CAST(:after_at AS TEXT), :after_at), :after_id)

-- name: part_order_by_due
ORDER BY run_at, id

-- name: part_after_by_change
AND (updated_at, id) < (iif(:after_text, CAST(:after_at AS TEXT), :after_at), :after_id)

-- name: part_order_by_change
ORDER BY updated_at DESC, id DESC

-- name: part_after_by_archived
AND (archived_at, id) < (iif(:after_text, CAST(:after_at AS TEXT), :after_at), :after_id)

-- name: part_order_by_archived
ORDER BY archived_at DESC, id DESC

-- name: part_after_by_key
AND idempotency_key > iif(:after_text, CAST(:after_at AS TEXT), :after_at)

-- name: part_order_by_key
ORDER BY idempotency_key

-- name: selected_jobs
SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: selected_archive
SELECT * FROM jobs_archive WHERE id IN (SELECT value FROM json_each(:ids));

-- name: ended_jobs
-- Which of these have ended.
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('done', 'dead');

-- name: purge_job
-- An ended job is deleted.
DELETE FROM jobs WHERE id = :id AND status IN ('done', 'dead');

-- name: purge_archived
DELETE FROM jobs_archive WHERE id = :id;

-- name: purge_attempts
-- Its evidence goes first, so many rows at a time.
DELETE FROM attempts WHERE id IN (SELECT id FROM attempts WHERE job_id = :id LIMIT :most);

-- name: walk_jobs
-- The next jobs in the order of their ids, for retention; bytes, as strangers may have stored what is no text.
SELECT id, CAST(type AS BLOB), status, CAST(created_at AS BLOB), CAST(updated_at AS BLOB) FROM jobs
WHERE id > :after ORDER BY id;

-- name: walk_archive
-- The next archived jobs in the order in which they came, for retention.
SELECT id, CAST(type AS BLOB), archived_at FROM jobs_archive INDEXED BY archive_at
WHERE archived_at < :before AND (archived_at, id) > (:at, :after) ORDER BY archived_at, id;

-- name: still_expired
-- Which of these are still what they were when they were read: nobody has queued them anew meanwhile.
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND status = :status AND updated_at < :before;

-- name: still_archived
SELECT id FROM jobs_archive WHERE id IN (SELECT value FROM json_each(:ids)) AND archived_at < :before;

-- name: count_archive
SELECT count(*) FROM jobs_archive WHERE archived_at >= '';

-- name: restored_attempts
-- The evidence that a restore interrupted what ran when the backup was taken.
INSERT INTO attempts (job_id, attempt, worker, started_at, ended_at, outcome, error)
SELECT id, attempts, coalesce(locked_by, ''), locked_at, :now, :outcome, :error FROM jobs WHERE status = 'running';

-- name: restore_running
-- running -> queued: whoever held it belongs to another life of the file. The attempt is not counted.
UPDATE jobs
SET status = 'queued', attempts = max(attempts - 1, 0), locked_by = NULL, locked_at = NULL, updated_at = :now
WHERE status = 'running'
RETURNING id;

-- name: forget_pools
DELETE FROM pools;

-- name: forget_workers
DELETE FROM workers;

-- name: last_id
-- The highest id ever given out.
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs';

-- name: raise_last_id
UPDATE sqlite_sequence SET seq = :id WHERE name = 'jobs' AND seq < :id;

-- name: begin_last_id
INSERT INTO sqlite_sequence (name, seq) SELECT 'jobs', :id
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'jobs');

-- name: audit
INSERT INTO audit (at, by, action, jobs, filter, detail) VALUES (:at, :by, :action, :jobs, :filter, :detail) RETURNING id;

-- name: audit_add
-- A change in several transactions counts itself as it goes, so that a kill in between leaves the right number.
UPDATE audit SET jobs = jobs + :jobs WHERE id = :id;

-- name: audit_list
SELECT id, at, by, action, jobs, filter, detail FROM audit WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: queued_types
-- Each type in the table: a seek each.
WITH RECURSIVE found (type) AS (
    SELECT (SELECT type FROM jobs ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT type FROM jobs WHERE type > found.type ORDER BY type LIMIT 1) FROM found WHERE found.type IS NOT NULL)
SELECT type FROM found WHERE type IS NOT NULL LIMIT :limit;

-- name: has_queued
-- Whether a job of a type waits.
SELECT 1 FROM jobs INDEXED BY jobs_type WHERE type = :type AND status = 'queued' LIMIT 1;

-- name: unhandled_types
-- Types of jobs that failed with a certain error and wait or are dead.
SELECT type FROM jobs INDEXED BY jobs_failed
WHERE last_error IS NOT NULL AND id > 0 AND last_error LIKE :error AND status IN ('queued', 'dead') LIMIT :limit;

-- name: newest_change
-- The latest time that anything wrote, as far as the last jobs and the indexes of times tell.
SELECT max(at) FROM (
    SELECT max(created_at, updated_at) AS at FROM jobs
    WHERE id > (SELECT seq - 200 FROM sqlite_sequence WHERE name = 'jobs')
    UNION ALL SELECT max(updated_at) FROM jobs WHERE status = 'dead'
    UNION ALL SELECT max(locked_at) FROM jobs WHERE status = 'running'
    UNION ALL SELECT max(archived_at) FROM jobs_archive
    UNION ALL SELECT max(seen_at) FROM pools);

-- name: odd_run_at
-- Queued jobs whose time is no UTC text.
SELECT id, run_at FROM jobs INDEXED BY jobs_due WHERE status = 'queued' AND run_at >= ''
AND run_at NOT GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-6][0-9]'
AND run_at NOT GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-6][0-9].*' LIMIT 100;

-- name: count_due_after
-- Queued jobs due after an instant.
SELECT count(*) FROM jobs WHERE status = 'queued' AND run_at > :after;

-- name: free_pages
PRAGMA freelist_count;

-- name: all_pages
PRAGMA page_count;

-- name: vacuum_mode
PRAGMA auto_vacuum;

-- name: free_page
-- One page of the end of the file goes back to the file system.
PRAGMA incremental_vacuum(1);
