"""LISTEN and NOTIFY: hints that arrive fast, not too often, and again after every break."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, closing

import asyncpg
import psycopg
import pytest

from pulsed.errors import StorageError
from pulsed.model.ids import new_job_id
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres import listen as postgres_listen
from pulsed.store.postgres import notify as postgres_notify
from pulsed.store.postgres.notify import AT_MOST_EVERY, REMEMBERED, Notifier
from pulsed.store.postgres.session import Lane
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from tests.support.jobs import a_job

WITHIN = 60.0


@pytest.fixture
async def opened(postgres_url):
    """Makes stores, each as another process would, and closes them."""
    stores = []

    def make(**options):
        stores.append(PostgresStore(postgres_url, PostgresOptions(**options)))
        return stores[-1]

    first = make()
    await first.migrate()
    yield make
    for store in stores:
        await store.aclose()


class Bell:
    """A ``wake`` that counts."""

    def __init__(self):
        self.rings = 0
        self.named = []
        self._rung = asyncio.Event()

    def __call__(self, names):
        self.rings += 1
        self.named.append(names)
        self._rung.set()

    async def rung(self):
        await asyncio.wait_for(self._rung.wait(), WITHIN)
        self._rung.clear()


async def until(condition):
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 - what another process does sets no event
            await asyncio.sleep(0.002)


@asynccontextmanager
async def listening(store, *queues):
    """Listen, past the wake-up that every new connection begins with."""
    bell = Bell()
    async with store.listen(queues, bell) as listener:
        await bell.rung()
        assert listener.healthy
        yield bell, listener


@asynccontextmanager
async def heard_on(url, channel):
    """All notifications on a channel, as another client receives them."""
    heard = []
    connection = await asyncpg.connect(url)
    await connection.add_listener(channel, lambda *said: heard.append(said[3]))
    try:
        yield heard
    finally:
        await connection.close()


async def test_what_follows_a_callers_commit_wakes_workers_without_waiting(opened):
    """Called in the callback of a commit, by any thread, with or without an event loop."""
    here, there = opened(), opened()
    async with listening(there, "mail") as (far, _), listening(here, "mail") as (near, _):
        here.hint_soon([a_job(queue="mail")])
        await near.rung()
        await far.rung()
        await asyncio.to_thread(here.hint_soon, [a_job(queue="mail")])
        await far.rung()
        here.hint_soon([a_job(queue="mail", delay=60)])
        assert here._notifier._owed == set()


@pytest.mark.parametrize("claims", [True, False])
async def test_a_claim_of_the_same_process_goes_before_the_notification(
    opened, monkeypatch, claims
):
    here, there = opened(), opened()
    announced = []
    perform = here._notifier._perform

    async def noted(verb):
        announced.append(verb)
        await perform(verb)

    monkeypatch.setattr(here._notifier, "_perform", noted)
    async with listening(there, "mail") as (far, _), here.listen(["mail"], lambda _: claims):
        await here.submit([a_job(queue="mail")])
        assert bool(announced) is not claims
        await far.rung()
        assert len(announced) == 1


async def test_a_store_that_is_closed_sends_the_notification_that_follows_its_claim(opened):
    here, there = opened(), opened()
    async with listening(there, "mail") as (far, _):
        async with here.listen(["mail"], lambda _: True):
            await here.submit([a_job(queue="mail")])
        await here.aclose()
        await far.rung()


@pytest.mark.parametrize("mode", ["async", "blocking"])
async def test_a_submit_elsewhere_wakes_the_listeners_of_its_queue_only(opened, mode):
    producer, worker = opened(), opened()
    async with listening(worker, "mail", "sms") as (mail, _), listening(worker, "pdf") as (pdf, _):
        if mode == "async":
            await producer.submit([a_job(queue="mail")])
        else:
            await asyncio.to_thread(lambda: run_blocking(producer.submit([a_job(queue="mail")])))
        await mail.rung()
        await producer.submit([a_job(queue="pdf")])
        await pdf.rung()
        assert (mail.rings, pdf.rings) == (2, 2)
        assert (mail.named, pdf.named) == ([None, ("mail",)], [None, ("pdf",)])


async def test_a_submit_in_the_same_process_needs_no_connection_to_wake(opened):
    store = opened(prepared_statements=False)
    bell = Bell()
    async with store.listen(["default"], bell) as listener:
        assert not listener.healthy
        await asyncio.to_thread(lambda: run_blocking(store.submit([a_job()])))
        await bell.rung()
        await store.submit([a_job(queue="other")])
        await store.submit([a_job(delay=3600)])
    assert bell.rings == 1


async def test_a_submit_in_the_same_process_wakes_once_and_not_again_when_it_is_announced(opened):
    store, elsewhere = opened(), opened()
    async with (
        listening(store, "mail", "end") as (bell, _),
        listening(elsewhere, "mail") as (it, _),
    ):
        await store.submit([a_job(queue="mail")])
        await it.rung()  # it was announced
        await bell.rung()
        await elsewhere.submit([a_job(queue="end")])  # received after that, on the same connection
        await bell.rung()
        assert bell.rings == 3  # with the one at the beginning


async def test_who_waits_in_the_same_process_acts_before_the_others_are_told(opened, monkeypatch):
    store = opened(prepared_statements=False)  # receives only notifications of this process
    woken, order = asyncio.Event(), []

    async def claim():
        await woken.wait()
        order.append("claimed")

    async def announce(queues):
        order.append("announced")

    monkeypatch.setattr(store._notifier, "announce", announce)
    async with store.listen(["default"], lambda _: woken.set()):
        claiming = asyncio.create_task(claim())
        await asyncio.sleep(0)
        await store.submit([a_job()])
        await claiming
    assert order == ["claimed", "announced"]


async def test_a_listener_comes_back_after_its_session_was_ended(opened, postgres_url, monkeypatch):
    monkeypatch.setattr(postgres_listen, "FIRST_PAUSE", 0.01)
    producer, worker = opened(), opened()
    with closing(psycopg.connect(postgres_url, autocommit=True)) as admin:
        async with listening(worker, "default") as (bell, listener):
            for _ in range(2):
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'pulsed/listen' AND datname = current_database()"
                )
                await until(lambda: not listener.healthy)
                await bell.rung()  # for what it may have missed
                assert listener.healthy
                await producer.submit([a_job()])
                await bell.rung()
                await asyncio.sleep(2 * AT_MOST_EVERY)


async def test_a_listener_waits_for_a_server_that_is_down(postgres_server, monkeypatch, caplog):
    monkeypatch.setattr(postgres_listen, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(postgres_listen, "LONGEST_PAUSE", 0.05)
    store = PostgresStore(postgres_server.url)
    with caplog.at_level(logging.WARNING, logger="pulsed.store"):
        async with listening(store, "default") as (bell, listener):
            postgres_server.kill()
            await until(lambda: not listener.healthy)
            await asyncio.to_thread(postgres_server.start)
            await bell.rung()
            assert listener.healthy
    assert len([r for r in caplog.records if "notifications stopped" in r.message]) == 1
    await store.aclose()


async def test_a_connection_that_answers_no_more_is_given_up(opened, monkeypatch):
    monkeypatch.setattr(postgres_listen, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(postgres_listen, "CHECK_EVERY", 0.01)
    monkeypatch.setattr(postgres_listen, "CHECK_WITHIN", 0.05)
    async with listening(opened(), "default") as (bell, listener):
        deaf = listener.connection

        async def never(*_args, **_options):
            raise TimeoutError

        monkeypatch.setattr(type(deaf), "fetchval", never)
        await until(lambda: listener.connection is not deaf)
        monkeypatch.undo()
        await bell.rung()
        assert deaf.is_closed()


async def test_the_reason_is_named_also_when_the_error_has_nothing_to_say(monkeypatch, caplog):
    monkeypatch.setattr(postgres_listen, "FIRST_PAUSE", 0.01)

    async def never():
        raise TimeoutError

    listener = postgres_listen.ChannelListener(
        never, "pulsed", {"default"}, lambda _: None, is_own=lambda _: False
    )
    with caplog.at_level(logging.WARNING, logger="pulsed.store"):
        async with postgres_listen.running(listener):
            await until(lambda: caplog.messages)
    assert caplog.messages[0] == "notifications stopped, polling continues: TimeoutError"


async def test_a_burst_is_announced_at_its_beginning_and_at_its_end(opened, postgres_url):
    store = opened()
    async with heard_on(postgres_url, "pulsed") as heard:
        began = time.monotonic()
        for _ in range(40):
            await store.submit([a_job(queue="burst")])
        last = time.monotonic()
        await until(lambda: heard)
        await asyncio.to_thread(store._notifier.wait_until_sent)
        await until(lambda: not store._notifier._owed and not store._notifier._sending)
        await store.submit([a_job(queue="other")])
        await until(lambda: "other" in heard)
        bursts = heard.count("burst")
        assert 2 <= bursts <= 2 + (last - began) / AT_MOST_EVERY


async def test_schemas_have_channels_of_their_own(opened, postgres_url):
    store = opened(schema="loud")
    async with (
        heard_on(postgres_url, "pulsed_loud") as loud,
        heard_on(postgres_url, "pulsed") as plain,
    ):
        await store.submit([a_job(queue="x")])
        await until(lambda: loud == ["x"])
        assert plain == []
    with psycopg.connect(postgres_url) as admin:
        admin.execute("DROP SCHEMA loud CASCADE")


async def test_a_program_that_ends_at_once_still_announces_its_last_job(opened, postgres_url):
    code = """if True:
        import sys
        from pulsed.model.job import NewJob
        from pulsed.model.ids import new_job_id
        from pulsed.store.blocking import run_blocking
        from pulsed.store.postgres.store import PostgresStore
        store = PostgresStore(sys.argv[1])
        store._notifier._see_to_it = lambda: None  # as if it ended before the thread's turn
        for queue in ("first", "last", "last"):
            job = NewJob(id=new_job_id(), topic="t", payload="{}", queue=queue)
            run_blocking(store.submit([job]))
        """
    async with heard_on(postgres_url, "pulsed") as heard:
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, postgres_url]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)
        await until(lambda: heard.count("last") == 2)
    assert heard == ["first", "last", "last"]


# -- the notifier, without a database --------------------------------------------------------------


class Recorder:
    """Stands where the store performs a NOTIFY, and notes what it was for."""

    def __init__(self):
        self.sent = []

    async def __call__(self, verb):
        params = next(verb.script()).params
        self.sent.append(params["queues"] if "queues" in params else [params["queue"]])


async def test_the_first_announcement_is_immediate_and_the_last_is_never_dropped():
    record = Recorder()
    notifier = Notifier("pulsed", record)
    await notifier.announce({"a"})
    assert record.sent == [["a"]]
    await notifier.announce({"a", "b"})
    assert record.sent[1] == ["b"]
    await notifier.announce({"a"})
    await until(lambda: len(record.sent) == 3)
    assert record.sent[2] == ["a"]


async def test_in_a_burst_what_is_owed_goes_with_the_next_submit(monkeypatch):
    now = 0.0
    record = Recorder()
    notifier = Notifier("pulsed", record, clock=lambda: now)
    monkeypatch.setattr(notifier, "_see_to_it", lambda: None)
    for at, sent in ((0.0, 1), (0.4, 1), (0.9, 1), (1.1, 2), (1.9, 2), (2.2, 3)):
        now = at * AT_MOST_EVERY
        await notifier.announce({"a"})
        await asyncio.sleep(0)  # all but the first are tasks
        assert len(record.sent) == sent
        assert notifier._owed == (set() if at in (0.0, 1.1, 2.2) else {"a"})


class Held(Recorder):
    """Sends nothing before it is let go."""

    def __init__(self):
        super().__init__()
        self.free = asyncio.Event()

    async def __call__(self, verb):
        await self.free.wait()
        await super().__call__(verb)


async def in_a_burst(record, monkeypatch):
    """Return a notifier whose next announcement of a queue belongs to a burst."""
    now = 0.0
    notifier = Notifier("pulsed", record, clock=lambda: now)
    monkeypatch.setattr(notifier, "_see_to_it", lambda: None)
    record.free.set()
    await notifier.announce({"a"})
    record.free.clear()
    now = 2 * AT_MOST_EVERY
    return notifier


async def test_in_a_burst_a_caller_waits_for_no_notification_but_a_close_does(monkeypatch):
    record = Held()
    notifier = await in_a_burst(record, monkeypatch)
    await notifier.announce({"a"})
    assert record.sent == [["a"]]
    asyncio.get_running_loop().call_soon(record.free.set)
    await notifier.flush()
    assert record.sent == [["a"], ["a"]]


async def test_a_notification_whose_loop_ends_is_owed(monkeypatch):
    record = Held()
    notifier = await in_a_burst(record, monkeypatch)
    await notifier.announce({"a"})
    for task in list(notifier._tasks):
        task.cancel()
    await asyncio.wait(list(notifier._tasks))
    assert notifier._owed == {"a"}
    record.free.set()
    await notifier.flush()
    assert record.sent == [["a"], ["a"]]


async def test_queues_of_any_number_are_not_remembered_for_ever(monkeypatch):
    now = 0.0
    record = Recorder()
    notifier = Notifier("pulsed", record, clock=lambda: now)
    monkeypatch.setattr(notifier, "_see_to_it", lambda: None)
    for number in range(5 * REMEMBERED):
        now += AT_MOST_EVERY / 10
        await notifier.announce({f"of customer {number}"})
        assert len(notifier._last) <= REMEMBERED + 1
    assert len(record.sent) == 5 * REMEMBERED  # each at once
    before = len(record.sent)
    await notifier.announce({f"of customer {number}"})
    assert len(record.sent) == before  # and those of this moment are still held back
    for number in range(5 * REMEMBERED):
        now += AT_MOST_EVERY / 10
        assert notifier.take({f"taken {number}"}) == ({f"taken {number}"}, False)
        assert len(notifier._last) <= REMEMBERED + 1


async def test_what_is_owed_can_be_flushed(monkeypatch):
    now = 0.0
    record = Recorder()
    notifier = Notifier("pulsed", record, clock=lambda: now)
    monkeypatch.setattr(notifier, "_see_to_it", lambda: None)  # the thread that would send it
    await notifier.announce({"a"})
    await notifier.announce({"a"})
    await notifier.flush()
    await notifier.flush()
    assert record.sent == [["a"], ["a"]]


async def test_a_fork_leaves_what_is_owed_to_the_parent(monkeypatch):
    record = Recorder()
    notifier = Notifier("pulsed", record)
    monkeypatch.setattr(notifier, "_see_to_it", lambda: None)
    await notifier.announce({"a"})
    await notifier.announce({"a"})
    notifier.forget_inherited()
    await notifier.flush()
    assert record.sent == [["a"]]


class Failing(Recorder):
    """Fails the second time, with an unexpected error."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    async def __call__(self, verb):
        await super().__call__(verb)
        if len(self.sent) == 2:
            raise self.error


