-- Keys: at most one job of a topic holds a key.

-- How long it holds it: 'start', 'end' (also NULL), or seconds from its submission.
ALTER TABLE pulse_jobs ADD COLUMN key text,
    ADD COLUMN key_for text,
    ADD COLUMN key_held boolean,
    ADD COLUMN key_until timestamptz;

-- Holders: key_held is true, or NULL. A living job that holds its key is in no danger of losing it
-- to another one, so a retry never meets a conflict.
CREATE UNIQUE INDEX pulse_jobs_holders ON pulse_jobs (topic, key) WHERE key_held IS NOT NULL;

-- All jobs that hold, or held, a key, to find them by it.
CREATE INDEX pulse_jobs_keys ON pulse_jobs (key, topic, id) WHERE key IS NOT NULL;
