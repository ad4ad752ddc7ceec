"""The launcher behind every PostgreSQL test: it must survive what those tests do to it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from tests.support import scratch_postgres
from tests.support.programs import ROOT
from tests.support.scratch_postgres import ScratchPostgres


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def rows(server):
    with psycopg.connect(server.url) as connection:
        return connection.execute("SELECT * FROM kept").fetchall()


def test_each_test_process_has_an_empty_database_of_its_own(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        [name] = connection.execute("SELECT current_database()").fetchone() or []
        assert name.startswith("pulsed_test_")


def test_a_killed_server_takes_all_its_processes_along_and_recovers_its_data(postgres_server):
    url = postgres_server.url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        processes = [postgres_server.pid, *scratch_postgres.children(postgres_server.pid)]
        postgres_server.kill()
        assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    postgres_server.start()
    assert postgres_server.url == url
    assert rows(postgres_server) == [(1,)]
    postgres_server.restart()
    assert postgres_server.url == url
    assert rows(postgres_server) == [(1,)]


def test_the_server_and_its_data_go_when_the_owner_is_killed():
    code = (
        "import time; from tests.support.scratch_postgres import ScratchPostgres\n"
        "s = ScratchPostgres(); s.start(); print(s.pid, s.directory, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().decode().split()
        owner.kill()
    wait_until(lambda: not Path(directory).exists())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_the_server_goes_when_its_supervisor_is_killed():
    with ScratchPostgres() as server:
        os.kill(server.supervisor_pid, signal.SIGKILL)
        if sys.platform == "linux":
            wait_until(lambda: not scratch_postgres.children(server.pid))


def test_a_taken_port_is_retried(monkeypatch):
    with ScratchPostgres() as first:
        ports = iter([first.port, scratch_postgres.free_port()])
        monkeypatch.setattr(scratch_postgres, "free_port", lambda: next(ports))
        with ScratchPostgres() as second:
            assert second.port != first.port
            with psycopg.connect(second.url):
                pass


def test_settings_reach_the_server():
    with (
        ScratchPostgres(fsync=True, settings={"work_mem": "7MB"}) as server,
        psycopg.connect(server.url) as connection,
    ):
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)


def test_a_kept_directory_is_used_again():
    # Not tmp_path: root's is closed to the user the server runs as where namespaces are forbidden.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        with ScratchPostgres(directory=directory) as server, psycopg.connect(server.url) as client:
            client.execute("CREATE TABLE kept AS SELECT 2 AS two")
        with ScratchPostgres(directory=directory) as server:
            assert rows(server) == [(2,)]


def test_missing_binaries_are_explained(monkeypatch, tmp_path):
    monkeypatch.setenv("PULSED_TEST_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(scratch_postgres.ScratchPostgresError, match="set PULSED_TEST_POSTGRES"):
        scratch_postgres.find_binaries()
