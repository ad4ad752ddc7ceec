"""``pulsed stats``."""

from uuid import uuid4

import pytest

from pulsed.model.rollup import MINUTE, ErrorRollup, Histogram, Rollup, Stats, floor
from pulsed.store.blocking import run_blocking
from tests.support.backends import Backend
from tests.support.commands import lines_of, run

RUN = Histogram.of([1.5] * 100)


@pytest.fixture
def recorded(backend: Backend, live):
    now = run_blocking(live.now())
    at = floor(now, MINUTE)
    stats = Stats(submitted=1357, started=1234, succeeded=1200, dead_lettered=34, run=RUN)
    rollups = [Rollup(at, "mail", "send", stats), Rollup(at, "default", "other", Stats(started=1))]
    errors = [ErrorRollup(at, "mail", "send", "TimeoutError", 34, 34, now, "too\x1b[31m slow")]
    run_blocking(live.rollups.record(uuid4(), rollups, errors))


def test_a_table_of_queues_topics_and_errors(url, recorded):
    shown = run("stats", "--format", "table", PULSED_URL=url, COLUMNS="120").stdout
    assert "ENQUEUED" in shown
    assert "1,357" in shown
    assert "1,234" in shown
    assert "TimeoutError" in shown
    assert "\x1b[31m" not in shown


def test_json_has_quantiles(url, recorded):
    [found] = lines_of(run("stats", "--json", "--queue", "mail", PULSED_URL=url))
    assert (found["topic"], found["started"], found["dead_lettered"]) == ("send", 1234, 34)
    assert found["run_p50"] == pytest.approx(1.75)
    assert found["wait_p50"] is None


def test_nothing_in_that_time(url, live):
    assert "no run began or ended" in run("stats", "--format", "table", PULSED_URL=url).stderr
