-- Statistics of runs: counts and histograms by minute, queue and topic, and the errors in them.

CREATE TABLE pulse_rollups (
    -- The seconds that a row sums, from `at` on. 0: one recorder's part of a minute. Each of those
    -- is folded into a row of every other span.
    span          smallint NOT NULL,
    at            timestamptz NOT NULL,
    queue         text NOT NULL,
    topic         text NOT NULL,
    -- Each recorder has rows of its own, which no other writes; zero once they are folded.
    recorder      uuid NOT NULL,
    submitted     integer NOT NULL,
    started       integer NOT NULL,
    succeeded     integer NOT NULL,
    failed        integer NOT NULL,
    dead_lettered integer NOT NULL,
    cancelled     integer NOT NULL,
    -- Histograms: how many waits and runs were in each bucket, and their sum in seconds.
    wait_seconds float8 NOT NULL,
    wait_0 integer NOT NULL, wait_1 integer NOT NULL, wait_2 integer NOT NULL,
    wait_3 integer NOT NULL, wait_4 integer NOT NULL, wait_5 integer NOT NULL,
    wait_6 integer NOT NULL, wait_7 integer NOT NULL, wait_8 integer NOT NULL,
    wait_9 integer NOT NULL, wait_10 integer NOT NULL, wait_11 integer NOT NULL,
    wait_12 integer NOT NULL, wait_13 integer NOT NULL, wait_14 integer NOT NULL,
    wait_15 integer NOT NULL, wait_16 integer NOT NULL, wait_17 integer NOT NULL,
    wait_18 integer NOT NULL, wait_19 integer NOT NULL, wait_20 integer NOT NULL,
    wait_21 integer NOT NULL, wait_22 integer NOT NULL,
    run_seconds float8 NOT NULL,
    run_0 integer NOT NULL, run_1 integer NOT NULL, run_2 integer NOT NULL,
    run_3 integer NOT NULL, run_4 integer NOT NULL, run_5 integer NOT NULL,
    run_6 integer NOT NULL, run_7 integer NOT NULL, run_8 integer NOT NULL,
    run_9 integer NOT NULL, run_10 integer NOT NULL, run_11 integer NOT NULL,
    run_12 integer NOT NULL, run_13 integer NOT NULL, run_14 integer NOT NULL,
    run_15 integer NOT NULL, run_16 integer NOT NULL, run_17 integer NOT NULL,
    run_18 integer NOT NULL, run_19 integer NOT NULL, run_20 integer NOT NULL,
    run_21 integer NOT NULL, run_22 integer NOT NULL,
    PRIMARY KEY (span, at, queue, topic, recorder)
) WITH (
    -- A recorder writes its rows of a minute again and again, and they are folded soon.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05
);

CREATE TABLE pulse_error_rollups (
    span          smallint NOT NULL,
    at            timestamptz NOT NULL,
    queue         text NOT NULL,
    topic         text NOT NULL,
    -- The name of the exception's class.
    error         text NOT NULL,
    recorder      uuid NOT NULL,
    count         integer NOT NULL,
    dead_lettered integer NOT NULL,
    last_at       timestamptz NOT NULL,
    -- Of the last one, cut.
    message       text NOT NULL,
    PRIMARY KEY (span, at, queue, topic, error, recorder)
) WITH (
    -- A recorder writes its rows of a minute again and again, and they are folded soon.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05
);
