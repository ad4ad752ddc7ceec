-- pulsed on SQLite. Ids are 16-byte blobs, times are integer microseconds since the epoch, UTC.
-- A job is one row of pulse_jobs from its submission to its end; the lease lives on that row, so
-- that a running job without a lease cannot exist.

CREATE TABLE pulse_jobs (
    id               BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    queue            TEXT NOT NULL,
    topic            TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('PENDING', 'RUNNING', 'RETRYING', 'WAITING',
                                                     'SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')),
    priority         INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    payload          TEXT NOT NULL,
    result           TEXT,
    headers          TEXT,
    tags             TEXT,
    attempts         INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- What is NULL here is filled from the worker's topic when the job is claimed.
    max_attempts     INTEGER CHECK (max_attempts >= 1),
    backoff_base     REAL CHECK (backoff_base BETWEEN 0 AND 316224000),
    backoff_power    REAL CHECK (backoff_power BETWEEN 0 AND 10),
    backoff_factor   REAL CHECK (backoff_factor BETWEEN 1 AND 100),
    backoff_cap      REAL CHECK (backoff_cap BETWEEN 0 AND 316224000),
    backoff_jitter   REAL CHECK (backoff_jitter BETWEEN 0 AND 1),
    timeout_ms       INTEGER CHECK (timeout_ms > 0),
    lease_ms         INTEGER CHECK (lease_ms > 0),
    next_run_at      INTEGER NOT NULL,
    lease_token      INTEGER NOT NULL DEFAULT 0,
    locked_by        BLOB,
    lease_until      INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    last_worker      BLOB,
    last_outcome     TEXT,
    last_error       TEXT,
    submitted_at     INTEGER NOT NULL,
    started_at       INTEGER,
    completed_at     INTEGER,
    progress         TEXT,
    -- A policy is there as a whole or not at all: half of one would fail every batch it is in.
    CHECK ((backoff_base IS NULL) + (backoff_power IS NULL) + (backoff_factor IS NULL)
        + (backoff_cap IS NULL) + (backoff_jitter IS NULL) IN (0, 5)),
    CHECK ((status = 'RUNNING') = (locked_by IS NOT NULL AND lease_until IS NOT NULL))
) STRICT;

-- Due jobs of a queue, best first: for one priority they are one stretch of this index.
CREATE INDEX pulse_jobs_claim ON pulse_jobs (queue, priority DESC, next_run_at, id)
    WHERE status IN ('PENDING', 'RETRYING', 'WAITING');

-- Running jobs by the end of their lease.
CREATE INDEX pulse_jobs_lease ON pulse_jobs (lease_until) WHERE lease_until IS NOT NULL;

-- The dead letters, which people look for among millions of successes.
CREATE INDEX pulse_jobs_dead ON pulse_jobs (id) WHERE status = 'DEAD_LETTERED';

-- One row for each failed attempt.
CREATE TABLE pulse_failures (
    job_id      BLOB NOT NULL,
    lease_token INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    worker_id   BLOB NOT NULL,
    started_at  INTEGER,
    ended_at    INTEGER NOT NULL,
    error       TEXT NOT NULL,
    traceback   TEXT,
    PRIMARY KEY (job_id, lease_token)
) STRICT, WITHOUT ROWID;

-- Who is at work. Only for people to look at: leases decide, not this.
CREATE TABLE pulse_workers (
    id         BLOB PRIMARY KEY NOT NULL,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    queues     TEXT NOT NULL,
    topics     TEXT NOT NULL,
    slots      INTEGER NOT NULL,
    running    INTEGER NOT NULL,
    stuck      INTEGER NOT NULL,
    state      TEXT NOT NULL,
    version    TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    last_beat  INTEGER NOT NULL
) STRICT;

-- When a watchdog last looked, and until when none of them may reap.
CREATE TABLE pulse_meta (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    last_tick  INTEGER,
    reap_after INTEGER
) STRICT;

INSERT INTO pulse_meta (one) VALUES (1);
