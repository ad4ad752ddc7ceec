-- The ranges of a job's options as types. PostgreSQL reads and plans the CHECKs of a table anew in
-- every statement that writes to it, but keeps those of a type; and an UPDATE that does not set a
-- column of such a type does not test it. The types have no CHECK until the columns have them, and
-- then one that is NOT VALID: so no row is read or written, and the table is locked for a moment.
CREATE DOMAIN pulse_attempts AS integer;
CREATE DOMAIN pulse_max_attempts AS integer;
CREATE DOMAIN pulse_period_ms AS bigint;
CREATE DOMAIN pulse_backoff_seconds AS float8;
CREATE DOMAIN pulse_backoff_power AS float8;
CREATE DOMAIN pulse_backoff_factor AS float8;
CREATE DOMAIN pulse_backoff_jitter AS float8;

ALTER TABLE pulse_jobs
    DROP CONSTRAINT pulse_jobs_options_check,
    ALTER attempts TYPE pulse_attempts,
    ALTER max_attempts TYPE pulse_max_attempts,
    ALTER timeout_ms TYPE pulse_period_ms,
    ALTER lease_ms TYPE pulse_period_ms,
    ALTER backoff_base TYPE pulse_backoff_seconds,
    ALTER backoff_cap TYPE pulse_backoff_seconds,
    ALTER backoff_power TYPE pulse_backoff_power,
    ALTER backoff_factor TYPE pulse_backoff_factor,
    ALTER backoff_jitter TYPE pulse_backoff_jitter,
    -- A policy is there as a whole or not at all: half of one would fail every batch it is in.
    ADD CONSTRAINT pulse_jobs_backoff_check CHECK (
        num_nulls(backoff_base, backoff_power, backoff_factor, backoff_cap, backoff_jitter)
            = ANY ('{0,5}'::int[])) NOT VALID;

ALTER DOMAIN pulse_attempts ADD CHECK (VALUE >= 0) NOT VALID;
ALTER DOMAIN pulse_max_attempts ADD CHECK (VALUE >= 1) NOT VALID;
ALTER DOMAIN pulse_period_ms ADD CHECK (VALUE > 0) NOT VALID;
ALTER DOMAIN pulse_backoff_seconds ADD CHECK (VALUE BETWEEN '0' AND '316224000') NOT VALID;
ALTER DOMAIN pulse_backoff_power ADD CHECK (VALUE BETWEEN '0' AND '10') NOT VALID;
ALTER DOMAIN pulse_backoff_factor ADD CHECK (VALUE BETWEEN '1' AND '100') NOT VALID;
ALTER DOMAIN pulse_backoff_jitter ADD CHECK (VALUE BETWEEN '0' AND '1') NOT VALID;

-- A job enters its primary key anew when it is claimed and when it ends. In pages that are half
-- full there is room for that; in full ones PostgreSQL would have to search for dead entries, or to
-- split them.
ALTER INDEX pulse_jobs_pkey SET (fillfactor = 50);
