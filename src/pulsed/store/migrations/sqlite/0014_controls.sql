-- What governs a queue, a topic or a limit at run time. Where nothing does, there is no row.
CREATE TABLE pulse_controls (
    scope      TEXT NOT NULL CHECK (scope IN ('queue', 'topic', 'limit')),
    name       TEXT NOT NULL,
    paused     INTEGER NOT NULL,
    paused_at  INTEGER,
    paused_by  TEXT,
    -- The numbers of the code, and an operator's numbers, which count instead.
    declared   TEXT,
    override   TEXT,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

-- Rates in use: when the run after the last one would start if all came evenly spaced.
CREATE TABLE pulse_rates (
    scope TEXT NOT NULL,
    key   TEXT NOT NULL,
    tat   INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
