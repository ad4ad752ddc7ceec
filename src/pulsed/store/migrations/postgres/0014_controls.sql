-- What governs a queue, a topic or a limit at run time. Where nothing does, there is no row.
CREATE TABLE pulse_controls (
    scope      text NOT NULL CHECK (scope IN ('queue', 'topic', 'limit')),
    name       text NOT NULL,
    paused     boolean NOT NULL,
    paused_at  timestamptz,
    paused_by  text,
    -- The numbers of the code, and an operator's numbers, which count instead.
    declared   json,
    override   json,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (scope, name)
);

-- Rates in use: when the run after the last one would start if all came evenly spaced.
CREATE TABLE pulse_rates (
    scope text NOT NULL,
    key   text NOT NULL,
    tat   timestamptz NOT NULL,
    PRIMARY KEY (scope, key)
) WITH (
    -- A row is written by every claim under its rate.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01
);
