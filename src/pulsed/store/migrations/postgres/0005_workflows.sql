-- Workflows: what a job's steps came to, what it waits for, and the jobs that it made.

-- A child knows its parent, and which of the parent's fan-outs it belongs to.
ALTER TABLE pulse_jobs ADD COLUMN parent_id uuid,
    ADD COLUMN parent_step text,
    -- Goes on when its parent fails.
    ADD COLUMN outlives boolean,
    -- How often a workflow was begun afresh: the children of each time are its own.
    ADD COLUMN generation integer,
    -- Another job waits for its end.
    ADD COLUMN watched boolean,
    -- It ended without success, and has children that have yet to be told.
    ADD COLUMN cascades boolean,
    -- What it waits for. Means something while it is WAITING.
    ADD COLUMN wait_kind text,
    ADD COLUMN wait_key text,
    ADD COLUMN wait_enough integer,
    ADD COLUMN wait_too_many integer,
    -- The job it waits for, also while it is only about to: whoever ends that job looks here.
    ADD COLUMN wait_job uuid;

-- The children of a fan-out by their status: is one alive, how many failed.
CREATE INDEX pulse_jobs_family ON pulse_jobs (parent_id, parent_step, status)
    WHERE parent_id IS NOT NULL;

CREATE INDEX pulse_jobs_waiters ON pulse_jobs (wait_job) WHERE wait_job IS NOT NULL;

CREATE INDEX pulse_jobs_cascades ON pulse_jobs (id) WHERE cascades IS NOT NULL;

-- One row for each step of a workflow.
CREATE TABLE pulse_checkpoints (
    job_id      uuid NOT NULL,
    name        text NOT NULL,
    nth         integer NOT NULL,
    seq         integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('STEP', 'SLEEP', 'SIGNAL', 'FAN_OUT', 'JOB',
                                              'VERSION')),
    state       text NOT NULL CHECK (state IN ('OPEN', 'DONE', 'FAILED', 'TIMED_OUT')),
    input_hash  text NOT NULL,
    value       json,
    error       text,
    tries       integer NOT NULL,
    until       timestamptz,
    started_at  timestamptz NOT NULL,
    ended_at    timestamptz,
    -- The run that wrote it.
    lease_token bigint NOT NULL,
    PRIMARY KEY (job_id, name, nth)
);

-- Messages to workflows, kept after they were consumed for as long as the job is.
CREATE TABLE pulse_signals (
    id          uuid PRIMARY KEY,
    job_id      uuid NOT NULL,
    name        text NOT NULL,
    payload     json NOT NULL,
    sent_at     timestamptz NOT NULL,
    consumed_at timestamptz
);

CREATE INDEX pulse_signals_job ON pulse_signals (job_id, name, sent_at, id);
