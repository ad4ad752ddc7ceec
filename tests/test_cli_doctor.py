"""``pulsed workers``, ``migrate`` and ``doctor`` over a real database of each kind."""

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest

from pulsed.errors import StorageError
from pulsed.model.job import Assignment, Status, WorkerInfo, WorkerRequest
from pulsed.model.outcome import Failed, Succeeded
from pulsed.model.step import StepKind
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.place import file_system
from pulsed.store.verbs import reads
from tests.support.backends import Backend
from tests.support.checkpoints import a_family, children_of, send, suspended
from tests.support.commands import a_dead_job, a_waiting_job, lines_of, present, run, status_of
from tests.support.jobs import ALICE, running, settle, submitted


class TestWorkersAndSchema:
    def test_workers(self, url, live):
        present(live)
        (worker,) = lines_of(run("workers", PULSED_URL=url))
        assert worker["live"] is True
        assert worker["queues"] == ["default"]

    def test_workers_are_drained_and_stopped(self, url, live):
        ended = WorkerInfo(id=ALICE, host="web-1", pid=7, queues=("q",), topics=(), slots=1)
        run_blocking(live.announce(ended))
        present(live)
        place = f"{ALICE} web-1:7\n"
        done = run("workers", "drain", str(ALICE)[:-1], PULSED_URL=url)
        assert (done.exit_code, done.stdout) == (0, place)
        assert "asked 1 worker to drain: they finish what runs, and end" in done.stderr
        assert run("workers", "stop", "--host", "web-1", "--yes", PULSED_URL=url).stdout == place
        assert run_blocking(live.announce(ended)) is WorkerRequest.STOP
        everyone = run("workers", "drain", "--all", "--yes", PULSED_URL=url)
        assert len(everyone.stdout.splitlines()) == 2

    def test_workers_must_be_named_and_exist(self, url, live):
        present(live)
        assert run("workers", "drain", "abc", PULSED_URL=url).exit_code == 3
        assert run("workers", "drain", PULSED_URL=url).exit_code == 2
        assert "--yes" in run("workers", "stop", "--all", PULSED_URL=url).stderr
        misplaced = run("workers", "--url", "sqlite:///other.db", "drain", "--all", PULSED_URL=url)
        assert (misplaced.exit_code, "after 'drain'" in misplaced.stderr) == (2, True)
        misplaced = run("workers", "--json", "drain", "--all", "--yes", PULSED_URL=url)
        assert (misplaced.exit_code, "after 'drain'" in misplaced.stderr) == (2, True)
        assert {each.request for each in run_blocking(live.workers())} == {None}

    def test_queues(self, url, live, monkeypatch):
        assert "no queues" in run("queues", "--format", "table", PULSED_URL=url).stderr
        present(live)
        a_waiting_job(live)
        run_blocking(submitted(live, queue="orphan"))
        by_name = {line["queue"]: line for line in lines_of(run("queues", PULSED_URL=url))}
        assert by_name["default"] | {"oldest": 0} == {
            "queue": "default", "due": 1, "due_at_least": False, "oldest": 0, "running": 0,
            "running_at_least": False, "per_minute": 0.0, "failure_rate": None, "workers": 1,
            "paused": False, "paused_at": None, "paused_by": None, "limits": {}, "declared": None,
            "override": None, "next_start": None,
        }  # fmt: skip
        assert (by_name["orphan"]["due"], by_name["orphan"]["workers"]) == (1, 0)
        table = run("queues", "--format", "table", PULSED_URL=url, COLUMNS="100").stdout
        assert re.search(
            r"^QUEUE +DUE +OLDEST +RUNNING +PER MIN +FAILED +WORKERS$", table, re.MULTILINE
        )
        assert re.search(r"^orphan +1 +.* 0 +0 +\N{EN DASH} +none$", table, re.MULTILINE)

    def test_migrate_up_is_repeatable(self, tmp_path):
        url = f"sqlite:///{tmp_path}/new.db"
        first = run("migrate", "up", "--url", url)
        assert first.exit_code == 0
        assert first.stdout.startswith("0001 ")
        assert "up to date" in run("migrate", "up", "--url", url).stderr

    @pytest.mark.embedded("only a database has a schema")
    def test_migrate_status(self, url, live):
        rows = lines_of(run("migrate", "status", PULSED_URL=url))
        assert rows[0]["version"] == 1
        assert rows[0]["applied_at"].endswith("Z")

    def test_migrate_status_of_a_database_without_tables(self, tmp_path):
        (tmp_path / "empty.db").touch()
        result = run("migrate", "status", "--url", f"sqlite:///{tmp_path}/empty.db")
        assert result.exit_code == 5
        assert json.loads(result.stdout.splitlines()[0])["applied_at"] is None

    def test_migrate_sql_is_what_migrate_up_does(self, tmp_path):
        url = f"sqlite:///{tmp_path}/by-hand.db"
        script = run("migrate", "sql", "--url", url)
        assert script.exit_code == 0
        assert not list(tmp_path.iterdir())
        with closing(sqlite3.connect(tmp_path / "by-hand.db")) as connection:
            connection.executescript(script.stdout)
        assert run("migrate", "status", "--url", url).exit_code == 0
        assert run("enqueue", "t", "--url", url).exit_code == 0

    def test_migrate_sql_for_postgres_needs_no_server(self):
        script = run("migrate", "sql", "--url", "postgresql://127.0.0.1:1/none")
        assert script.exit_code == 0
        assert "CREATE TABLE pulse_jobs" in script.stdout


