-- Workflows: what a job's steps came to, what it waits for, and the jobs that it made.

-- A child knows its parent, and which of the parent's fan-outs it belongs to.
ALTER TABLE pulse_jobs ADD COLUMN parent_id BLOB;

ALTER TABLE pulse_jobs ADD COLUMN parent_step TEXT;

-- Goes on when its parent fails.
ALTER TABLE pulse_jobs ADD COLUMN outlives INTEGER;

-- How often a workflow was begun afresh: the children of each time are its own.
ALTER TABLE pulse_jobs ADD COLUMN generation INTEGER;

-- Another job waits for its end.
ALTER TABLE pulse_jobs ADD COLUMN watched INTEGER;

-- It ended without success, and has children that have yet to be told.
ALTER TABLE pulse_jobs ADD COLUMN cascades INTEGER;

-- What it waits for. Means something while it is WAITING.
ALTER TABLE pulse_jobs ADD COLUMN wait_kind TEXT;

ALTER TABLE pulse_jobs ADD COLUMN wait_key TEXT;

ALTER TABLE pulse_jobs ADD COLUMN wait_enough INTEGER;

ALTER TABLE pulse_jobs ADD COLUMN wait_too_many INTEGER;

-- The job it waits for, also while it is only about to: whoever ends that job looks here.
ALTER TABLE pulse_jobs ADD COLUMN wait_job BLOB;

-- The children of a fan-out by their status: is one alive, how many failed.
CREATE INDEX pulse_jobs_family ON pulse_jobs (parent_id, parent_step, status)
    WHERE parent_id IS NOT NULL;

CREATE INDEX pulse_jobs_waiters ON pulse_jobs (wait_job) WHERE wait_job IS NOT NULL;

CREATE INDEX pulse_jobs_cascades ON pulse_jobs (id) WHERE cascades IS NOT NULL;

-- One row for each step of a workflow.
CREATE TABLE pulse_checkpoints (
    job_id      BLOB NOT NULL,
    name        TEXT NOT NULL,
    nth         INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    kind        TEXT NOT NULL CHECK (kind IN ('STEP', 'SLEEP', 'SIGNAL', 'FAN_OUT', 'JOB',
                                              'VERSION')),
    state       TEXT NOT NULL CHECK (state IN ('OPEN', 'DONE', 'FAILED', 'TIMED_OUT')),
    input_hash  TEXT NOT NULL,
    value       TEXT,
    error       TEXT,
    tries       INTEGER NOT NULL,
    until       INTEGER,
    started_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    -- The run that wrote it.
    lease_token INTEGER NOT NULL,
    PRIMARY KEY (job_id, name, nth)
) STRICT, WITHOUT ROWID;

-- Messages to workflows, kept after they were consumed for as long as the job is.
CREATE TABLE pulse_signals (
    id          BLOB PRIMARY KEY NOT NULL,
    job_id      BLOB NOT NULL,
    name        TEXT NOT NULL,
    payload     TEXT NOT NULL,
    sent_at     INTEGER NOT NULL,
    consumed_at INTEGER
) STRICT;

CREATE INDEX pulse_signals_job ON pulse_signals (job_id, name, sent_at, id);
