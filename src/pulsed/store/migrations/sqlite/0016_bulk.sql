-- Bulk operations: acts on all jobs that match a filter, performed in batches by any process.

CREATE TABLE pulse_bulk (
    id           BLOB PRIMARY KEY NOT NULL,
    kind         TEXT NOT NULL,
    -- What else there is to say about the act, and which jobs it is for, as JSON.
    arguments    TEXT NOT NULL,
    filter       TEXT NOT NULL,
    -- As in pulse_audit, whose entry has the same id.
    actor        TEXT NOT NULL,
    role         TEXT NOT NULL,
    claimed      TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'STOPPED', 'FAILED')),
    -- Jobs from this id up are done, or were submitted after the operation was started.
    cursor       BLOB NOT NULL,
    done         INTEGER NOT NULL DEFAULT 0,
    skipped      INTEGER NOT NULL DEFAULT 0,
    -- Counted before the start, up to a bound.
    total        INTEGER NOT NULL,
    is_at_least  INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    ended_at     INTEGER,
    error        TEXT,
    -- The process that performs it now; others leave it alone until then.
    held_by      BLOB,
    held_until   INTEGER
) STRICT;

CREATE INDEX pulse_bulk_started ON pulse_bulk (started_at);

CREATE INDEX pulse_bulk_running ON pulse_bulk (updated_at) WHERE state = 'RUNNING';

-- The first jobs of each operation that it could not act on, and why.
CREATE TABLE pulse_bulk_skips (
    bulk_id BLOB NOT NULL,
    job_id  BLOB NOT NULL,
    status  TEXT,
    reason  TEXT NOT NULL,
    -- The job that holds the key of this one.
    holder  BLOB,
    PRIMARY KEY (bulk_id, job_id)
) STRICT, WITHOUT ROWID;

-- The jobs that have tags, by tag.
CREATE TABLE pulse_tags (
    job_id BLOB NOT NULL,
    tag    TEXT NOT NULL,
    PRIMARY KEY (job_id, tag)
) STRICT, WITHOUT ROWID;

CREATE INDEX pulse_tags_tag ON pulse_tags (tag, job_id);

INSERT INTO pulse_tags (job_id, tag)
    SELECT DISTINCT pulse_jobs.id, e.value FROM pulse_jobs,
        json_each(CASE WHEN json_valid(tags) THEN tags END) AS e
    WHERE tags IS NOT NULL AND e.type = 'text' AND length(e.value) <= 200;
