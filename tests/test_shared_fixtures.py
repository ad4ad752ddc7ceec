"""What tests share to be quick must not come between them."""

import signal

import psycopg
import pytest

from tests.support import backends, memory_folder
from tests.support.backends import SqliteBackend, until_left
from tests.support.kept_sessions import kept_session
from tests.support.terminals import ENTER, Terminal


def test_a_session_that_a_test_has_cut_is_replaced(postgres_url):
    cut = kept_session(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 1000)", [cut.info.backend_pid])
    assert kept_session(postgres_url) is not cut
    assert kept_session(postgres_url).execute("SELECT 1").fetchall() == [(1,)]
    assert kept_session(postgres_url) is kept_session(postgres_url)


def test_a_given_file_has_tables_and_no_jobs(tmp_path, clock):
    given = SqliteBackend(tmp_path / "given.db", clock, with_tables=True)
    assert given.app_url
    assert given.execute("SELECT count(*) FROM pulse_jobs") == [(0,)]


def test_memory_is_used_only_where_there_is_plenty(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_folder, "ROOM", 1)
    assert memory_folder.has_room(tmp_path)
    assert not memory_folder.has_room(tmp_path / "nowhere")
    monkeypatch.setattr(memory_folder, "ROOM", 1 << 70)
    assert not memory_folder.has_room(tmp_path)


def test_a_worker_that_an_earlier_test_left_running_is_reported(postgres_url, monkeypatch):
    until_left(postgres_url)
    monkeypatch.setattr(backends, "PATIENCE", 0)
    with (
        psycopg.connect(postgres_url, application_name="pulsed/listen"),
        pytest.raises(AssertionError, match=r"left these connected.*pulsed/listen"),
    ):
        until_left(postgres_url)


def test_a_closed_terminal_ends_what_runs_in_it_even_if_the_suite_ignores_hangups(tmp_path):
    ignored_before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        terminal = Terminal(tmp_path)
        terminal.type(f"echo started; sleep 60{ENTER}")
        terminal.wait(lambda: "\nstarted\n" in terminal.text)
        terminal.close()
    finally:
        signal.signal(signal.SIGHUP, ignored_before)
