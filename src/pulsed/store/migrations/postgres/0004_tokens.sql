-- Tokens: who may call a server, and for what. Only a digest of the secret is kept.

CREATE TABLE pulse_tokens (
    name       text PRIMARY KEY,
    -- SHA-256 of the token in hex; NULL: the name is that of a client certificate.
    digest     text,
    -- JSON lists; without topics or queues, all of them.
    roles      text NOT NULL,
    topics     text,
    queues     text,
    created_at timestamptz NOT NULL
);
