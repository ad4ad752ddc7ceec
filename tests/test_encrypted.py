"""A codec: the database and a server see nothing of what user code writes; workers see it all."""

import asyncio
import inspect
import json
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from examples import encrypted as example
from pulsed import (
    CodecContext,
    CodecError,
    Context,
    Job,
    JobFailed,
    NoRetry,
    Pulse,
    Status,
    StepFailed,
    collect_all,
)
from pulsed.engine.upkeep.scheduler import Scheduler
from pulsed.errors import InvalidPayload, StorageError
from pulsed.handler.envelope import Envelopes, is_envelope, plain_value, readable
from pulsed.handler.payload import MAX_PAYLOAD, MAX_TEXT
from pulsed.model.backoff import Backoff
from pulsed.model.ids import new_job_id
from pulsed.store.blocking import run_blocking
from pulsed.store.encoded import bare
from pulsed.store.encoded.data import UserData
from pulsed.store.encoded.store import (
    EncodedRollups,
    EncodedSchedules,
    EncodedStore,
    EncodedStreams,
    EncodedSubmitter,
    EncodedTransaction,
    EncodedWorkflows,
    members,
)
from pulsed.store.workflows import WorkflowStore
from tests.support.apps import working
from tests.support.backends import Backend
from tests.support.commands import run
from tests.support.workers import until

SECRET = "4111-1111-1111-1111"
KEY, OTHER = Fernet.generate_key(), Fernet.generate_key()
HERE = CodecContext("payload", "t")


class Ferny:
    """The shortest codec there is: Fernet, with any number of keys."""

    def __init__(self, *keys: bytes, accepts_plain: bool = True) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])
        self.accepts_plain = accepts_plain

    def encode(self, text: str, context: CodecContext) -> str:
        return self._fernet.encrypt(bytes(context) + b"|" + text.encode()).decode()

    def decode(self, text: str, context: CodecContext) -> str:
        where, _, plain = self._fernet.decrypt(text.encode()).partition(b"|")
        if where != bytes(context):
            raise InvalidToken
        return plain.decode()


def everything_in(backend: Backend) -> str:
    """Return all that the database has: each value of each table, and the bytes of its files."""
    found = []
    with closing(backend.connect()) as connection:
        for (table,) in connection.execute(backend.tables).fetchall():
            found += [str(row) for row in connection.execute(f"SELECT * FROM {table}").fetchall()]
    files = getattr(getattr(backend, "behind", backend), "path", None)
    if files is not None:
        parts = [each for each in files.parent.iterdir() if each.name.startswith(files.name)]
        found += [each.read_bytes().decode("latin-1") for each in parts]
    return "\n".join(found)


def declare(app: Pulse) -> dict[str, Any]:
    """Declare handlers that write the secret wherever user code can write."""

    @app.job(backoff=Backoff.fixed(0), max_attempts=2, key="card-{n}")
    async def fail(card: str, n: int) -> None:
        raise ValueError(f"no money on {card}")

    @app.job
    async def child(card: str) -> str:
        if card.endswith("!"):
            raise NoRetry(f"bad card {card}")
        return card

    @app.job
    async def order(ctx: Context, card: str) -> list[str]:
        await ctx.aprogress({"note": card})
        await ctx.aemit({"line": card})

        async def pay(number: str) -> str:
            return f"paid with {number}"

        async def refuse(number: str) -> None:
            raise ValueError(f"refused {number}")

        async def pay_in_transaction(_: Any, number: str) -> str:
            return f"paid with {number}"

        paid = await ctx.step(pay, card)
        with suppress(StorageError):  # behind a server there are none
            assert card in await ctx.step(pay_in_transaction, card, tx=True)
        try:
            await ctx.step(refuse, card, retry=1)
        except StepFailed as error:
            refused = str(error)
        family = await ctx.fan_out(
            [child.bind(card=card), child.bind(card=f"{card}!")], strategy=collect_all
        )
        told = await ctx.wait_signal("go", str)

        async def begin() -> str:
            return str((await child.aenqueue(card=card)).id)

        other = await ctx.wait_for(await ctx.step(begin))
        return [paid, refused, *family.values, str(family.failures[0].error), told, other]

    return {"fail": fail, "child": child, "order": order}


