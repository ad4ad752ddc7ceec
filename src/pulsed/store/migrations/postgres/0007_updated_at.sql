-- When a job last changed; NULL for one that has not changed since it was submitted.
ALTER TABLE pulse_jobs ADD COLUMN updated_at timestamptz;