@contextmanager
def as_another_user() -> Iterator[None]:
    """Drop the superuser's rights temporarily: root may write to every file."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(me)


class Doctor:
    def findings(self, url: str, code: int) -> dict[str, dict[str, str]]:
        result = run("doctor", "--json", PULSED_URL=url)
        assert result.exit_code == code, result.output
        return {found["check"]: found for found in map(json.loads, result.stdout.splitlines())}


class TestDoctor(Doctor):
    def test_a_healthy_database(self, url, live):
        present(live)
        found = self.findings(url, 0)
        assert found["schema"]["level"] == "ok"
        assert found["workers"]["detail"] == "1 alive with 5 slots"
        assert {each["level"] for each in found.values()} == {"ok"}

    def test_people_get_lines(self, url, live):
        text = run("doctor", PULSED_URL=url, COLUMNS="80").stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "start one with `pulsed worker" in text

    def test_new_dead_letters_are_a_warning_with_the_command_to_see_them(self, url, live, backend):
        present(live)
        assert self.findings(url, 0)["dead letters"]["level"] == "ok"
        for _ in range(2):
            a_dead_job(live)
        found = self.findings(url, 0)["dead letters"]
        assert (found["level"], found["detail"]) == (
            "warn",
            "2 jobs were dead-lettered within a day, 2 in all",
        )
        assert "pulsed jobs list --status dead" in found["advice"]
        days = "2 * 86400000000" if backend.engine == "sqlite" else "interval '2 days'"
        backend.execute(f"UPDATE pulse_jobs SET completed_at = completed_at - {days}")
        found = self.findings(url, 0)["dead letters"]
        assert (found["level"], found["detail"]) == ("ok", "none within a day, 2 in all")

    def test_a_worker_that_cannot_claim_is_named(self, url, live):
        present(live, state="failing")
        found = self.findings(url, 6)["failing workers"]
        assert found["detail"].startswith("1 cannot claim jobs: ")

    def test_a_database_that_no_worker_ever_used_may_be_the_wrong_one(self, url, live):
        advice = self.findings(url, 0)["workers"]["advice"]
        assert "none ever ran here: is this the database that your workers use?" in advice

    @pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have owners on POSIX only")
    def test_a_file_that_may_not_be_written_has_failed(self):
        with TemporaryDirectory() as name:  # the folders above pytest's own are closed to others
            folder = Path(name)
            url = f"sqlite:///{folder}/jobs.db"
            assert run("migrate", "up", "--url", url).exit_code == 0
            for path in folder.iterdir():
                path.chmod(0o444)
            folder.chmod(0o777)
            with as_another_user():
                assert self.findings(url, 6)["writable"]["level"] == "fail"
            folder.chmod(0o600)
            with as_another_user():
                detail = self.findings(url, 6)["database"]["detail"]
            assert "this user may not read its folder" in detail
            folder.chmod(0o700)

    def test_a_database_that_is_not_there(self, tmp_path):
        found = self.findings(f"sqlite:///{tmp_path}/none.db", 6)
        assert found["database"]["level"] == "fail"

    def test_a_database_without_tables(self, tmp_path):
        (tmp_path / "empty.db").touch()
        found = self.findings(f"sqlite:///{tmp_path}/empty.db", 6)
        assert found["schema"]["level"] == "fail"

    def test_due_jobs_that_nobody_handles(self, url, live, backend):
        present(live)
        job_id = a_waiting_job(live, topic="orphan")
        assert self.findings(url, 0)["backlog"]["level"] == "warn"
        hour = "3600000000" if backend.engine == "sqlite" else "interval '1 hour'"
        backend.execute(
            f"UPDATE pulse_jobs SET next_run_at = next_run_at - {hour} "
            f"WHERE id = {backend.literal(job_id)}"
        )
        found = self.findings(url, 6)
        assert "1 due job of 'orphan'" in found["backlog"]["detail"]

    def test_more_due_jobs_than_are_counted(self, url, live, monkeypatch):
        for bound in ("SEARCHED", "LEAST_EACH"):
            monkeypatch.setattr(reads, bound, 2)
        present(live)
        for _ in range(3):
            a_waiting_job(live)
        assert "at least 2 jobs are due" in self.findings(url, 0)["backlog"]["detail"]
        a_waiting_job(live, topic="orphan", priority=1)
        a_waiting_job(live, topic="orphan", priority=1)
        assert "at least 2 due jobs of 'orphan'" in self.findings(url, 0)["backlog"]["detail"]

    def test_leases_that_nobody_recovers(self, url, live, backend):
        run_blocking(running(live))
        assert self.findings(url, 0)["recovery"]["level"] == "ok"
        hour = "3600000000" if backend.engine == "sqlite" else "interval '1 hour'"
        backend.execute(f"UPDATE pulse_jobs SET lease_until = lease_until - {hour}")
        assert "still RUNNING" in self.findings(url, 6)["recovery"]["detail"]

    def test_more_attempts_than_allowed(self, url, live, backend):
        a_dead_job(live)
        backend.execute("UPDATE pulse_jobs SET attempts = 99")
        assert self.findings(url, 6)["attempts"]["level"] == "fail"

    def test_a_check_that_cannot_be_made_has_failed(self, url, live, monkeypatch):
        async def refuse(*_: Any, **__: Any) -> Any:
            raise StorageError("no")

        monkeypatch.setattr(SqlStore, "backlog", refuse)
        found = self.findings(url, 6)
        assert found["backlog"]["level"] == "fail"
        assert found["clock"]["level"] == "ok"

    def test_running_jobs_without_a_lease(self, url, live, backend):
        if backend.engine != "sqlite":
            pytest.skip("PostgreSQL's CHECK cannot be looked past")
        a_waiting_job(live)
        with closing(backend.connect()) as connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            connection.execute("UPDATE pulse_jobs SET status = 'RUNNING'")
        assert self.findings(url, 6)["leases"]["level"] == "fail"

    def test_a_host_whose_clock_is_wrong(self, url, live, monkeypatch):
        real = SqlStore.now

        async def late(store: SqlStore) -> datetime:
            return await real(store) + timedelta(seconds=90)

        monkeypatch.setattr(SqlStore, "now", late)
        found = self.findings(url, 0)["clock"]
        assert found["level"] == "warn"
        assert "90 s behind" in found["detail"]


class TestDoctorOfWorkflows(Doctor):
    """What the wake protocol makes impossible is planted by hand."""

    def waits(self, url: str, code: int) -> str:
        return self.findings(url, code)["waits"]["detail"]

    def test_workflows_that_wait_for_good_reasons(self, url, live):
        for kind, wait in SOUND.items():
            run_blocking(_waiting(live, kind, **wait))
        _parent_with_a_child(live)
        present(live, topics=("email", "child"))
        found = self.findings(url, 0)
        assert {found[check]["level"] for check in ("waits", "children")} == {"ok"}

    @pytest.mark.parametrize(
        "kind, change",
        [
            (StepKind.SIGNAL, "wait_kind = NULL"),
            (StepKind.SIGNAL, "wait_key = NULL"),
            (StepKind.JOB, "wait_job = NULL"),
            (StepKind.SLEEP, "next_run_at = {forever}"),
        ],
    )
    def test_a_job_that_waits_without_a_reason(self, url, live, backend, kind, change):
        run_blocking(_waiting(live, kind, **SOUND[kind]))
        assert "valid and still pending" in self.waits(url, 0)
        sqlite = backend.engine == "sqlite"
        forever = "253402214400000000" if sqlite else "'9999-12-31 00:00:00+00'"
        backend.execute(
            f"UPDATE pulse_jobs SET {change.format(forever=forever)} WHERE status = 'WAITING'"
        )
        assert self.waits(url, 6) == "1 job is WAITING without a reason"

    def test_a_signal_that_woke_nobody(self, url, live, backend):
        run = run_blocking(_waiting(live, StepKind.SIGNAL, key="go"))
        run_blocking(send(live, run.job_id))
        assert status_of(live, run.job_id) is Status.PENDING
        self.lull(backend, run.job_id)
        assert self.waits(url, 6) == "1 job is WAITING for something that has already come"

    def test_a_wake_up_that_a_deadline_makes_good(self, url, live, backend):
        run = run_blocking(_waiting(live, StepKind.SIGNAL, key="go"))
        run_blocking(send(live, run.job_id))
        backend.execute("UPDATE pulse_jobs SET status = 'WAITING'")  # due, as it is
        self.waits(url, 0)

    def test_the_end_of_another_job_that_woke_nobody(self, url, live, backend):
        awaited = run_blocking(running(live))
        run = run_blocking(_waiting(live, StepKind.JOB, key=str(awaited.job_id)))
        self.waits(url, 0)
        run_blocking(settle(live, awaited, Succeeded()))
        self.lull(backend, run.job_id)
        assert "something that has already come" in self.waits(url, 6)

    @pytest.mark.parametrize("strategy", [{"too_many": 1}, {"enough": 1}, {}])
    def test_children_that_woke_nobody(self, url, live, backend, strategy):
        parent, children = run_blocking(a_family(live, 2))
        run_blocking(suspended(live, parent, StepKind.FAN_OUT, **strategy))
        self.waits(url, 0)
        outcome = Failed("no", final=True) if "too_many" in strategy else Succeeded()
        for child in children[: len(strategy) or 2]:
            run_blocking(settle(live, child, outcome))
        self.lull(backend, parent.job_id)
        assert "something that has already come" in self.waits(url, 6)

    @staticmethod
    def lull(backend: Backend, job_id: UUID) -> None:
        """Put a job that was woken back to sleep."""
        changes = "status = 'WAITING', next_run_at = next_run_at + {hour}"
        hour = "3600000000" if backend.engine == "sqlite" else "interval '1 hour'"
        backend.execute(
            f"UPDATE pulse_jobs SET {changes.format(hour=hour)} "
            f"WHERE status = 'PENDING' AND id = {backend.literal(job_id)}"
        )

    def test_children_that_nobody_tells(self, url, live, backend):
        parent = _parent_with_a_child(live)
        true = "1" if backend.engine == "sqlite" else "true"
        hour = "3600000000" if backend.engine == "sqlite" else "interval '1 hour'"
        end = "status = 'CANCELLED', wait_kind = NULL, cascades = " + true
        this = f"WHERE id = {backend.literal(parent)}"
        backend.execute(f"UPDATE pulse_jobs SET {end}, completed_at = submitted_at {this}")
        assert self.findings(url, 0)["children"]["level"] == "ok"  # upkeep has its time
        backend.execute(f"UPDATE pulse_jobs SET completed_at = completed_at - {hour} {this}")
        found = self.findings(url, 6)["children"]
        assert "the children of 1 failed or cancelled job" in found["detail"]
        assert run_blocking(live.workflows.cascade()) == 1
        self.findings(url, 0)


SOUND: dict[StepKind, dict[str, Any]] = {
    StepKind.SIGNAL: {"key": "go"},
    StepKind.SLEEP: {"delay": 3600.0},
    StepKind.JOB: {"key": "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"},
}


async def _waiting(store: Store, kind: StepKind, **wait: Any) -> Assignment:
    run = await running(store)
    if kind is StepKind.JOB:
        target = UUID(wait["key"])
        if target not in await store.get([target]):
            await submitted(store, id=target, delay=3600)
        assert await store.workflows.watch(run.lease, target)
    assert await suspended(store, run, kind, **wait)
    return run


def _parent_with_a_child(store: Store) -> UUID:
    async def make() -> UUID:
        parent = await running(store)
        await store.workflows.add_children(parent.lease, children_of(parent.job_id, 1))
        assert await suspended(store, parent, StepKind.FAN_OUT)
        return parent.job_id

    return run_blocking(make())


class TestFileSystem:
    MOUNTS = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:50 / /srv/shared\\040data rw shared:1 - nfs4 host:/data rw\n"
    )

    @pytest.mark.parametrize(
        "path, expected",
        [("/srv/jobs.db", "ext4"), ("/srv/shared data/jobs.db", "remote:nfs4")],
    )
    def test_the_nearest_mount_decides(self, tmp_path, path, expected):
        (tmp_path / "mounts").write_text(self.MOUNTS)
        assert file_system(Path(path), tmp_path / "mounts") == expected

    def test_a_system_that_does_not_tell(self, tmp_path):
        assert file_system(Path("/jobs.db"), tmp_path / "none") == "unknown"
