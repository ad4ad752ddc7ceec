-- Limits: jobs that share a key share slots and permits.
-- The lease is the slot. Nothing is counted up or down, so nothing is lost with a process.
ALTER TABLE pulse_jobs ADD COLUMN limit_key TEXT;

-- Jobs without a limit are claimed from an index of their own: a key whose slots are all in use
-- costs them nothing.
CREATE INDEX pulse_jobs_unlimited ON pulse_jobs
    (queue, priority DESC, next_run_at, id, status, topic, limit_key)
    WHERE status IN ('PENDING', 'RETRYING', 'WAITING') AND limit_key IS NULL;

DROP INDEX pulse_jobs_claimable;

-- Jobs with a limit, for claims: the due jobs of a key, best first.
-- (Its condition begins with the key: every update of a job evaluates it, and most have none.)
CREATE INDEX pulse_jobs_limited ON pulse_jobs (queue, limit_key, priority DESC, next_run_at, id)
    WHERE limit_key IS NOT NULL AND status IN ('PENDING', 'RETRYING', 'WAITING');

-- The same jobs for pages and checks, in the order of jobs without a limit.
CREATE INDEX pulse_jobs_limited_due ON pulse_jobs
    (queue, priority DESC, next_run_at, id, status, topic, limit_key)
    WHERE coalesce(limit_key, '') <> '' AND status IN ('PENDING', 'RETRYING', 'WAITING');

-- Jobs that have started and not ended, by key: with a lease they run.
CREATE INDEX pulse_jobs_slots ON pulse_jobs (limit_key, lease_until)
    WHERE limit_key IS NOT NULL AND started_at IS NOT NULL AND completed_at IS NULL;
