-- Tokens: who may call a server, and for what. Only a digest of the secret is kept.

CREATE TABLE pulse_tokens (
    name       TEXT PRIMARY KEY NOT NULL,
    -- SHA-256 of the token in hex; NULL: the name is that of a client certificate.
    digest     TEXT,
    -- JSON lists; without topics or queues, all of them.
    roles      TEXT NOT NULL,
    topics     TEXT,
    queues     TEXT,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
