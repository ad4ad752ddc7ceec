"""The adapter for the public long-horizon benchmark: settings, percentiles, and its protocol."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psycopg

from benchmarks.long_horizon.adapter import MANIFEST
from benchmarks.long_horizon.latencies import RecentLatencies
from benchmarks.long_horizon.settings import Settings
from pulsed import Pulse

ROOT = Path(__file__).resolve().parent.parent
METRICS = [
    "claim_p50_ms",
    "claim_p95_ms",
    "claim_p99_ms",
    "enqueue_rate",
    "completion_rate",
    "queue_depth",
]


def test_settings_come_from_the_harness_and_have_its_defaults():
    url = "postgres://bench:bench@localhost/pulsed_bench"
    plain = Settings.from_environment({"DATABASE_URL": url})
    assert plain == Settings(url=url.replace("postgres:", "postgresql:"))
    given = {"DATABASE_URL": url, "PRODUCER_BATCH_MS": "10", "WORKER_COUNT": "8"}
    own = Settings.from_environment(given)
    assert (own.pause, own.workers) == (0.01, 8)


def test_percentiles_are_those_of_the_window_within_half_a_percent():
    latencies = RecentLatencies(seconds=30)
    assert latencies.percentiles(50, 99, now=0.0) == [0.0, 0.0]
    latencies.add(60_000.0, now=1.0)  # has left the window by then
    numbers = list(range(1, 1_001))
    random.Random(1).shuffle(numbers)
    for place, number in enumerate(numbers):
        latencies.add(number / 10, now=40 + place / 50)
    p50, p99 = latencies.percentiles(50, 99, now=60.0)
    assert abs(p50 / 50.0 - 1) < 0.01
    assert abs(p99 / 99.0 - 1) < 0.01
    assert latencies.percentiles(50, now=200.0) == [0.0]


def test_the_adapter_describes_itself_samples_and_ends_when_told(postgres_url):
    asked = {"PRODUCER_RATE": "200", "SAMPLE_EVERY_S": "0.5", "WORKER_COUNT": "8"}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.long_horizon"],
        cwd=ROOT,
        env=os.environ | asked | {"DATABASE_URL": postgres_url},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        descriptor = json.loads(process.stdout.readline())
        samples: list[dict[str, object]] = []
        while not any(_is_completion(each) for each in samples):
            tick = [json.loads(process.stdout.readline()) for _ in METRICS]
            assert [each["metric"] for each in tick] == METRICS
            samples += tick
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert descriptor["kind"] == "descriptor"
    assert descriptor["event_tables"] == MANIFEST["event_tables"]
    assert {each["system"] for each in samples} == {"pulsed"}


def _is_completion(sample: dict[str, object]) -> bool:
    return sample["metric"] == "completion_rate" and sample["value"] != 0


def test_the_manifest_names_tables_and_indexes_that_exist(postgres_url):
    with Pulse(postgres_url) as app:
        app.jobs.counts()
    with psycopg.connect(postgres_url) as session:
        for name in (*MANIFEST["event_tables"], *MANIFEST["event_indexes"]):
            assert session.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,)
