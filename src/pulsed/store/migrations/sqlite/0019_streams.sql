-- Streams: the items that the runs of a job emit, kept for as long as the job is.
CREATE TABLE pulse_stream (
    job_id     BLOB NOT NULL,
    position   INTEGER NOT NULL,
    -- Rises when the job is run again.
    run        INTEGER NOT NULL,
    value      TEXT NOT NULL,
    -- Bytes of the value, so that a stream is trimmed without reading it.
    size       INTEGER NOT NULL,
    emitted_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, position)
) STRICT, WITHOUT ROWID;
