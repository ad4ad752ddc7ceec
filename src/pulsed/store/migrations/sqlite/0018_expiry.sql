-- Expiry: jobs that are not started any more from an instant on.
ALTER TABLE pulse_jobs ADD COLUMN expires_at INTEGER;

-- Those that may still expire. A job leaves it when it starts or ends, and most never enter it.
CREATE INDEX pulse_jobs_expiring ON pulse_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND started_at IS NULL AND completed_at IS NULL;

-- A run whose worker went silent was EXPIRED before; now that is a job that was never started.
UPDATE pulse_jobs SET last_outcome = 'LEASE_EXPIRED' WHERE last_outcome = 'EXPIRED';

-- Those that have expired, which people look for among all others.
CREATE INDEX pulse_jobs_expired ON pulse_jobs (id) WHERE last_outcome = 'EXPIRED';

ALTER TABLE pulse_rollups ADD COLUMN expired INTEGER NOT NULL DEFAULT 0;
