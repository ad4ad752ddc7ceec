-- Bulk operations: acts on all jobs that match a filter, performed in batches by any process.

CREATE TABLE pulse_bulk (
    id           uuid PRIMARY KEY,
    kind         text NOT NULL,
    -- What else there is to say about the act, and which jobs it is for, as JSON.
    arguments    text NOT NULL,
    filter       text NOT NULL,
    -- As in pulse_audit, whose entry has the same id.
    actor        text NOT NULL,
    role         text NOT NULL,
    claimed      text NOT NULL,
    state        text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'STOPPED', 'FAILED')),
    -- Jobs from this id up are done, or were submitted after the operation was started.
    cursor       uuid NOT NULL,
    done         bigint NOT NULL DEFAULT 0,
    skipped      bigint NOT NULL DEFAULT 0,
    -- Counted before the start, up to a bound.
    total        bigint NOT NULL,
    is_at_least  boolean NOT NULL,
    started_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    error        text,
    -- The process that performs it now; others leave it alone until then.
    held_by      uuid,
    held_until   timestamptz
);

CREATE INDEX pulse_bulk_started ON pulse_bulk (started_at);

CREATE INDEX pulse_bulk_running ON pulse_bulk (updated_at) WHERE state = 'RUNNING';

-- The first jobs of each operation that it could not act on, and why.
CREATE TABLE pulse_bulk_skips (
    bulk_id uuid NOT NULL,
    job_id  uuid NOT NULL,
    status  text,
    reason  text NOT NULL,
    -- The job that holds the key of this one.
    holder  uuid,
    PRIMARY KEY (bulk_id, job_id)
);

-- The jobs that have tags, by tag.
CREATE TABLE pulse_tags (
    job_id uuid NOT NULL,
    tag    text NOT NULL,
    PRIMARY KEY (job_id, tag)
);

CREATE INDEX pulse_tags_tag ON pulse_tags (tag, job_id);

INSERT INTO pulse_tags (job_id, tag)
    SELECT DISTINCT id, e.value FROM pulse_jobs,
        json_array_elements_text(CASE WHEN json_typeof(tags) = 'array' THEN tags END) AS e(value)
    WHERE tags IS NOT NULL AND length(e.value) <= 200;
