-- The public table, its archive, the evidence of failed attempts, and who is at work.

-- AUTOINCREMENT: an id is never used again, so a late writer cannot hit a younger job.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    -- The same as IN ('queued', 'running', 'done', 'dead'), for which SQLite builds a table at each change (1.2 µs).
    status TEXT NOT NULL DEFAULT 'queued'
        CHECK (status = 'queued' OR status = 'running' OR status = 'done' OR status = 'dead'),
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL DEFAULT 5,
    run_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    locked_by TEXT,
    locked_at TEXT,
    last_error TEXT,
    idempotency_key TEXT UNIQUE,
    created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    priority INTEGER NOT NULL DEFAULT 0,
    timeout_seconds REAL,
    crashes INTEGER NOT NULL DEFAULT 0,
    interruptions INTEGER NOT NULL DEFAULT 0,
    result TEXT,
    cancel_requested_at TEXT,
    cancel_requested_by TEXT
);

-- Our claim: within a priority, by due time (the rowid that ends every index entry breaks ties).
CREATE INDEX jobs_claim ON jobs (priority, run_at) WHERE status = 'queued';
-- A stranger's claim, the next due time, and how many are due.
CREATE INDEX jobs_due ON jobs (run_at) WHERE status = 'queued';
-- What a worker holds.
CREATE INDEX jobs_running ON jobs (locked_by) WHERE status = 'running';
-- Dead letters, newest last.
CREATE INDEX jobs_dead ON jobs (updated_at) WHERE status = 'dead';

CREATE TABLE jobs_archive (
    id INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    run_at TEXT NOT NULL,
    locked_by TEXT,
    locked_at TEXT,
    last_error TEXT,
    idempotency_key TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    priority INTEGER NOT NULL,
    timeout_seconds REAL,
    crashes INTEGER NOT NULL,
    interruptions INTEGER NOT NULL,
    result TEXT,
    cancel_requested_at TEXT,
    cancel_requested_by TEXT,
    archived_at TEXT NOT NULL,
    archived_by TEXT NOT NULL,
    archive_reason TEXT NOT NULL
);

CREATE TABLE attempts (
    id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker TEXT NOT NULL,
    started_at TEXT,
    ended_at TEXT NOT NULL,
    outcome TEXT NOT NULL,
    error TEXT,
    traceback TEXT,
    exit_code INTEGER,
    signal TEXT,
    stack TEXT,
    output TEXT,
    peak_memory_bytes INTEGER,
    cpu_seconds REAL
);
CREATE INDEX attempts_job ON attempts (job_id);

CREATE TABLE pools (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL,
    machine TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    seen_at TEXT NOT NULL,
    state TEXT NOT NULL,
    target INTEGER NOT NULL,
    exclusive INTEGER NOT NULL DEFAULT 0,
    wanted_target INTEGER,
    reload_requested_at TEXT,
    report TEXT NOT NULL DEFAULT '{}'
);

CREATE TABLE workers (
    identity TEXT PRIMARY KEY,
    pool_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    machine TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    started_at TEXT NOT NULL
) WITHOUT ROWID;

-- Whether claims are paused, and why: at most one row.
CREATE TABLE pauses (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    by TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TEXT NOT NULL,
    until TEXT
);

-- What pools have counted, ever: jobs and attempts by type, waits and runs by type in buckets of powers of two
-- microseconds, write latencies in powers of two nanoseconds, restarts by cause.
CREATE TABLE counters (
    name TEXT NOT NULL,
    label TEXT NOT NULL,
    bucket INTEGER NOT NULL DEFAULT 0,
    value INTEGER NOT NULL,
    PRIMARY KEY (name, label, bucket)
) WITHOUT ROWID;

-- The last day by minutes, for charts.
CREATE TABLE minutes (
    minute TEXT NOT NULL,
    type TEXT NOT NULL,
    done INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    PRIMARY KEY (minute, type)
) WITHOUT ROWID;