async def _signal_when_waiting(job: Job[Any]) -> None:
    async def waits() -> bool:
        return (await job.arefresh()).row.wait_kind == "SIGNAL"

    await until(waits)
    await job.asignal("go", f"go with {SECRET}")


async def test_after_a_busy_session_no_table_has_the_secret(backend):
    url = backend.app_url
    async with Pulse(url, codec=Ferny(KEY)) as app:
        jobs = declare(app)
        app.schedule("nightly", jobs["child"].bind(card=SECRET), cron="0 3 * * *")
        async with working(app):
            order = await jobs["order"].aenqueue(card=SECRET)
            many = await jobs["child"].aenqueue_many([(SECRET,), jobs["child"].bind(card=SECRET)])
            by_name = await app.aenqueue("child", {"card": SECRET})
            failed = await jobs["fail"].aenqueue(card=SECRET, n=7)
            await _signal_when_waiting(order)
            results = await order.aresult(30)
            assert [await each.aresult(30) for each in (*many, by_name)] == [SECRET] * 3
            with pytest.raises(JobFailed, match=f"no money on {SECRET}"):
                await failed.aresult(30)
            await until(app.schedules.alist)
            fired = await app.schedules.arun_now("nightly")
            assert await fired.aresult(30) == SECRET
            await app.jobs.aedit_and_retry(failed.id, {"card": f"new {SECRET}", "n": 7})
            with pytest.raises(JobFailed, match=f"no money on new {SECRET}"):
                await failed.aresult(30)
        assert results[0] == f"paid with {SECRET}"
        assert all(SECRET in each for each in results)
        # What the app reads is decoded,
        assert (await order.arefresh()).progress == {"note": SECRET}
        assert order.payload == {"card": SECRET}
        assert [item.value async for item in order.stream()] == [{"line": SECRET}]
        failures = await app.jobs.afailures(failed.id)
        assert all(SECRET in each.error and SECRET in (each.traceback or "") for each in failures)
        [schedule] = await app.schedules.alist()
        assert SECRET in schedule.spec.payload
        assert failed.key == "card-7"  # computed from the arguments, and plain
    # and what is stored is not.
    assert SECRET not in everything_in(backend)
    async with Pulse(url) as plain:
        found = await plain.jobs.aget(order.id)
        assert is_envelope(found.row.payload)
        assert is_envelope((await plain.jobs.aget(failed.id)).row.last_error)
        with pytest.raises(CodecError, match=r"is encrypted.*it has no codec"):
            _ = found.payload
        with pytest.raises(CodecError, match="the key that it was written with"):
            await found.aresult(1)
        with pytest.raises(CodecError, match=r"Item 1 in the stream of job .* is encrypted"):
            await anext(aiter(found.stream()))


def test_a_transaction_of_the_callers_own_stores_no_secret(url, backend):
    if backend.engine == "postgres" or "pulse://" in url:
        pytest.skip("a sqlite3 connection of the caller's own")
    with Pulse(url, codec=Ferny(KEY)) as app, closing(backend.connect()) as connection:
        jobs = declare(app)
        connection.execute("BEGIN")
        job = jobs["child"].using(conn=connection).enqueue(card=SECRET)
        connection.execute("COMMIT")
        assert job.refresh().payload == {"card": SECRET}
    assert SECRET not in everything_in(backend)


# -- keys that are unknown ------------------------------------------------------------------------


def run_once(app: Pulse, job: Job[Any]) -> None:
    """Let a worker try a job once."""

    async def main() -> None:
        before = (await job.arefresh()).row.lease_token

        async def was_tried() -> bool:
            row = (await job.arefresh()).row
            return row.lease_token > before and row.status is not Status.RUNNING

        async with working(app):
            await until(was_tried)
        await app.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("codec", [None, Ferny(OTHER)], ids=["without", "another"])
