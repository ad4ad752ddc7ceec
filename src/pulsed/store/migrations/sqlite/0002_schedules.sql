-- Schedules: rows that produce jobs. The cursor is the earliest occurrence that has not been fired.

CREATE TABLE pulse_schedules (
    id              BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    app             TEXT NOT NULL,
    name            TEXT NOT NULL,
    spec            TEXT NOT NULL,
    -- Written by a program's declarations, or by somebody's hand.
    declared        INTEGER NOT NULL CHECK (declared IN (0, 1)),
    state           TEXT NOT NULL CHECK (state IN ('ACTIVE', 'PAUSED', 'DONE', 'ERROR')),
    error           TEXT,
    -- Where an interval counts from.
    anchor          INTEGER NOT NULL,
    next_run_at     INTEGER,
    last_occurrence INTEGER,
    last_fired_at   INTEGER,
    missed          INTEGER NOT NULL DEFAULT 0,
    -- Raised by every change but a fire; together with the cursor it is the guard of a fire.
    revision        INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    UNIQUE (app, name),
    CHECK (next_run_at IS NULL OR last_occurrence IS NULL OR next_run_at > last_occurrence),
    CHECK (state <> 'ACTIVE' OR next_run_at IS NOT NULL)
) STRICT;

CREATE INDEX pulse_schedules_due ON pulse_schedules (next_run_at) WHERE state = 'ACTIVE';

-- Lineage: one job for one occurrence of one schedule.
ALTER TABLE pulse_jobs ADD COLUMN schedule_id BLOB;

ALTER TABLE pulse_jobs ADD COLUMN occurrence INTEGER;

CREATE UNIQUE INDEX pulse_jobs_occurrence ON pulse_jobs (schedule_id, occurrence)
    WHERE schedule_id IS NOT NULL;

-- Whether a schedule has a job that has not ended, however many have.
CREATE INDEX pulse_jobs_unfinished ON pulse_jobs (schedule_id)
    WHERE schedule_id IS NOT NULL AND status IN ('PENDING', 'RUNNING', 'RETRYING', 'WAITING');
