"""``pulsed jobs prune``, ``--keep`` and the doctor's check of the history."""

import json
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from pulsed import Retention
from pulsed.cli.options import keep as keep_module
from pulsed.cli.options.keep import changed, keep
from pulsed.model.job import Status
from pulsed.model.outcome import Cancelled, Succeeded
from pulsed.store.blocking import run_blocking
from tests.support.backends import Backend
from tests.support.commands import Command, a_dead_job, lines_of, present, run
from tests.support.jobs import EVERYTHING, running, settle

DAY = 86_400.0

APP = """
from datetime import timedelta
from pulsed import Pulse, Retention

app = Pulse(retention=Retention(succeeded=timedelta(hours=1), cancelled=timedelta(days=30)))
hoarder = Pulse(retention=Retention.forever())

@app.job
def nothing() -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pruned_shop.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pruned_shop", raising=False)
    return tmp_path


def a_finished_job(store: Any, outcome: Any) -> None:
    assignment = run_blocking(running(store))
    assert run_blocking(settle(store, assignment, outcome))


@pytest.fixture
def history(live, backend: Backend) -> None:
    """Two successes, a cancelled job and a dead letter, all of two hours ago."""
    for outcome in (Succeeded(), Succeeded(), Cancelled("x")):
        a_finished_job(live, outcome)
    a_dead_job(live)
    earlier = {"sqlite": "7200000000", "postgres": "interval '2 hours'"}[backend.engine]
    backend.execute(f"UPDATE pulse_jobs SET completed_at = completed_at - {earlier}")


def left(store: Any) -> dict[str, int]:
    counted = run_blocking(store.counts(EVERYTHING))
    return {status.value: number for status, number in counted.items() if number}


EVERYTHING_LEFT = {"SUCCEEDED": 2, "CANCELLED": 1, "DEAD_LETTERED": 1}


@pytest.mark.usefixtures("history")
class TestPrune:
    def test_an_age_removes_what_ended_well_or_was_cancelled(self, url, live):
        result = run("jobs", "prune", "--older-than", "1h", "--yes", PULSED_URL=url)
        assert lines_of(result) == [{"SUCCEEDED": 2, "CANCELLED": 1}]
        assert "remove 3 jobs (2 SUCCEEDED, 1 CANCELLED)" in result.stderr
        assert "removed 3 jobs" in result.stderr
        assert left(live) == {"DEAD_LETTERED": 1}

    def test_dead_letters_have_to_be_named(self, url, live):
        args = ("--older-than", "1h", "--status", "dead", "--yes")
        assert lines_of(run("jobs", "prune", *args, PULSED_URL=url)) == [{"DEAD_LETTERED": 1}]
        assert left(live) == {"SUCCEEDED": 2, "CANCELLED": 1}

    def test_a_dry_run_only_counts(self, url, live):
        args = ("--older-than", "1h", "--status", "succeeded,dead", "--dry-run")
        result = run("jobs", "prune", *args, PULSED_URL=url)
        assert lines_of(result) == [{"SUCCEEDED": 2, "DEAD_LETTERED": 1}]
        assert "3 jobs would be removed" in result.stderr
        assert left(live) == EVERYTHING_LEFT

    def test_an_interrupted_one_says_how_far_it_came(self, url, live, monkeypatch):
        monkeypatch.setattr("pulsed.engine.upkeep.pruner.BATCH", 1)

        async def interrupted(_: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("pulsed.engine.upkeep.pruner.pause", interrupted)
        result = run("jobs", "prune", "--older-than", "1h", "--yes", PULSED_URL=url)
        assert result.exit_code != 0
        assert "interrupted: 1 job removed so far" in result.stderr
        assert sum(left(live).values()) == 3

    def test_younger_jobs_stay(self, url, live):
        result = run("jobs", "prune", "--older-than", "3h", PULSED_URL=url)
        assert lines_of(result) == [{"SUCCEEDED": 0, "CANCELLED": 0}]
        assert "no job ended so long ago" in result.stderr
        assert left(live) == EVERYTHING_LEFT

    def test_without_a_terminal_to_ask_on_it_needs_yes(self, url, live):
        result = run("jobs", "prune", "--older-than", "1h", PULSED_URL=url)
        assert result.exit_code == 2
        assert "add --yes" in result.stderr
        assert left(live) == EVERYTHING_LEFT

    def test_without_an_age_the_app_decides(self, url, live, shop):
        app = ("--app", "pruned_shop:app", "--url", url, "--yes")
        assert lines_of(run("jobs", "prune", *app)) == [{"SUCCEEDED": 2, "CANCELLED": 0}]
        assert left(live) == {"CANCELLED": 1, "DEAD_LETTERED": 1}

    @pytest.mark.parametrize(
        "args, said",
        [
            ([], "how old? Give --older-than, or --app"),
            (["--older-than", "soon"], "no duration"),
            (["--older-than", "1h", "--status", "pending"], "have not ended"),
            (["--app", "pruned_shop:hoarder"], "keeps everything forever; give --older-than"),
            (["--app", "pruned_shop:app", "--status", "dead"], "give --older-than"),
        ],
    )
    def test_what_cannot_be_meant_is_a_usage_error(self, url, live, shop, args, said):
        result = run("jobs", "prune", *args, "--yes", "--url", url)
        assert result.exit_code == 2, result.output
        assert said in result.stderr
        assert left(live) == EVERYTHING_LEFT

    def test_a_person_gets_a_table(self, url, live, monkeypatch):
        # Or it would take the next line's for its own, for good.
        import_module("pulsed.cli.commands.jobs")
        monkeypatch.setattr("pulsed.cli.view.output.for_people", lambda **_: True)
        result = run("jobs", "prune", "--older-than", "1h", "--dry-run", PULSED_URL=url)
        assert [line.split() for line in result.stdout.splitlines()] == [
            ["STATUS", "JOBS"],
            ["SUCCEEDED", "2"],
            ["CANCELLED", "1"],
        ]


class TestKeep:
    @pytest.mark.parametrize(
        "text, kept",
        [
            ("7d", {"succeeded": 7 * DAY, "cancelled": 7 * DAY}),
            ("forever", {"succeeded": None, "cancelled": None}),
            ("dead=90d", {"dead_lettered": 90 * DAY}),
            ("1d, dead=forever", {"succeeded": DAY, "cancelled": DAY, "dead_lettered": None}),
            ("12h,succ=1d", {"succeeded": DAY, "cancelled": 43_200.0}),
        ],
    )
    def test_how_it_is_written(self, text, kept):
        assert keep(text) == kept
        assert keep(kept) == kept

    @pytest.mark.parametrize(
        "text", ["", "soon", "-1d", "10s", "pending=1d", "x=1d", "dead=", "1d,", "nan", "1e12"]
    )
    def test_what_is_refused(self, text):
        with pytest.raises(click.BadParameter):
            keep(text)

    def test_what_it_does_not_mention_stays_as_the_app_says(self):
        policy = Retention(succeeded=60, dead_lettered=90)
        assert changed(policy, {"cancelled": None}) == Retention(
            succeeded=60, cancelled=None, dead_lettered=90
        )
        assert changed(policy, None) == policy

    @pytest.mark.parametrize("processes", ["1", "2"])
    @pytest.mark.parametrize("how", ["option", "environment"])
    def test_a_worker_hears_of_it(self, url, shop, how, processes):
        """Seen by what is refused: the value arrives where it is checked, whichever way it came."""
        args = ["--keep", "5s"] if how == "option" else []
        environment = {} if how == "option" else {keep_module.KEEP_VARIABLE: "5s"}
        result = run("worker", "pruned_shop:app", "--processes", processes, *args, **environment)
        assert result.exit_code == 2
        assert "keep finished jobs: succeeded must be between 60" in result.stderr

    def test_the_processes_of_a_supervisor_hear_of_it(self, shop, tmp_path):
        (tmp_path / "told_shop.py").write_text(
            APP.replace("hoarder", "other")
            + "import sys\nprint(sys.argv[1:], file=sys.stderr, flush=True)\n"
        )
        url = f"sqlite:///{tmp_path}/told.db"
        told = ("worker", "told_shop:app", "--processes", "2", "--keep", "1d,dead=90d")
        with Command(tmp_path, *told, "--url", url) as supervisor:
            supervisor.said("'--keep', '1d,dead=90d'")
            supervisor.said("started: queues", 2)
            supervisor.signal(signal.SIGTERM)
            assert supervisor.ended() == 0


@pytest.mark.usefixtures("history")
class TestDoctor:
    def history_of(self, url: str, app: str) -> dict[str, Any]:
        result = run("doctor", "--json", "--url", url, "--app", app)
        found = {each["check"]: each for each in map(json.loads, result.stdout.splitlines())}
        history: dict[str, Any] = found["history"]
        return history

    def test_all_is_well_while_workers_may_be_catching_up(self, url, live, shop):
        assert self.history_of(url, "pruned_shop:app")["level"] == "ok"

    def test_what_should_be_gone_for_long_is_a_warning(self, url, live, backend, shop):
        present(live)
        earlier = {"sqlite": "86400000000", "postgres": "interval '1 day'"}[backend.engine]
        backend.execute(f"UPDATE pulse_jobs SET completed_at = completed_at - {earlier}")
        found = self.history_of(url, "pruned_shop:app")
        assert found["level"] == "warn"
        assert found["detail"].startswith("2 finished jobs should have been removed long ago")
        assert "pulsed jobs prune" in found["advice"]

    def test_retention_that_is_off_is_mentioned(self, url, live, shop):
        found = self.history_of(url, "pruned_shop:hoarder")
        assert (found["level"], found["detail"][:16]) == ("ok", "retention is off")

    def test_without_an_app_nobody_knows(self, url, live):
        assert "history" not in run("doctor", "--json", PULSED_URL=url).stdout


def test_statuses_are_those_of_the_policy():
    fields = set(Retention.__struct_fields__)
    assert set(keep("7d,dead=7d,stats=90d")) == fields
    statuses = {Status(name.upper()) for name in fields - {"stats"}}
    assert statuses == set(Retention(dead_lettered=60).ages)


def test_statistics_are_kept_for_a_day_at_least():
    assert keep("stats=90d") == {"stats": 90 * 86_400}
    assert keep("stats=forever") == {"stats": None}
    with pytest.raises(click.BadParameter, match="How long to keep statistics"):
        keep("stats=1h")
