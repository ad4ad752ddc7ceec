-- The table of jobs again, with tests of the status that SQLite evaluates in place. For an IN of
-- three words or more it makes a table, in every statement that writes a job, and searches it for
-- every row: a quarter of a settle. Columns, values and names of indexes stay as they are.

CREATE TABLE pulse_jobs_new (
    id               BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    queue            TEXT NOT NULL,
    topic            TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (
        status = 'PENDING' OR status = 'RUNNING' OR status = 'SUCCEEDED' OR status = 'RETRYING'
        OR status = 'WAITING' OR status = 'DEAD_LETTERED' OR status = 'CANCELLED'),
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
    schedule_id      BLOB,
    occurrence       INTEGER,
    parent_id        BLOB,
    parent_step      TEXT,
    outlives         INTEGER,
    generation       INTEGER,
    watched          INTEGER,
    cascades         INTEGER,
    wait_kind        TEXT,
    wait_key         TEXT,
    wait_enough      INTEGER,
    wait_too_many    INTEGER,
    wait_job         BLOB,
    updated_at       INTEGER,
    crashes          INTEGER,
    shared_lease     INTEGER,
    key              TEXT,
    key_for          TEXT,
    key_held         INTEGER,
    key_until        INTEGER,
    limit_key        TEXT,
    expires_at       INTEGER,
    -- A policy is there as a whole or not at all: half of one would fail every batch it is in.
    CHECK ((backoff_base IS NULL) + (backoff_power IS NULL) + (backoff_factor IS NULL)
        + (backoff_cap IS NULL) + (backoff_jitter IS NULL) IN (0, 5)),
    CHECK ((status = 'RUNNING') = (locked_by IS NOT NULL AND lease_until IS NOT NULL))
) STRICT;

INSERT INTO pulse_jobs_new (id, queue, topic, status, priority, payload, result, headers, tags,
    attempts, max_attempts, backoff_base, backoff_power, backoff_factor, backoff_cap,
    backoff_jitter, timeout_ms, lease_ms, next_run_at, lease_token, locked_by, lease_until,
    cancel_requested, last_worker, last_outcome, last_error, submitted_at, started_at,
    completed_at, progress, schedule_id, occurrence, parent_id, parent_step, outlives, generation,
    watched, cascades, wait_kind, wait_key, wait_enough, wait_too_many, wait_job, updated_at,
    crashes, shared_lease, key, key_for, key_held, key_until, limit_key, expires_at)
SELECT id, queue, topic, status, priority, payload, result, headers, tags,
    attempts, max_attempts, backoff_base, backoff_power, backoff_factor, backoff_cap,
    backoff_jitter, timeout_ms, lease_ms, next_run_at, lease_token, locked_by, lease_until,
    cancel_requested, last_worker, last_outcome, last_error, submitted_at, started_at,
    completed_at, progress, schedule_id, occurrence, parent_id, parent_step, outlives, generation,
    watched, cascades, wait_kind, wait_key, wait_enough, wait_too_many, wait_job, updated_at,
    crashes, shared_lease, key, key_for, key_held, key_until, limit_key, expires_at
FROM pulse_jobs ORDER BY rowid;

DROP TABLE pulse_jobs;

ALTER TABLE pulse_jobs_new RENAME TO pulse_jobs;

-- Its indexes, in the order in which earlier migrations made them; those say what each is for.
CREATE INDEX pulse_jobs_lease ON pulse_jobs (lease_until) WHERE lease_until IS NOT NULL;

CREATE INDEX pulse_jobs_dead ON pulse_jobs (id) WHERE status = 'DEAD_LETTERED';

CREATE UNIQUE INDEX pulse_jobs_occurrence ON pulse_jobs (schedule_id, occurrence)
    WHERE schedule_id IS NOT NULL;

CREATE INDEX pulse_jobs_unfinished ON pulse_jobs (schedule_id)
    WHERE schedule_id IS NOT NULL AND (status = 'PENDING' OR status = 'RUNNING'
        OR status = 'RETRYING' OR status = 'WAITING');

CREATE INDEX pulse_jobs_finished ON pulse_jobs (status, completed_at)
    WHERE completed_at IS NOT NULL;

CREATE INDEX pulse_jobs_family ON pulse_jobs (parent_id, parent_step, status)
    WHERE parent_id IS NOT NULL;

CREATE INDEX pulse_jobs_waiters ON pulse_jobs (wait_job) WHERE wait_job IS NOT NULL;

CREATE INDEX pulse_jobs_cascades ON pulse_jobs (id) WHERE cascades IS NOT NULL;

CREATE INDEX pulse_jobs_cancelling ON pulse_jobs (locked_by)
    WHERE cancel_requested = 1 AND locked_by IS NOT NULL;

CREATE INDEX pulse_jobs_suspects ON pulse_jobs (queue, priority DESC, next_run_at, id)
    WHERE crashes >= 2 AND completed_at IS NULL;

CREATE UNIQUE INDEX pulse_jobs_holders ON pulse_jobs (topic, key) WHERE key_held IS NOT NULL;

CREATE INDEX pulse_jobs_keys ON pulse_jobs (key, topic, id) WHERE key IS NOT NULL;

CREATE INDEX pulse_jobs_unlimited ON pulse_jobs
    (queue, priority DESC, next_run_at, id, status, topic, limit_key)
    WHERE (status = 'PENDING' OR status = 'RETRYING' OR status = 'WAITING') AND limit_key IS NULL;

CREATE INDEX pulse_jobs_limited ON pulse_jobs (queue, limit_key, priority DESC, next_run_at, id)
    WHERE limit_key IS NOT NULL
      AND (status = 'PENDING' OR status = 'RETRYING' OR status = 'WAITING');

CREATE INDEX pulse_jobs_limited_due ON pulse_jobs
    (queue, priority DESC, next_run_at, id, status, topic, limit_key)
    WHERE coalesce(limit_key, '') <> ''
      AND (status = 'PENDING' OR status = 'RETRYING' OR status = 'WAITING');

CREATE INDEX pulse_jobs_slots ON pulse_jobs (limit_key, lease_until)
    WHERE limit_key IS NOT NULL AND started_at IS NOT NULL AND completed_at IS NULL;

CREATE INDEX pulse_jobs_expiring ON pulse_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND started_at IS NULL AND completed_at IS NULL;

CREATE INDEX pulse_jobs_expired ON pulse_jobs (id) WHERE last_outcome = 'EXPIRED';
