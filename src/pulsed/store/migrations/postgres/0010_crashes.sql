-- Jobs that died with their processes: which of several it was that killed them.

-- How often in a row its process died while it ran others, too; those runs cost no attempt.
ALTER TABLE pulse_jobs ADD COLUMN crashes integer,
    -- The lease under which its worker was found dead with several jobs. The last of them to expire
    -- would otherwise look as if it had been alone.
    ADD COLUMN shared_lease bigint;

-- Suspects, which run one at a time in a process, and are claimed apart from all others.
CREATE INDEX pulse_jobs_suspects ON pulse_jobs (queue, priority DESC, next_run_at, id)
    WHERE crashes >= 2 AND completed_at IS NULL;
