-- The index of claims, with what pages show of the jobs in it: due jobs are counted by status and
-- topic without a visit to their rows, which are spread over the whole table.
CREATE INDEX pulse_jobs_claimable ON pulse_jobs
    (queue, priority DESC, next_run_at, id, status, topic)
    WHERE status IN ('PENDING', 'RETRYING', 'WAITING');

DROP INDEX pulse_jobs_claim;
