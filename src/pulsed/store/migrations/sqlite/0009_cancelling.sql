-- Running jobs that were asked to stop, by their worker. Empty nearly always.
CREATE INDEX pulse_jobs_cancelling ON pulse_jobs (locked_by)
    WHERE cancel_requested = 1 AND locked_by IS NOT NULL;
