-- pulsed on PostgreSQL.
-- A job is one row of pulse_jobs from its submission to its end; the lease lives on that row, so
-- that a running job without a lease cannot exist.

CREATE TABLE pulse_jobs (
    id               uuid PRIMARY KEY,
    queue            text NOT NULL,
    topic            text NOT NULL,
    status           text NOT NULL CHECK (status IN ('PENDING', 'RUNNING', 'RETRYING', 'WAITING',
                                                     'SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')),
    priority         smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    payload          json NOT NULL,
    result           json,
    headers          json,
    tags             json,
    attempts         integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- What is NULL here is filled from the worker's topic when the job is claimed.
    max_attempts     integer CHECK (max_attempts >= 1),
    backoff_base     float8 CHECK (backoff_base BETWEEN 0 AND 316224000),
    backoff_power    float8 CHECK (backoff_power BETWEEN 0 AND 10),
    backoff_factor   float8 CHECK (backoff_factor BETWEEN 1 AND 100),
    backoff_cap      float8 CHECK (backoff_cap BETWEEN 0 AND 316224000),
    backoff_jitter   float8 CHECK (backoff_jitter BETWEEN 0 AND 1),
    timeout_ms       bigint CHECK (timeout_ms > 0),
    lease_ms         bigint CHECK (lease_ms > 0),
    next_run_at      timestamptz NOT NULL,
    lease_token      bigint NOT NULL DEFAULT 0,
    locked_by        uuid,
    lease_until      timestamptz,
    cancel_requested boolean NOT NULL DEFAULT false,
    last_worker      uuid,
    last_outcome     text,
    last_error       text,
    submitted_at     timestamptz NOT NULL,
    started_at       timestamptz,
    completed_at     timestamptz,
    progress         json,
    -- A policy is there as a whole or not at all: half of one would fail every batch it is in.
    CHECK (num_nulls(backoff_base, backoff_power, backoff_factor, backoff_cap, backoff_jitter)
        IN (0, 5)),
    CHECK ((status = 'RUNNING') = (locked_by IS NOT NULL AND lease_until IS NOT NULL))
) WITH (
    -- A queue's table churns: look at it often, and leave room for updates in place.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1,
    fillfactor = 85
);

-- Due jobs of a queue, best first: for one priority they are one stretch of this index.
CREATE INDEX pulse_jobs_claim ON pulse_jobs (queue, priority DESC, next_run_at, id)
    WHERE status IN ('PENDING', 'RETRYING', 'WAITING');

-- Running jobs by the end of their lease. Its condition must not be one that a settle implies:
-- with "status = 'RUNNING'" a planner that believes nothing is running takes it for every settle.
CREATE INDEX pulse_jobs_lease ON pulse_jobs (lease_until) WHERE lease_until IS NOT NULL;

-- The dead letters, which people look for among millions of successes.
CREATE INDEX pulse_jobs_dead ON pulse_jobs (id) WHERE status = 'DEAD_LETTERED';

-- One row for each failed attempt.
CREATE TABLE pulse_failures (
    job_id      uuid NOT NULL,
    lease_token bigint NOT NULL,
    attempt     integer NOT NULL,
    worker_id   uuid NOT NULL,
    started_at  timestamptz,
    ended_at    timestamptz NOT NULL,
    error       text NOT NULL,
    traceback   text,
    PRIMARY KEY (job_id, lease_token)
);

-- Who is at work. Only for people to look at: leases decide, not this.
CREATE TABLE pulse_workers (
    id         uuid PRIMARY KEY,
    host       text NOT NULL,
    pid        integer NOT NULL,
    queues     json NOT NULL,
    topics     json NOT NULL,
    slots      integer NOT NULL,
    running    integer NOT NULL,
    stuck      integer NOT NULL,
    state      text NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    last_beat  timestamptz NOT NULL
);

-- When a watchdog last looked, and until when none of them may reap.
CREATE TABLE pulse_meta (
    one        integer PRIMARY KEY CHECK (one = 1),
    last_tick  timestamptz,
    reap_after timestamptz
);

INSERT INTO pulse_meta (one) VALUES (1);
