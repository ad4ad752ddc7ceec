"""What comes from elsewhere is shown: a terminal does not obey it, and it forges no line."""

from __future__ import annotations

import io
import logging
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace
from rich.text import Text
from rich.tree import Tree

from pulsed.cli.logs import Lines
from pulsed.cli.view.output import Table, console
from pulsed.model.job import WorkerInfo
from pulsed.model.step import StepKind
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from tests.support.checkpoints import a_step, recorded
from tests.support.commands import CONTROLS, run
from tests.support.jobs import running

EVIL = f"a{CONTROLS}b\r\nFORGED\tx\x0bz"


def drawn(*renderables: object) -> str:
    file = io.StringIO()
    screen = console(file)
    for each in renderables:
        screen.print(each)
    return file.getvalue()


def is_harmless(shown: str, *, lines: int | None = None) -> bool:
    forged = [line for line in shown.splitlines() if line.strip().startswith("FORGED")]
    as_many = lines is None or len(shown.splitlines()) == lines
    return not forged and as_many and not any(character in shown for character in CONTROLS)


@pytest.mark.parametrize("text", [EVIL, Text(EVIL, style="red")], ids=["plain", "with a colour"])
def test_nothing_that_is_drawn_controls_a_terminal(text):
    shown = drawn(text, Text.assemble("x ", (EVIL, "bold")))
    assert not any(character in shown for character in CONTROLS)
    tree = Tree(Text(EVIL))
    tree.add(Text(EVIL))
    assert not any(character in drawn(tree) for character in CONTROLS)


def test_a_cell_is_one_line_whatever_is_in_it():
    table = Table("A", "B", flexible={})
    table.add(EVIL, Text(EVIL, style="red"), below=Text(EVIL))
    file = io.StringIO()
    table.show(console(file))
    assert is_harmless(file.getvalue(), lines=3)


def a_worker(**given) -> WorkerInfo:
    plain = WorkerInfo(id=uuid4(), host="h", pid=1, queues=("q",), topics=("t",), slots=1)
    return replace(plain, **given)


class TestCommands:
    @pytest.fixture
    def people(self, monkeypatch):
        for module in ("jobs", "workers"):
            monkeypatch.setattr(f"pulsed.cli.commands.{module}.for_people", lambda **_: True)

    @pytest.mark.usefixtures("people")
    @pytest.mark.parametrize("field", ["host", "state", "version"])
    def test_a_worker_is_one_row(self, near_url, near, field):
        run_blocking(near.announce(a_worker(**{field: EVIL})))
        shown = run("workers", PULSED_URL=near_url).stdout
        assert is_harmless(shown, lines=2)

    @pytest.mark.usefixtures("people")
    def test_headers_and_checkpoints_are_fields_of_one_line(self, near_url, near):
        async def make() -> UUID:
            headers = {"trace": EVIL, EVIL.replace("\r\n", "\n"): "x"}
            job = await running(near, headers=headers)
            version = a_step(name="v", kind=StepKind.VERSION, value='"x\\u001b[2J"')
            assert await recorded(near, job, version)
            return job.job_id

        shown = run("jobs", "show", str(run_blocking(make())), PULSED_URL=near_url).stdout
        assert "FORGED" in shown
        assert is_harmless(shown)


def test_a_log_line_is_one_record():
    record = logging.LogRecord("x", logging.INFO, "f", 1, "host %s", (EVIL,), None)
    first, *others = Lines().format(record).splitlines()
    assert "host a" in first
    assert others
    assert all(line.startswith("    ") for line in others)


def test_a_suggestion_quotes_its_arguments(near_url, near, monkeypatch):
    from tests.test_cli_workflows import a_waiter  # noqa: PLC0415 - what makes a job that waits

    monkeypatch.setattr("pulsed.cli.commands.jobs.for_people", lambda **_: True)
    job_id = a_waiter(near, key="go; rm -rf ~")
    shown = run("jobs", "show", str(job_id), PULSED_URL=near_url, COLUMNS="200").stdout
    assert f"pulsed jobs signal {job_id} 'go; rm -rf ~' JSON" in shown


@pytest.fixture
def near(database):
    return SqliteStore(database)


@pytest.fixture
def near_url(database):
    return f"sqlite:///{database}"
