"""The garbage collector of a worker's process: rarer collections, unless the app has its own."""

import gc
from pathlib import Path

import pytest

from pulsed.engine.process import collector
from tests.support.commands import Command

APP = """
import gc
from pulsed import Pulse

app = Pulse()
{own}

@app.job
def threshold() -> list[int]:
    return [gc.get_threshold()[0], gc.get_freeze_count()]
"""


@pytest.mark.parametrize("own, young", [("", collector.YOUNG), ("gc.set_threshold(1234)", 1234)])
def test_a_worker_collects_less_often_than_python_unless_its_app_decides(
    tmp_path: Path, app, own, young
):
    (tmp_path / "shop.py").write_text(APP.format(own=own))
    job = app.enqueue("threshold")
    with Command(tmp_path, "worker", "shop:app", "--poll", "50ms", PULSED_URL=app.url):
        found, frozen = job.result(60)
    assert found == young
    assert frozen > 1000, "modules and classes are left out"


@pytest.mark.parametrize("default, set_to", [(700, collector.YOUNG), (50_000, 50_000)])
def test_a_larger_threshold_stays(monkeypatch, default, set_to):
    made: list[tuple[int, ...]] = []
    monkeypatch.setattr(collector, "_AT_START", (default, 10, 7))
    monkeypatch.setattr(gc, "get_threshold", lambda: (default, 10, 7))
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: made.append(numbers))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    collector.collect_less_often()
    assert made == [(set_to, 10, 7)]
