-- The audit log: what operators did to jobs, schedules and tokens.

CREATE TABLE pulse_audit (
    -- Made once for all tries of an act, so that it has one entry.
    id       BLOB PRIMARY KEY NOT NULL,
    at       INTEGER NOT NULL,
    -- A user at a host, or the name of a token and its roles when a server was asked.
    actor    TEXT NOT NULL,
    role     TEXT NOT NULL,
    -- What a server's caller says of itself.
    claimed  TEXT NOT NULL,
    act      TEXT NOT NULL,
    affected INTEGER NOT NULL,
    detail   TEXT NOT NULL
) STRICT;

-- The newest are read first, the oldest removed first.
CREATE INDEX pulse_audit_at ON pulse_audit (at);