def test_a_worker_without_the_key_fails_the_run_and_harms_nothing(url, codec):
    with Pulse(url, codec=Ferny(KEY)) as app:
        made = declare(app)["child"].using(backoff=Backoff.fixed(3600)).enqueue(card=SECRET)
    with Pulse(url, codec=codec) as stranger:
        declare(stranger)
        job = stranger.jobs.get(made.id)
        run_once(stranger, job)
        assert job.refresh().status is Status.RETRYING  # as after any other failure
        assert "CodecError: The payload of 'child' is encrypted" in (job.last_error or "")
        assert "Give Pulse(codec=...) the key" in (job.last_error or "")
    with Pulse(url, codec=Ferny(OTHER, KEY)) as app:
        declare(app)
        job = app.jobs.get(made.id)
        app.jobs.run_now(made.id)
        run_once(app, job)
        assert job.refresh().result_value == SECRET


def test_keys_are_rotated_by_putting_the_new_one_first(url):
    with Pulse(url, codec=Ferny(KEY)) as app:
        old = declare(app)["child"].enqueue(card=SECRET)
    with Pulse(url, codec=Ferny(OTHER, KEY)) as app:
        new = declare(app)["child"].enqueue(card=SECRET)
        assert app.jobs.get(old.id).payload == {"card": SECRET}
    with Pulse(url, codec=Ferny(OTHER)) as app:
        assert app.jobs.get(new.id).payload == {"card": SECRET}
        with pytest.raises(CodecError, match="the codec raised InvalidToken"):
            _ = app.jobs.get(old.id).payload


def test_jobs_from_before_the_codec_run_unless_it_refuses_them(url):
    with Pulse(url) as app:
        plain = declare(app)["child"].enqueue(card="1")
    with Pulse(url, codec=Ferny(KEY, accepts_plain=False)) as app:
        found = app.jobs.get(plain.id)
    with pytest.raises(CodecError, match="plain data, which the codec refuses"):
        _ = found.payload
    with Pulse(url, codec=Ferny(KEY)) as app:
        declare(app)
        job = app.jobs.get(plain.id)
        run_once(app, job)
        assert job.refresh().result_value == "1"


def test_a_schedule_that_is_declared_again_is_unchanged(url):
    for effect in ("created", "unchanged"):
        with Pulse(url, codec=Ferny(KEY)) as app:
            app.schedule("nightly", declare(app)["child"].bind(card=SECRET), cron="0 3 * * *")
            done = app.schedules.apply()
            assert getattr(done, effect) == ["nightly"], done
            schedule = app.schedules.edit("nightly", priority=3)
            assert SECRET in schedule.spec.payload
            assert app.schedules.edit("nightly", priority=0).spec.priority == 0


def test_a_schedule_fired_by_a_process_without_the_codec_keeps_its_envelope(url):
    """As a server does, which does the upkeep of remote workers."""
    with Pulse(url, codec=Ferny(KEY)) as app:
        job = declare(app)["child"]
        app.schedules.put("now", job.bind(card=SECRET), at=datetime(2001, 1, 1, tzinfo=UTC))
    with Pulse(url) as plain:

        async def fire() -> None:
            await until(lambda: Scheduler(plain.store).tick())
            await plain.aclose()

        asyncio.run(fire())
    with Pulse(url, codec=Ferny(KEY)) as app:
        assert app.jobs.list()[0].payload == {"card": SECRET}


# -- limits, and codecs that fail -----------------------------------------------------------------


class Bad:
    """A codec that cannot encode what has this word in it, and expands the rest."""

    def encode(self, text: str, context: CodecContext) -> str:
        if "unencodable" in text:
            raise RuntimeError(SECRET)
        return text.encode().hex()

    def decode(self, text: str, context: CodecContext) -> str:
        return bytes.fromhex(text).decode()


