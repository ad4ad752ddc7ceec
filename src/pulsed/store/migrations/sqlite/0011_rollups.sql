-- Statistics of runs: counts and histograms by minute, queue and topic, and the errors in them.

CREATE TABLE pulse_rollups (
    -- The seconds that a row sums, from `at` on. 0: one recorder's part of a minute. Each of those
    -- is folded into a row of every other span.
    span          INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    queue         TEXT NOT NULL,
    topic         TEXT NOT NULL,
    -- Each recorder has rows of its own, which no other writes; zero once they are folded.
    recorder      BLOB NOT NULL,
    submitted     INTEGER NOT NULL,
    started       INTEGER NOT NULL,
    succeeded     INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL,
    cancelled     INTEGER NOT NULL,
    -- Histograms: how many waits and runs were in each bucket, and their sum in seconds.
    wait_seconds REAL NOT NULL,
    wait_0 INTEGER NOT NULL, wait_1 INTEGER NOT NULL, wait_2 INTEGER NOT NULL,
    wait_3 INTEGER NOT NULL, wait_4 INTEGER NOT NULL, wait_5 INTEGER NOT NULL,
    wait_6 INTEGER NOT NULL, wait_7 INTEGER NOT NULL, wait_8 INTEGER NOT NULL,
    wait_9 INTEGER NOT NULL, wait_10 INTEGER NOT NULL, wait_11 INTEGER NOT NULL,
    wait_12 INTEGER NOT NULL, wait_13 INTEGER NOT NULL, wait_14 INTEGER NOT NULL,
    wait_15 INTEGER NOT NULL, wait_16 INTEGER NOT NULL, wait_17 INTEGER NOT NULL,
    wait_18 INTEGER NOT NULL, wait_19 INTEGER NOT NULL, wait_20 INTEGER NOT NULL,
    wait_21 INTEGER NOT NULL, wait_22 INTEGER NOT NULL,
    run_seconds REAL NOT NULL,
    run_0 INTEGER NOT NULL, run_1 INTEGER NOT NULL, run_2 INTEGER NOT NULL,
    run_3 INTEGER NOT NULL, run_4 INTEGER NOT NULL, run_5 INTEGER NOT NULL,
    run_6 INTEGER NOT NULL, run_7 INTEGER NOT NULL, run_8 INTEGER NOT NULL,
    run_9 INTEGER NOT NULL, run_10 INTEGER NOT NULL, run_11 INTEGER NOT NULL,
    run_12 INTEGER NOT NULL, run_13 INTEGER NOT NULL, run_14 INTEGER NOT NULL,
    run_15 INTEGER NOT NULL, run_16 INTEGER NOT NULL, run_17 INTEGER NOT NULL,
    run_18 INTEGER NOT NULL, run_19 INTEGER NOT NULL, run_20 INTEGER NOT NULL,
    run_21 INTEGER NOT NULL, run_22 INTEGER NOT NULL,
    PRIMARY KEY (span, at, queue, topic, recorder)
) STRICT;

CREATE TABLE pulse_error_rollups (
    span          INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    queue         TEXT NOT NULL,
    topic         TEXT NOT NULL,
    -- The name of the exception's class.
    error         TEXT NOT NULL,
    recorder      BLOB NOT NULL,
    count         INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL,
    last_at       INTEGER NOT NULL,
    -- Of the last one, cut.
    message       TEXT NOT NULL,
    PRIMARY KEY (span, at, queue, topic, error, recorder)
) STRICT;
