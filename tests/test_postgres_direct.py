"""Blocking submits go to libpq without a cursor, and lose nothing by it."""

import pytest

from pulsed.errors import StorageRefused
from pulsed.model.ids import new_job_ids
from pulsed.model.job import Status
from pulsed.model.job_batch import JobBatch
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres import direct as postgres_direct
from pulsed.store.postgres import psycopg_connection
from pulsed.store.postgres.notify import Notifier
from pulsed.store.postgres.psycopg_connection import PsycopgConnection
from pulsed.store.postgres.psycopg_pool import ThreadPool
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sql.statement import Sql, Statement
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.jobs import EVERYTHING, a_job
from tests.support.own_sessions import administering
from tests.support.raw_verbs import a_verb


@pytest.fixture(params=[True, False], ids=["prepared", "unprepared"])
def store(request, postgres_url):
    store = PostgresStore(
        postgres_url, PostgresOptions(pool_size=1, prepared_statements=request.param)
    )
    with administering(postgres_url):
        yield store
    run_blocking(store.aclose())


def submit(store, *jobs):
    return submit_all(store, jobs)


def submit_all(store, jobs):
    return run_blocking(store.submit(jobs)).new


def payloads(store, *jobs):
    rows = run_blocking(store.get([job.id for job in jobs]))
    return [rows[job.id].payload for job in jobs]


def test_new_jobs_are_counted(store):
    known = a_job()
    assert submit(store, known) == 1
    assert submit(store, known) == 0
    assert submit(store, known, a_job(), a_job()) == 2


def test_text_arrives_as_it_was_sent(store):
    jobs = [a_job(payload=f'"{text}"') for text in ("Grüße 🎉", "{a,b}", r"\\ \" '", "null", "")]
    assert submit(store, jobs[0]) == 1
    assert submit(store, *jobs) == len(jobs) - 1
    assert payloads(store, *jobs) == [job.payload for job in jobs]


@pytest.mark.parametrize("is_untried", [False, True])
def test_ids_that_were_made_together_arrive_in_the_binary_format(store, is_untried):
    texts = [f'"{text}"' for text in ("Grüße 🎉", "{a,b}", "")]
    batch = JobBatch(a_job(), new_job_ids(3), texts, is_untried=is_untried)
    assert submit_all(store, batch) == 3
    assert payloads(store, *batch) == texts
    assert submit_all(store, batch) == 0


@pytest.mark.parametrize("more", [0, 2])
def test_a_text_is_not_cut_off_at_a_nul(store, more):
    with pytest.raises(StorageRefused, match="NUL"):
        submit(store, a_job(queue="mail\0box"), *[a_job() for _ in range(more)])
    assert sum(run_blocking(store.counts(EVERYTHING)).values()) == 0


def test_what_the_server_refuses_is_said_and_the_next_submit_works(store):
    for _ in range(2):
        with pytest.raises(StorageRefused, match="priority"):
            submit(store, a_job(priority=1_000))
        assert submit(store, a_job()) == 1
    assert run_blocking(store.counts(EVERYTHING))[Status.PENDING] == 2


def test_a_connection_prepares_only_so_many_statements(store, monkeypatch):
    monkeypatch.setattr(postgres_direct, "MOST_PREPARED", 2)
    forms = [{}, {"delay": 5}, {"timeout": 5}, {"lease": 5}]
    for _ in range(2):
        for form in forms:
            assert submit(store, a_job(**form)) == 1
    used = run_blocking(store.perform(a_verb("SELECT name FROM pg_prepared_statements")))
    ours = [name for (name,) in used if name.startswith("pulsed_")]
    assert len(ours) == (2 if store.postgres_options.prepared_statements else 0)


def test_an_answer_that_takes_longer_than_a_moment_is_waited_for(store, monkeypatch):
    monkeypatch.setattr(psycopg_connection, "A_MOMENT", 1)
    assert run_blocking(store.perform(counting("SELECT 1 FROM pg_sleep(0.05)"))) == [(1,)]


def test_an_interrupt_cancels_the_statement(store, monkeypatch):
    """So that it does not go on, with its locks, until its timeout."""
    run_blocking(store.perform(counting("SELECT 1")))
    cancelled = []

    def interrupted(_milliseconds):
        if _milliseconds:
            raise KeyboardInterrupt
        return []

    cancel_safe = PsycopgConnection.cancel_safe

    def cancel(connection, **options):
        cancelled.append(connection)
        cancel_safe(connection, **options)

    monkeypatch.setattr(PsycopgConnection, "cancel_safe", cancel)
    (connection,) = store._threads._opened
    connection._hears = interrupted
    with pytest.raises(KeyboardInterrupt):
        run_blocking(store.perform(counting("SELECT 1 FROM pg_sleep(10)")))
    assert cancelled == [connection]
    assert not store._threads._opened


def counting(sql):
    """Return a verb of one statement that answers with the number of its rows."""

    def script():
        return (yield Statement(Sql(sql, (), counted=True), {}))

    return Verb("test", VerbKind.READ, script)


# -- a job with a key ------------------------------------------------------------------------------


def word(statement: Statement) -> str:
    """What a statement is for, in a word."""
    text = statement.sql.text
    return next((each for each in ("emit_message", "notify") if each in text), text.split()[0])


@pytest.fixture
def sent(monkeypatch):
    """What blocking calls send, in order."""
    sent = []
    execute = ThreadPool._execute

    def noted(pool, connection, statement, follow_up=None):
        sent.append(word(statement))
        if follow_up is not None:
            sent.append(f"with {word(follow_up.statement)}")
        return execute(pool, connection, statement, follow_up)

    monkeypatch.setattr(ThreadPool, "_execute", noted)
    monkeypatch.setattr(Notifier, "take", lambda _, queues: (queues, False))
    return sent


@pytest.fixture
def prepared(postgres_url, admin):
    store = PostgresStore(postgres_url)
    run_blocking(store.now())
    yield store
    run_blocking(store.aclose())


def test_a_job_with_a_key_is_one_statement_with_its_notification(prepared, sent):
    sent.clear()
    assert submit(prepared, a_job(key="k")) == 1
    assert sent == ["INSERT", "with notify"]


def test_who_finds_a_key_held_waits_for_the_disk_once(prepared, sent):
    assert submit(prepared, a_job(key="k")) == 1
    sent.clear()
    assert submit(prepared, a_job(key="k")) == 0
    assert sent[0] == "INSERT"
    assert sent.count("emit_message") == 1
    assert sent.index("emit_message") > 1, "it covers what is read after the INSERT"


def test_the_notification_follows_a_job_that_only_a_second_statement_stores(prepared, admin, sent):
    """The key was held and has lapsed: when the first statement has ended, there is no job yet."""
    assert submit(prepared, a_job(key="k", key_for="3600")) == 1
    admin.execute("UPDATE pulse_jobs SET key_until = now()")
    sent.clear()
    assert submit(prepared, a_job(key="k")) == 1
    assert sent.count("INSERT") == 2
    assert sent[-1] == "notify"
