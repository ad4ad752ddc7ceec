-- Schedules: rows that produce jobs. The cursor is the earliest occurrence that has not been fired.

CREATE TABLE pulse_schedules (
    id              uuid PRIMARY KEY,
    app             text NOT NULL,
    name            text NOT NULL,
    spec            json NOT NULL,
    -- Written by a program's declarations, or by somebody's hand.
    declared        boolean NOT NULL,
    state           text NOT NULL CHECK (state IN ('ACTIVE', 'PAUSED', 'DONE', 'ERROR')),
    error           text,
    -- Where an interval counts from.
    anchor          timestamptz NOT NULL,
    next_run_at     timestamptz,
    last_occurrence timestamptz,
    last_fired_at   timestamptz,
    missed          bigint NOT NULL DEFAULT 0,
    -- Raised by every change but a fire; together with the cursor it is the guard of a fire.
    revision        bigint NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    UNIQUE (app, name),
    CHECK (next_run_at IS NULL OR last_occurrence IS NULL OR next_run_at > last_occurrence),
    CHECK (state <> 'ACTIVE' OR next_run_at IS NOT NULL)
);

CREATE INDEX pulse_schedules_due ON pulse_schedules (next_run_at) WHERE state = 'ACTIVE';

-- Lineage: one job for one occurrence of one schedule.
ALTER TABLE pulse_jobs ADD COLUMN schedule_id uuid;

ALTER TABLE pulse_jobs ADD COLUMN occurrence timestamptz;

CREATE UNIQUE INDEX pulse_jobs_occurrence ON pulse_jobs (schedule_id, occurrence)
    WHERE schedule_id IS NOT NULL;

-- Whether a schedule has a job that has not ended, however many have.
CREATE INDEX pulse_jobs_unfinished ON pulse_jobs (schedule_id)
    WHERE schedule_id IS NOT NULL AND status IN ('PENDING', 'RUNNING', 'RETRYING', 'WAITING');