def test_the_limits_are_those_of_what_is_stored(url):
    with Pulse(url, codec=Bad()) as app:

        @app.job(max_attempts=1)
        async def echo(text: str, size: int = 0) -> str:
            return text + "x" * size

        with pytest.raises(InvalidPayload, match="bytes once it is encrypted"):
            echo.enqueue("x" * (MAX_PAYLOAD // 2))
        with pytest.raises(CodecError, match="The codec cannot encode the payload of 'echo'"):
            echo.enqueue("unencodable")
        assert app.jobs.list() == []
        large = echo.enqueue("a", size=MAX_PAYLOAD // 2)
        run_once(app, large)
        assert large.refresh().status is Status.DEAD_LETTERED
        assert "bytes once it is encrypted" in (large.last_error or "")


def test_an_error_text_is_cut_until_its_envelope_fits():
    envelopes = Envelopes(Bad())
    sealed = envelopes.text("x" * MAX_TEXT, HERE)
    assert len(sealed) <= MAX_TEXT
    assert "left out" in envelopes.text_in(sealed, HERE)
    told = envelopes.text("unencodable", HERE)
    assert told.startswith("(left out: The codec cannot encode")
    assert SECRET not in told


def test_an_envelope_is_not_put_into_another():
    """One that could not be opened must not be written back as if it had been."""
    envelopes = Envelopes(Bad())
    unreadable = Envelopes(Ferny(KEY)).json_in(envelopes.json("1", HERE), HERE)
    with pytest.raises(CodecError, match="encrypted already"):
        envelopes.json(unreadable, HERE)


def test_a_codec_has_to_return_storable_text():
    class Wrong(Bad):
        def encode(self, text: str, context: CodecContext) -> Any:
            return b"bytes" if text == "1" else "\0"

    for text in "12":
        with pytest.raises(CodecError, match="without NUL"):
            Envelopes(Wrong()).json(text, HERE)


def test_what_is_no_envelope_is_plain():
    assert plain_value("x", '{"a":1}') == {"a": 1}
    assert readable("x", "null") == "null"
    assert not is_envelope(None)
    broken = '{"pulsed:encrypted":'
    with pytest.raises(CodecError):
        readable("x", broken)


def test_a_text_that_was_moved_to_another_job_is_refused():
    envelopes = Envelopes(example.AesGcm({"k": AESGCM.generate_key(256)}))
    here, there = (CodecContext("result", job_id=new_job_id()) for _ in range(2))
    sealed = envelopes.json("1", here)
    assert envelopes.json_in(sealed, here) == "1"
    assert is_envelope(envelopes.json_in(sealed, there))
    assert is_envelope(envelopes.json_in(sealed, here._replace(what="progress")))
    assert is_envelope(envelopes.json_in("1", here))  # plain data is refused there
    assert bytes(CodecContext("payload", "t")) == b"payload:t"


# -- every verb -----------------------------------------------------------------------------------

ENCODED = [EncodedStore, EncodedSubmitter, EncodedWorkflows, EncodedTransaction, EncodedSchedules,
           EncodedRollups, EncodedStreams]  # fmt: skip


@pytest.mark.parametrize("encoded", ENCODED)
def test_every_verb_is_encoded_or_carries_no_user_data(encoded):
    interface = encoded.interface
    own = members(encoded) - {"interface", "passed_on"}
    inherited = {"submit"} if encoded is EncodedStore else set()
    assert own | encoded.passed_on == members(interface) | inherited
    assert not own & encoded.passed_on
    for name in own - {"await_jobs", "schedules", "workflows", "rollups", "streams"}:
        ours, theirs = (inspect.signature(getattr(each, name)) for each in (encoded, interface))
        assert list(ours.parameters) == list(theirs.parameters), name


def test_a_verb_that_is_not_known_is_refused():
    class Fewer(EncodedWorkflows):
        passed_on = frozenset()

    with pytest.raises(AttributeError, match="cascade may carry user data"):
        _ = Fewer(cast("WorkflowStore", object()), cast("UserData", object())).cascade


# -- where it is shown ----------------------------------------------------------------------------


def test_a_command_without_the_app_shows_that_it_is_encrypted(url):
    with Pulse(url, codec=Ferny(KEY)) as app:
        job = declare(app)["child"].enqueue(card=SECRET)
        assert run_blocking(bare(app.store).get([job.id]))[job.id].payload != job.row.payload
    shown = run("jobs", "show", str(job.id), "--format", "table", "--url", url)
    assert shown.exit_code == 0, shown.output
    assert "payload     encrypted" in shown.stdout
    listed = run("jobs", "show", str(job.id), "--json", "--url", url)
    assert "pulsed:encrypted" in json.loads(listed.stdout)["payload"]


def test_the_example_runs(capsys):
    asyncio.run(example.main())
    told = capsys.readouterr().out
    assert 'the database has {"pulsed:encrypted":"2025.' in told
    assert "the worker says charged 995 cents to 4111 1111 1111 1111" in told
