-- What an operator asks of a worker: to drain, or to stop.
ALTER TABLE pulse_workers ADD COLUMN request text;
