"""The examples that need no process of their own, and those in examples/README.md."""

import re
from pathlib import Path

import pytest

from examples import agent, nightly_report
from pulsed import testing
from tests.support.programs import ROOT, python

LIST = (ROOT / "examples" / "README.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(agent, "calls", [])
    monkeypatch.setattr(agent, "payments", {})


def test_a_crawl_visits_each_page_and_spares_the_sites(tmp_path: Path):
    said = python("examples/crawl.py", TMPDIR=str(tmp_path)).stdout
    assert said.endswith("site b: 15 pages, 16 requests, at most 2 at a time\n")
    assert said in LIST
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_written_for_each_night(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nightly_report, "FOLDER", tmp_path)
    assert nightly_report.main() == 0
    assert capsys.readouterr().out.replace("\r", "") in LIST
    assert len(list(tmp_path.iterdir())) == 3


class TestAgent:
    def test_no_answer_is_asked_for_twice_though_the_worker_crashes(self, capsys):
        assert agent.main() == 0
        assert capsys.readouterr().out in LIST
        assert list(agent.payments.values()) == [4900]

    def test_a_step_that_ran_twice_pays_once(self):
        with testing.override(agent.app) as sandbox:
            job = agent.agent.enqueue("The lamp of ada arrived broken. Help her.")
            job.signal("approval", True)
            sandbox.drain(crash="before_every_checkpoint")
            assert "on their way" in job.result()
        assert agent.calls.count("refund") == 2
        assert list(agent.payments.values()) == [4900]

    @pytest.mark.parametrize("answer", [False, None], ids=["refused", "nobody answered"])
    def test_without_an_approval_no_money_is_sent(self, answer):
        with testing.override(agent.app) as sandbox:
            job = agent.agent.enqueue("The lamp of ada arrived broken. Help her.")
            if answer is not None:
                job.signal("approval", answer)
            sandbox.drain(until="2 days")
            assert "refused by a person" in job.result()
        assert agent.payments == {}


def test_the_list_has_every_example_and_each_command_is_there():
    named = set(re.findall(r"examples/([\w/]+(?:\.py)?)", LIST))
    programs = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert {name for name in programs if not name.endswith("_jobs.py")} <= named
    assert all((ROOT / "examples" / name).exists() for name in named)
    for page in (ROOT / "examples").glob("*/README.md"):
        assert f"({page.parent.name}/README.md)" in LIST
