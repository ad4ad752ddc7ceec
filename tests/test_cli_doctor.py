"""``pulsed workers``, ``migrate`` and ``doctor`` over a real database of each kind."""

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsed.errors import StorageError
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite_place import file_system
from pulsed.store.sqlstore import SqlStore
from tests.support.commands import a_dead_job, a_waiting_job, lines_of, present, run
from tests.support.jobs import running


class TestWorkersAndSchema:
    def test_workers(self, url, live):
        present(live)
        (worker,) = lines_of(run("workers", PULSED_URL=url))
        assert worker["live"] is True
        assert worker["queues"] == ["default"]

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


class TestDoctor:
    def findings(self, url: str, code: int) -> dict[str, dict[str, str]]:
        result = run("doctor", "--json", PULSED_URL=url)
        assert result.exit_code == code, result.output
        return {found["check"]: found for found in map(json.loads, result.stdout.splitlines())}

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
        assert "90.0 s behind" in found["detail"]


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
