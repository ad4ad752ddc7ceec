"""``pulsed jobs watch``: one job, followed to its end."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import Result

from pulsed.cli.commands import watch
from pulsed.model.job import Assignment
from pulsed.model.outcome import Failed, Succeeded
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.commands import CONTROLS, a_dead_job, a_waiting_job, run
from tests.support.jobs import claim_one, settle
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.terminals import CONTROL_C, ENTER, PROMPT, Terminal

HIDDEN_CURSOR, CURSOR = "\x1b[?25l", "\x1b[?25h"

Act = Callable[[], Any]


class Story:
    """What happens to a job while it is watched: the next act at each pause between two reads."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.job_id = a_waiting_job(store, max_attempts=3)
        self._acts: list[Act] = []
        self._run: Assignment | None = None
        monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=self._go_on))

    def then(self, *acts: Act) -> None:
        self._acts += acts

    def _go_on(self, _: float) -> None:
        self._acts.pop(0)()

    def claim(self) -> None:
        self._run = run_blocking(claim_one(self.store))

    def progress(self, text: str) -> Act:
        return lambda: run_blocking(self.store.set_progress(self._assignment.lease, text))

    def end(self, outcome: Any) -> Act:
        return lambda: run_blocking(settle(self.store, self._assignment, outcome))

    @property
    def _assignment(self) -> Assignment:
        assert self._run is not None
        return self._run

    def watched(self, url: str, *args: str) -> Result:
        return run("jobs", "watch", str(self.job_id), *args, PULSED_URL=url, COLUMNS="80")


@pytest.fixture
def story(live: Store, monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(live, monkeypatch)


def lines(result: Result) -> list[Any]:
    return [msgspec.json.decode(line) for line in result.stdout.splitlines()]


def test_each_change_is_a_line_of_json(url, story: Story):
    story.then(
        lambda: None,  # no change, no line
        story.claim,
        story.progress('{"done": 4, "total": 10, "note": "page 4"}'),
        story.progress('"almost"'),
        story.end(Succeeded('{"pages": 12345678901234567890}')),
    )
    result = story.watched(url)
    assert result.exit_code == 0
    seen = lines(result)
    assert [line["status"] for line in seen] == ["PENDING", *["RUNNING"] * 3, "SUCCEEDED"]
    assert [line["share"] for line in seen] == [None, None, 0.4, None, None]
    assert [line["note"] for line in seen[:4]] == [None, None, "page 4", "almost"]
    assert "no worker is alive" in seen[0]["hints"][0]
    assert seen[-1]["result"] == {"pages": 12345678901234567890}


def test_each_change_is_a_line_of_text_where_there_is_no_terminal(url, story: Story):
    story.then(
        story.claim,
        story.progress(json.dumps({"percent": 40, "note": f"page{CONTROLS}"})),
        story.end(Failed("boom\nmore", "Traceback", final=True)),
    )
    result = story.watched(url, "--format", "table")
    assert result.exit_code == 7
    text = result.stdout
    assert "PENDING  no worker is alive" in text.replace("\n  ", " ")
    assert "RUNNING  attempt 1 of 3  40%  page" in text
    assert "DEAD  attempt 1 of 3, after" in text
    assert ": boom" in text
    assert "more" not in text
    assert not set(text) & set(CONTROLS)


def test_a_retry_says_when_it_is_due(url, story: Story):
    story.then(
        story.claim,
        story.end(Failed("boom", "Traceback", final=False)),
        lambda: run_blocking(story.store.cancel([story.job_id])),
    )
    result = story.watched(url, "--format", "table")
    assert result.exit_code == 7
    text = result.stdout.replace("\n  ", " ")
    assert "RETRYING  attempt 1 of 3 failed: boom; the next is due in" in text
    assert "CANCELLED" in text


def test_a_job_that_has_ended_is_shown_once(url, live: Store):
    result = run("jobs", "watch", str(a_dead_job(live)), PULSED_URL=url)
    assert result.exit_code == 7
    assert [line["error"] for line in lines(result)] == ["boom"]


def test_a_job_that_does_not_exist(url, live: Store):
    missing = "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"
    assert run("jobs", "watch", missing, PULSED_URL=url).exit_code == 3


def test_a_database_that_goes_away_and_returns(
    postgres_server: ScratchPostgres, monkeypatch: pytest.MonkeyPatch
):
    store = PostgresStore(postgres_server.url, PostgresOptions(**AT_ONCE_OPTIONS))
    run_blocking(store.now())
    story = Story(store, monkeypatch)
    story.then(
        postgres_server.kill,
        lambda: None,
        postgres_server.start,
        story.claim,
        story.end(Succeeded("1")),
    )
    result = story.watched(postgres_server.url, "--format", "table")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Retrying.") == 1
    assert "SUCCEEDED" in result.stdout
    run_blocking(store.aclose())


def test_a_bar_on_a_terminal(tmp_path: Path):
    store = SqliteStore(tmp_path / "jobs.db")
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    job_id = a_waiting_job(store)
    with Terminal(tmp_path, PULSED_URL=url) as terminal:
        terminal.type(f"pulsed jobs watch {job_id} --interval 0.05{ENTER}")
        terminal.wait(lambda: "no worker is alive" in terminal.text)
        assignment = run_blocking(claim_one(store))
        terminal.wait(lambda: "RUNNING  attempt 1" in terminal.text)
        assert "%" not in terminal.text  # the end is not known: no bar
        text = '{"done": 4, "total": 10, "note": "page 4"}'
        run_blocking(store.set_progress(assignment.lease, text))
        terminal.wait(lambda: "━  40% " in terminal.text and "page 4" in terminal.text)
        terminal.type(CONTROL_C)
        terminal.wait(lambda: terminal.is_ready)
        assert "interrupted" in terminal.text
        assert_cursor_is_shown(terminal)
        terminal.type(f"pulsed jobs watch {job_id} --interval 0.05 || echo failed{ENTER}")
        terminal.wait(lambda: "40%" in terminal.text)
        run_blocking(settle(store, assignment, Succeeded("1")))
        terminal.wait(lambda: terminal.text.endswith(PROMPT) and "SUCCEEDED" in terminal.text)
        assert "\nfailed" not in terminal.text
        assert_cursor_is_shown(terminal)
    run_blocking(store.aclose())


def assert_cursor_is_shown(terminal: Terminal) -> None:
    assert terminal.raw.rindex(CURSOR) > terminal.raw.rindex(HIDDEN_CURSOR)