async def test_the_thread_takes_its_connection_along_when_it_ends(
    opened, postgres_url, monkeypatch
):
    """Else a database of tests could not be dropped after an event loop has enqueued in it."""
    store = opened()
    async with heard_on(postgres_url, "pulsed") as heard:
        store.owe_hint({"a"})
        thread = store._notifier._thread
        monkeypatch.setattr(postgres_notify, "LINGER", 0.01)
        await asyncio.to_thread(thread.join, WITHIN)
        await until(lambda: heard == ["a"])
    assert not thread.is_alive()
    assert not store._threads._opened


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit()], ids=["error", "exit"])
async def test_whatever_goes_wrong_in_the_thread_later_announcements_are_sent(error):
    record = Failing(error)
    notifier = Notifier("pulsed", record)
    await notifier.announce({"a"})
    await notifier.announce({"a"})  # by the thread
    await until(lambda: len(record.sent) == 2 and not notifier._sending)
    await notifier.announce({"b"})
    await notifier.announce({"b"})
    await until(lambda: len(record.sent) == 4 and not notifier._sending)
    for thread in threading.enumerate():  # else its end may be reported in the next test
        if thread.name == "pulsed-notify":
            await asyncio.to_thread(thread.join)


async def test_without_a_thread_to_send_it_the_announcement_waits_for_the_next(monkeypatch):
    record = Recorder()
    notifier = Notifier("pulsed", record)
    await notifier.announce({"a"})

    def no_more(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", no_more)
        await notifier.announce({"a"})
    assert record.sent == [["a"]]
    await notifier.announce({"a"})
    await until(lambda: len(record.sent) == 2)


@pytest.mark.parametrize("error", [StorageError("no"), RuntimeError("no")], ids=["known", "other"])
async def test_a_notification_that_fails_does_not_fail_the_submit(opened, caplog, error):
    store = opened(prepared_statements=False)

    async def refuse(verb):
        raise error

    store._notifier._perform = refuse
    with caplog.at_level(logging.DEBUG, logger="pulsed.store"):
        assert (await store.submit([a_job()])).new == 1
    assert "will find the jobs by polling" in caplog.text


# -- with the submit -------------------------------------------------------------------------------


def submitting(store, mode):
    """Return what submits jobs through a store, and awaits them in one of two modes."""
    if mode == "async":
        return lambda *jobs: store.submit(jobs)
    return lambda *jobs: asyncio.to_thread(lambda: run_blocking(store.submit(jobs)))


MODES = pytest.mark.parametrize("mode", ["async", "blocking"])
KINDS = pytest.mark.parametrize(
    "some_jobs",
    [
        lambda: [a_job()],
        lambda: [a_job(), a_job()],
        lambda: [a_job(key=str(new_job_id()))],
        lambda: [a_job(tags=("a",))],
    ],
    ids=["one", "many", "key", "tags"],
)


@MODES
@KINDS
async def test_who_is_notified_finds_the_jobs(opened, postgres_url, mode, some_jobs):
    """The notification follows the commit, and needs no other submit after it."""
    producer = opened()
    looking = await asyncpg.connect(postgres_url)
    try:
        async with listening(opened(), "default") as (bell, _):
            for _ in range(3):
                jobs = some_jobs()
                await submitting(producer, mode)(*jobs)
                await bell.rung()
                query = "SELECT count(*) FROM pulse_jobs WHERE id = ANY ($1)"
                assert await looking.fetchval(query, [job.id for job in jobs]) == len(jobs)
                await asyncio.sleep(2 * AT_MOST_EVERY)
    finally:
        await looking.close()


@MODES
@KINDS
async def test_a_follow_up_that_fails_does_not_fail_the_submit(opened, caplog, mode, some_jobs):
    store, jobs = opened(), some_jobs()
    store._notifier._channel = "c" * 64  # too long for PostgreSQL
    submit = submitting(store, mode)
    with caplog.at_level(logging.DEBUG, logger="pulsed.store"):
        assert (await submit(*jobs)).new == len(jobs)
        await until(lambda: "will find the jobs by polling" in caplog.text)
    assert "channel name too long" in caplog.text
    assert len(await store.get([job.id for job in jobs])) == len(jobs)  # a transaction apart
    assert (await submit(a_job())).new == 1


@MODES
async def test_what_a_failed_submit_may_have_stored_is_announced(opened, monkeypatch, mode):
    """Its answer may be lost. And it may have taken over what another one owed."""
    store = opened()
    monkeypatch.setattr(store._notifier, "_see_to_it", lambda: None)

    async def fail(*_args, **_options):
        raise StorageError("no")

    monkeypatch.setattr(store, "run", fail)
    with pytest.raises(StorageError):
        await submitting(store, mode)(a_job(queue="mail"), a_job(queue="later", delay=60))
    assert store._notifier._owed == {"mail"}


async def test_a_follow_up_whose_loop_ends_is_owed(opened, monkeypatch):
    store = opened()
    monkeypatch.setattr(store._notifier, "_see_to_it", lambda: None)
    store._notifier.follow_up({"mail"}, is_burst=True).failed(asyncio.CancelledError())
    assert store._notifier._owed == {"mail"}


async def test_a_follow_up_has_the_slot_of_its_connection(opened):
    """Otherwise a pool of one would open a second connection for the next caller."""
    store = opened(pool_size=1)
    for _ in range(10):
        await store.submit([a_job()])
        await asyncio.sleep(2 * AT_MOST_EVERY)  # so that the next one has a follow-up, in a task
    (pool,) = store._loops._kept.values()
    assert len(pool._lanes[Lane.WORK].opened) == 1
