"""Acts by filter on the command line, what became of them, and jobs that are edited or counted."""

import json
import subprocess
import sys

import pytest

from pulsed.model.audit import Operator
from pulsed.model.bulk import CANCEL, BulkState
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Failed
from pulsed.store.blocking import run_blocking
from tests.support.commands import run
from tests.support.jobs import TOPIC, a_job, running, settle, submitted
from tests.support.programs import ROOT

PENDING = JobFilter(status=(Status.PENDING,), topic=TOPIC)


@pytest.fixture
def live(backend):
    """A store on the real clock, as commands have it."""
    store = backend.open(own_clock=False)
    yield store
    run_blocking(store.aclose())


def pending(live, count=3, **options):
    jobs = [a_job(**options) for _ in range(count)]
    run_blocking(live.submit(jobs))
    return [job.id for job in jobs]


def dead(live, error="broken", **options):
    claimed = run_blocking(running(live, max_attempts=1, **options))
    run_blocking(settle(live, claimed, Failed(error, final=True)))
    return claimed.job_id


def row_of(live, job_id):
    return run_blocking(live.get([job_id]))[job_id]


class TestActs:
    def test_an_act_by_filter_is_an_operation(self, url, live):
        pending(live)
        result = run("jobs", "cancel", "--topic", TOPIC, "--yes", PULSED_URL=url)
        assert (result.exit_code, "cancelled 3 jobs" in result.stderr) == (0, True)
        [row] = run_blocking(live.bulk.list(limit=5))
        assert (result.stdout.strip(), row.state, row.done) == (str(row.id), BulkState.DONE, 3)

    def test_detached_it_is_left_to_workers(self, url, live):
        [job_id] = pending(live, 1)
        args = ("jobs", "cancel", "--topic", TOPIC, "--yes", "--detach")
        result = run(*args, PULSED_URL=url)
        assert "workers do it" in result.stderr
        assert row_of(live, job_id).status is Status.PENDING
        assert run_blocking(live.bulk.list(limit=5))[0].state is BulkState.RUNNING

    def test_jobs_get_another_time_priority_and_queue(self, url, live):
        first, second = pending(live, 2, delay=3600)
        for args in (
            ("reprioritise", "--to", "7", str(first)),
            ("move", "--to", "mail", str(first)[:18]),
            ("reprioritise", "--to", "8", "--queue", "default", "--yes"),
            ("reschedule", "--delay", "2h", "--queue", "mail", "--yes"),
        ):
            result = run("jobs", *args, PULSED_URL=url)
            assert result.exit_code == 0, result.stderr
        changed = row_of(live, first)
        assert (changed.priority, changed.queue) == (7, "mail")
        assert row_of(live, second).priority == 8
        assert changed.next_run_at > row_of(live, second).next_run_at
        result = run("jobs", "reschedule", "--now", str(first), PULSED_URL=url)
        assert "made due 1 job" in result.stderr

    def test_a_time_has_to_be_given_once(self, url, live):
        for args in ([], ["--now", "--delay", "1h"]):
            result = run("jobs", "reschedule", "--topic", "x", *args, PULSED_URL=url)
            assert (result.exit_code, "when?" in result.stderr) == (2, True)

    def test_a_retry_names_the_holders_of_keys(self, url, live):
        job_id = dead(live, key="k")
        holder = run_blocking(submitted(live, key="k"))
        result = run("jobs", "retry", str(job_id), PULSED_URL=url)
        assert (result.exit_code, f"job {holder} of" in result.stderr) == (1, True)
        result = run("jobs", "retry", "--status", "dead", "--yes", PULSED_URL=url)
        assert "retried 0 jobs, 1 skipped" in result.stderr
        assert f"job {job_id} was left as it is: job {holder} holds its key" in result.stderr
        bulk_id = result.stdout.strip()
        shown = json.loads(run("bulk", "show", bulk_id[:13], PULSED_URL=url).stdout)
        assert shown["skips"] == [
            {"job_id": str(job_id), "status": "DEAD_LETTERED", "reason": "KEY",
             "holder": str(holder)},
        ]  # fmt: skip


class TestOperations:
    def test_they_are_listed_shown_and_stopped(self, url, live):
        assert (
            "no bulk operation yet"
            in run("bulk", "list", "--format", "table", PULSED_URL=url).stderr
        )
        begun = run_blocking(live.bulk.start(new_job_id(), CANCEL, PENDING, by=Operator("ops")))
        listed = json.loads(run("bulk", "list", PULSED_URL=url).stdout)
        assert (listed["id"], listed["filter"]["topic"]) == (str(begun.id), TOPIC)
        table = run("bulk", "list", "--format", "table", PULSED_URL=url, COLUMNS="160").stdout
        assert "RUNNING" in table
        result = run("bulk", "stop", str(begun.id), PULSED_URL=url)
        assert (result.exit_code, "stopped: cancelled 0 jobs" in result.stderr) == (0, True)
        report = run("bulk", "show", str(begun.id), "--format", "table", PULSED_URL=url).stdout
        assert "STOPPED" in report
        assert "topic=email" in report

    def test_one_that_does_not_exist(self, url, live):
        for given in (str(new_job_id()), "abcdef"):
            assert run("bulk", "show", given, PULSED_URL=url).exit_code == 3


