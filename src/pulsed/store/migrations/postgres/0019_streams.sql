-- Streams: the items that the runs of a job emit, kept for as long as the job is.
CREATE TABLE pulse_stream (
    job_id     uuid NOT NULL,
    position   bigint NOT NULL,
    -- Rises when the job is run again.
    run        integer NOT NULL,
    value      json NOT NULL,
    -- Bytes of the value, so that a stream is trimmed without reading it.
    size       integer NOT NULL,
    emitted_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, position)
);
