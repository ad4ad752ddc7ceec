-- Recovery: which expired leases are those of dead workers.

-- The looks of the watchdogs, each with the one before it: in between, nobody is known to have
-- reached the database. A few dozen rows, which every watchdog tidies.
CREATE TABLE pulse_ticks (
    id       uuid PRIMARY KEY,
    previous timestamptz,
    at       timestamptz NOT NULL
);

ALTER TABLE pulse_meta DROP COLUMN last_tick, DROP COLUMN reap_after;
