-- The same tests of values in less text. PostgreSQL reads and plans the CHECKs of a table anew in
-- every statement that writes to it, which was a third of its work for a single job. Constants have
-- the type of their column here, so that none is converted each time. NOT VALID: the tests that
-- these replace have seen every row, and nobody has to wait until all are read again.
ALTER TABLE pulse_jobs
    DROP CONSTRAINT pulse_jobs_attempts_check,
    DROP CONSTRAINT pulse_jobs_max_attempts_check,
    DROP CONSTRAINT pulse_jobs_backoff_base_check,
    DROP CONSTRAINT pulse_jobs_backoff_power_check,
    DROP CONSTRAINT pulse_jobs_backoff_factor_check,
    DROP CONSTRAINT pulse_jobs_backoff_cap_check,
    DROP CONSTRAINT pulse_jobs_backoff_jitter_check,
    DROP CONSTRAINT pulse_jobs_timeout_ms_check,
    DROP CONSTRAINT pulse_jobs_lease_ms_check,
    DROP CONSTRAINT pulse_jobs_check,
    DROP CONSTRAINT pulse_jobs_status_check,
    ADD CONSTRAINT pulse_jobs_status_check CHECK (status = ANY (
        '{PENDING,RUNNING,RETRYING,WAITING,SUCCEEDED,DEAD_LETTERED,CANCELLED}'::text[])) NOT VALID,
    -- What is NULL is left out by least and greatest, and a comparison with it is no violation.
    ADD CONSTRAINT pulse_jobs_options_check CHECK (
        attempts >= 0
        AND max_attempts >= 1
        AND least(timeout_ms, lease_ms) > 0
        AND least(backoff_base, backoff_power, backoff_cap, backoff_jitter) >= '0'::float8
        AND greatest(backoff_base, backoff_cap) <= '316224000'::float8
        AND backoff_power <= '10'::float8
        AND backoff_factor >= '1'::float8
        AND backoff_factor <= '100'::float8
        AND backoff_jitter <= '1'::float8
        -- A policy is there as a whole or not at all: half of one would fail every batch it is in.
        AND num_nulls(backoff_base, backoff_power, backoff_factor, backoff_cap, backoff_jitter)
            = ANY ('{0,5}'::int[])) NOT VALID;
