-- What the dashboard and the metrics read beside the views, and the one change of theirs that has no verb.

-- name: web_counters
-- What the pools have counted, ever: some dozens of rows a job type.
SELECT name, label, bucket, value FROM counters ORDER BY name, label, bucket;

-- name: web_minutes
-- What ended in each minute, in the order of the table's own key.
SELECT minute, sum(done) AS done, sum(failed) AS failed FROM minutes WHERE minute > :since GROUP BY minute;

-- name: web_minutes_by_type
SELECT minute, type, done, failed FROM minutes WHERE minute > :since;

-- name: web_due_between
-- How many jobs become due after one instant and not after another, counted no further than :most.
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 'queued' AND run_at > :after AND run_at <= :until LIMIT :most);

-- name: web_edit
-- A waiting or dead job gets another payload, if it is still what the person saw.
UPDATE jobs SET payload = :payload, priority = :priority, max_attempts = :max_attempts, updated_at = :now
WHERE id = :id AND status IN ('queued', 'dead') AND updated_at = :seen
RETURNING id;
