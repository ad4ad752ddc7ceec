"""``pulsed worker`` and ``pulsed dev`` as processes: signals, exit codes, logs, reloading."""

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from pulsed import Status
from pulsed.cli.commands.worker import worker
from pulsed.cli.logs import JsonLines, Lines
from pulsed.cli.options.working import queues
from pulsed.cli.reloading import SourceWatch, sources_under
from pulsed.cli.view.times import past, relative
from pulsed.engine.process.stop_signals import ECHO
from pulsed.engine.worker.options import WorkerOptions, WorkerSettings
from pulsed.store.blocking import run_blocking
from pulsed.wording import parse_duration
from tests.support.commands import CONTROLS, Command, run, supervised_commands, until
from tests.support.jobs import a_job

APP = """
import asyncio, logging, pathlib, time
from pulsed import Pulse

app = Pulse()
here = pathlib.Path(__file__).parent
log = logging.getLogger("shop")

@app.job
async def wait() -> str:
    log.info("waiting")
    (here / "started").touch()
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    return "gone"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def started(folder: Path) -> None:
    until((folder / "started").exists)


class TestSignals:
    def test_sigterm_drains_and_exits_with_0(self, folder, app):
        job = app.enqueue("wait")
        with Command(folder, "worker", "shop:app", "--poll", "50ms", PULSED_URL=app.url) as worker:
            started(folder)
            worker.signal(signal.SIGTERM)
            worker.said("draining 1 running job")
            (folder / "go").touch()
            assert worker.ended() == 0
        assert job.result(60) == "gone"

    def test_an_operator_drains_it_from_afar_and_its_parent_starts_no_other(self, folder, app):
        options = ("--processes", "2", "--poll", "50ms", "--tick", "100ms")
        with Command(folder, "worker", "shop:app", *options, PULSED_URL=app.url) as parent:
            until(lambda: len(app.workers.list()) == 2)
            one, other = app.workers.list()
            app.workers.drain(one.id)
            parent.said("was asked to end; starting no other")
            app.workers.stop(other.id)
            assert parent.ended() == 0
        assert app.workers.list() == []

    def test_the_second_sigterm_hands_the_job_back_and_exits_with_130(self, folder, app):
        job = app.enqueue("wait")
        with Command(folder, "worker", "shop:app", "--poll", "50ms", PULSED_URL=app.url) as worker:
            started(folder)
            worker.signal(signal.SIGTERM)
            worker.said("draining 1 running job")
            time.sleep(ECHO)  # sooner it would be taken for the first one
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 130
        assert job.refresh().status is Status.PENDING
        assert job.attempts == 0


ONE_STORE = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
"""For what a command does with its streams, whatever the store."""


class TestLogs:
    @ONE_STORE
    def test_json_records_carry_the_job(self, folder, app):
        job = app.enqueue("wait")
        (folder / "go").touch()
        with Command(folder, "worker", "shop:app", "--log-format=json", "--url", app.url) as worker:
            worker.said("waiting")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
            records = [json.loads(line) for line in worker.log.splitlines()]
        (record,) = [record for record in records if record["message"] == "waiting"]
        assert record["job_id"] == str(job.id)
        assert (record["topic"], record["attempt"]) == ("wait", 1)
        assert record["level"] == "info"

    @pytest.fixture
    def record(self) -> logging.LogRecord:
        error = ValueError(f"bad {CONTROLS}")
        given = (f"failed: {CONTROLS}", None, (ValueError, error, None))
        return logging.LogRecord("shop", logging.ERROR, __file__, 1, *given)

    def test_text_has_nothing_that_a_terminal_would_obey(self, record, monkeypatch):
        text = Lines().format(record)
        assert "ValueError: bad" in text
        assert not set(text) & set(CONTROLS)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert "\x1b[31mERROR" in Lines().format(record)

    def test_nor_has_json(self, record):
        text = JsonLines().format(record)
        assert not set(text) & set(CONTROLS)
        assert json.loads(text)["message"] == f"failed: {CONTROLS}"


class TestDev:
    def test_a_change_starts_it_afresh_and_a_broken_one_is_waited_out(self, folder):
        with Command(folder, "dev", "shop:app", "--reload", DATABASE_URL="sqlite:///dev.db") as dev:
            dev.said("slots; topics wait")
            source = folder / "shop.py"
            rewrite(source, APP + "\nthis is no Python\n")
            dev.said("changed: shop.py; restarting")
            dev.said("waiting for a change…")
            assert "this is no Python" in dev.log
            rewrite(source, APP + "\n@app.job\ndef more() -> None: ...\n")
            dev.said("slots; topics wait, more")
            dev.signal(signal.SIGINT)
            assert dev.ended() == 0


def rewrite(path: Path, text: str) -> None:
    """Change a file as an editor does, at a time of its own however coarse the clock is."""
    before = path.stat().st_mtime_ns
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text)
    os.utime(fresh, ns=(before + 10**9, before + 10**9))
    fresh.replace(path)


class TestSourceWatch:
    def test_a_change_is_told_once_it_has_settled(self, tmp_path):
        source = tmp_path / "a.py"
        source.write_text("1")
        watch = SourceWatch(lambda: [source])
        assert watch.tick() == set()
        os.utime(source, ns=(1, 1))
        assert watch.tick() == set()
        os.utime(source, ns=(2, 2))
        assert watch.tick() == set()
        assert watch.tick() == {source}
        assert watch.tick() == set()

    def test_a_file_that_was_removed_has_changed_and_a_new_one_has_not(self, tmp_path):
        one, two = tmp_path / "a.py", tmp_path / "b.py"
        one.write_text("1")
        files = [one]
        watch = SourceWatch(lambda: files)
        two.write_text("2")
        files.append(two)
        assert watch.tick() == watch.tick() == set()
        one.unlink()
        watch.tick()
        assert watch.tick() == {one}

    def test_sources_leave_out_what_is_not_the_users(self, tmp_path):
        for name in (
            "a.py",
            "pkg/b.py",
            ".venv/c.py",
            "venv/d.py",
            "pkg/__pycache__/e.py",
            "f.txt",
        ):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        assert {path.name for path in sources_under(tmp_path)} == {"a.py", "b.py"}


class TestOptions:
    @pytest.mark.parametrize(
        "text, expected",
        [
            ("default", ("default",)),
            ("a, b,a", ("a", "b")),
            ("mail=3,default=1", {"mail": 3.0, "default": 1.0}),
            ("mail=0.5", {"mail": 0.5}),
        ],
    )
    def test_queues(self, text, expected):
        assert queues(text) == expected

    @pytest.mark.parametrize("text", ["", ",", "a=1,b", "a=x", "a=1,a=2"])
    def test_what_is_no_list_of_queues(self, text):
        with pytest.raises(click.BadParameter):
            queues(text)

    def test_a_weight_of_nothing_is_refused(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        assert run("worker", "shop:app", "-q", "a=0", "--url", "sqlite://").exit_code == 2

    @pytest.mark.parametrize(
        "text, seconds",
        [
            ("90", 90),
            ("1.5", 1.5),
            ("30s", 30),
            ("1h30m", 5400),
            ("2 d", 172_800),
            ("50ms", 0.05),
            ("7 days", 604_800),
            ("1 hour 5 min", 3900),
        ],
    )
    def test_durations(self, text, seconds):
        assert parse_duration(text) == pytest.approx(seconds)

    @pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "nan", "inf", "h", "1 dayz"])
    def test_what_is_no_duration(self, text):
        assert parse_duration(text) is None

    def test_instants(self):
        assert past("2026-11-15T09:00:00+01:00") == datetime(2026, 11, 15, 8, tzinfo=UTC)
        assert abs(datetime.now(UTC) - timedelta(hours=2) - past("2h")) < timedelta(seconds=5)
        assert past("999999999d").year == 1

    def test_ages(self):
        now = datetime(2026, 11, 15, tzinfo=UTC)
        assert relative(now + timedelta(minutes=5), now) == "in 5 min"
        assert relative(now - timedelta(hours=3), now) == "3 h ago"


class TestSettings:
    def test_the_api_and_the_command_line_set_what_a_worker_has(self):
        has = {field.name for field in dataclasses.fields(WorkerOptions)}
        assert set(WorkerSettings.__annotations__) == has
        options = {param.name for param in worker.params}
        assert has - options == {"schedules", "stats", "retention", "retry_attempts"}
        assert {"no_schedules", "no_stats", "keep", "retry"} <= options  # which say the same

    def test_a_process_of_several_ignores_how_many_there_are(self, folder, monkeypatch):
        ran: list[Any] = []

        async def run_worker(_app: Any, working: Any, monitoring: Any, commands: Any) -> int:
            ran.append((working["concurrency"], str(monitoring.metrics)))
            os.close(commands)
            return 0

        (folder / "shop.py").rename(folder / "several_shop.py")
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr("pulsed.cli.commands.worker._run", run_worker)
        monkeypatch.setattr("pulsed.cli.commands.worker._own_stdin", lambda: os.open(".", 0))
        args = ("worker", "--supervised", "2", "several_shop:app", "-c", "7")
        more = ("--processes", "3", "--metrics", "127.0.0.1:9464")
        assert run(*args, *more, PULSED_URL="sqlite:///none.db").exit_code == 0
        assert ran == [(7, "127.0.0.1:9465")]  # the second of them: the next port


class TestPipes:
    @ONE_STORE
    def test_a_reader_that_goes_away_is_no_error(self, folder, app):
        run_blocking(app.store.submit([a_job(payload='{"text": "long"}') for _ in range(1000)]))
        # In development mode, every Python reports what it could not write at the end.
        python = [sys.executable, "-X", "dev"]
        command = [*python, "-m", "pulsed", "jobs", "list", "--url", app.url]
        process: Any = subprocess.Popen(
            [*command, "--limit", "2000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
        )
        process.stdout.readline()
        process.stdout.close()
        with process:
            assert process.stderr.read() == b""


class TestConnections:
    def test_a_worker_and_its_processes_are_bounded(self, folder, monkeypatch):
        bounds: list[int | None] = []

        async def run_worker(app: Any, *_: Any, **__: Any) -> Any:
            bounds.append(app.settings.max_connections)
            return 0

        (folder / "shop.py").rename(folder / "bounded_shop.py")
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr("pulsed.cli.commands.worker._run", run_worker)
        commands = supervised_commands(monkeypatch)
        args = ("worker", "bounded_shop:app", "--url", "postgresql://nowhere/none")
        assert run(*args, "--max-connections", "12").exit_code == 0
        assert run(*args, "--max-connections", "12", "--processes", "2").exit_code == 0
        assert run(*args, "--processes", "2").exit_code == 0
        assert bounds == [12]
        start = [sys.executable, "-m", "pulsed", "worker", "--supervised", "1", *args[1:]]
        assert commands == [
            [*start, "--max-connections", "12", "--processes", "2"],
            [*start, "--processes", "2"],
        ]
        assert run(*args, "--max-connections", "8").exit_code == 2

    def test_so_is_a_server(self, monkeypatch):
        bounds: list[int | None] = []

        async def serve(_url: str, settings: Any, *_: Any) -> int:
            bounds.append(settings.max_connections)
            return 0

        monkeypatch.setattr("pulsed.cli.commands.server._serve", serve)
        args = ("server", "--url", "postgresql://nowhere/none")
        assert run(*args, "--max-connections", "12").exit_code == 0
        assert bounds == [12]
