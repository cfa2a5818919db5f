-- By what a person finds jobs, and the record of what a person changed.

-- Neither index is touched by a claim or a complete: those change no column of theirs. An index of finished jobs by
-- their end would be (a tenth less claims and completes a second), so there is none: done jobs are walked by id.
CREATE INDEX jobs_type ON jobs (type);
-- Jobs that have failed at least once, among which errors are searched.
CREATE INDEX jobs_failed ON jobs (id) WHERE last_error IS NOT NULL;

CREATE INDEX archive_at ON jobs_archive (archived_at);
CREATE INDEX archive_type ON jobs_archive (type);
CREATE INDEX archive_key ON jobs_archive (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    by TEXT NOT NULL,
    action TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    filter TEXT NOT NULL,
    detail TEXT NOT NULL
);
