-- Retention: finished jobs are removed after a time.

-- Finished jobs of a status, the longest finished first. The status comes first, so that dead
-- letters which are kept do not stand in the way of successes which are not.
CREATE INDEX pulse_jobs_finished ON pulse_jobs (status, completed_at)
    WHERE completed_at IS NOT NULL;

-- Until when one process has the turn at removing them.
ALTER TABLE pulse_meta ADD COLUMN prune_after INTEGER;