@pytest.mark.embedded("one process is enough")
def test_ctrl_c_stops_the_operation(backend, live):
    """The command is interrupted after its first batch of one job, and rests for ever after it."""
    pending(live, 5)
    program = (
        "import os, signal\n"
        "from pulsed.cli.root import main\n"
        "from pulsed.engine.upkeep import bulk\n"
        "from pulsed.store.verbs import bulk as verbs\n"
        "verbs.BATCH = 1\n"
        "async def pause(_): os.kill(os.getpid(), signal.SIGINT)\n"
        "bulk.pause = pause\n"
        "main()\n"
    )
    args = ["jobs", "cancel", "--topic", TOPIC, "--yes", "--url", backend.app_url]
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, cwd=ROOT,
        check=False,
    )  # fmt: skip
    assert (done.returncode, "stopped: cancelled 1 job" in done.stderr) == (130, True), done.stderr
    [row] = run_blocking(live.bulk.list(limit=5))
    assert (row.state, row.done) == (BulkState.STOPPED, 1)


class TestEditing:
    def test_arguments_of_a_dead_letter_are_replaced(self, url, live):
        job_id = dead(live, payload='{"to":"ada","n":1}')
        result = run("jobs", "edit", str(job_id)[:18], "to=grace", PULSED_URL=url)
        assert result.exit_code == 0, result.stderr
        found = row_of(live, job_id)
        assert (found.status, json.loads(found.payload)) == (
            Status.PENDING, {"to": "grace", "n": 1},
        )  # fmt: skip

    def test_they_have_to_fit_the_handler(self, url, live, tmp_path, monkeypatch):
        (tmp_path / "edited_app.py").write_text(
            "from pulsed import Pulse\n"
            f"app = Pulse({url!r})\n"
            "@app.job\n"
            "def email(to: str, n: int) -> None: ...\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "edited_app", raising=False)
        job_id = dead(live, payload='{"to":"ada","n":1}')
        args = ("jobs", "edit", str(job_id), "--app", "edited_app:app")
        result = run(*args, "n=many")
        assert result.exit_code == 2, result.stderr
        assert row_of(live, job_id).status is Status.DEAD_LETTERED
        assert run(*args, "n=2").exit_code == 0
        assert json.loads(row_of(live, job_id).payload)["n"] == 2

    def test_a_job_that_has_not_failed_is_not_edited(self, url, live):
        [job_id] = pending(live, 1)
        assert run("jobs", "edit", str(job_id), "n=1", PULSED_URL=url).exit_code == 1


class TestFinding:
    def test_counts_by_fields(self, url, live):
        for error in ("Timeout: 1", "Timeout: 2", "KeyError"):
            dead(live, error)
        result = run("jobs", "counts", "--status", "dead", "--by", "topic,error", PULSED_URL=url)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert lines == [
            {"topic": TOPIC, "error": "Timeout", "jobs": 2, "at_least": False},
            {"topic": TOPIC, "error": "KeyError", "jobs": 1, "at_least": False},
        ]
        table = run("jobs", "counts", "--by", "status", "--format", "table", PULSED_URL=url).stdout
        assert table.split() == ["STATUS", "JOBS", "DEAD_LETTERED", "3"]
        assert run("jobs", "counts", "--by", "colour", PULSED_URL=url).exit_code == 2

    def test_ids_are_a_format(self, url, live):
        ids = pending(live, 2)
        listed = run("jobs", "list", "--format", "ids", PULSED_URL=url).stdout
        assert listed == run("jobs", "list", "--ids", PULSED_URL=url).stdout
        assert listed.split() == [str(job_id) for job_id in reversed(ids)]
        assert run("jobs", "list", "--ids", "--json", PULSED_URL=url).exit_code == 2

    def test_a_parent_is_named_by_its_beginning(self, url, live):
        parent = run_blocking(running(live)).job_id
        run_blocking(live.submit([a_job(parent_id=parent, parent_step="s#1")]))
        args = ("jobs", "list", "--ids", "--parent", str(parent)[:18])
        assert len(run(*args, PULSED_URL=url).stdout.split()) == 1
        assert run("jobs", "list", "--worker", "123456", PULSED_URL=url).exit_code == 3
