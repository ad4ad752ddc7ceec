-- The audit log: what operators did to jobs, schedules and tokens.

CREATE TABLE pulse_audit (
    -- Made once for all tries of an act, so that it has one entry.
    id       uuid PRIMARY KEY,
    at       timestamptz NOT NULL,
    -- A user at a host, or the name of a token and its roles when a server was asked.
    actor    text NOT NULL,
    role     text NOT NULL,
    -- What a server's caller says of itself.
    claimed  text NOT NULL,
    act      text NOT NULL,
    affected integer NOT NULL,
    detail   text NOT NULL
);

-- The newest are read first, the oldest removed first.
CREATE INDEX pulse_audit_at ON pulse_audit (at);
