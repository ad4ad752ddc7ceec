"""The API as a user meets it, on real databases and with real workers."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsed import (
    Backoff,
    Call,
    Context,
    JobCancelled,
    JobFailed,
    JobNotFound,
    Pulse,
    ResultTimeout,
    Router,
    Status,
)
from pulsed.errors import (
    CalledInEventLoop,
    ConfigError,
    InvalidArguments,
    InvalidHandler,
    InvalidOption,
    InvalidPayload,
    UnknownTopic,
)
from tests.support.apps import declare_add, declare_fail, work_off, working
from tests.support.backends import Backend


@dataclass
class Parcel:
    weight: float


class TestEnqueue:
    def test_a_worker_may_run_in_any_thread(self, app: Pulse, monkeypatch) -> None:
        add, worker = declare_add(app), app.worker()
        monkeypatch.setattr(app, "worker", lambda **_: worker)
        ended: list[Any] = []
        thread = threading.Thread(target=lambda: ended.append(app.run()))
        thread.start()
        assert add.enqueue(1).result(timeout=30) == 2
        worker.stop()
        thread.join(30)
        assert [how.name for how in ended] == ["DRAINED"]

    def test_a_new_job_is_known_without_reading_it_back(self, app: Pulse) -> None:
        add = declare_add(app)
        job = add.using(tags=["x"], headers={"trace": "1"}, delay=60).enqueue(1, b=2)
        before = (job.id, job.topic, job.status, job.attempts, job.payload, job.queue, job.priority)
        assert before[1:] == ("add", Status.PENDING, 0, {"a": 1, "b": 2}, "default", 0)
        assert (job.tags, job.headers) == (("x",), {"trace": "1"})
        assert job.next_run_at - job.submitted_at == timedelta(seconds=60)

        job.refresh()
        after = (job.id, job.topic, job.status, job.attempts, job.payload, job.queue, job.priority)
        assert after == before
        assert (job.tags, job.headers) == (("x",), {"trace": "1"})
        assert job.next_run_at - job.submitted_at == timedelta(seconds=60)

    def test_what_was_left_out_is_decided_by_the_handler_that_claims(self, app: Pulse) -> None:
        add = declare_add(app)
        assert add.enqueue(1).refresh().max_attempts is None
        assert add.using(max_attempts=9).enqueue(1).refresh().max_attempts == 9

    def test_a_decorated_function_stays_a_function(self, app: Pulse) -> None:
        add = declare_add(app)
        assert add(1, b=4) == 5
        assert add.__name__ == "add"
        assert add.topic == "add"

    def test_using_leaves_the_original_alone(self, app: Pulse) -> None:
        add = declare_add(app)
        urgent = add.using(priority=50).using(queue="fast")
        assert (urgent.enqueue(1).priority, urgent.enqueue(1).queue) == (50, "fast")
        assert (add.enqueue(1).priority, add.enqueue(1).queue) == (0, "default")

    def test_a_later_start_time_overrules_an_earlier_one(self, app: Pulse) -> None:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        add = declare_add(app)
        assert add.using(delay=60).using(at=tomorrow).enqueue(1).refresh().next_run_at == tomorrow
        soon = add.using(at=tomorrow).using(delay=1).enqueue(1).refresh()
        assert soon.next_run_at < tomorrow

    def test_the_lane_comes_from_the_decorator(self, app: Pulse) -> None:
        @app.job(queue="mail", priority=5, topic="post")
        def send(to: str) -> None: ...

        job = send.enqueue("ada").refresh()
        assert (job.topic, job.queue, job.priority) == ("post", "mail", 5)

    def test_at_is_an_instant(self, app: Pulse) -> None:
        add = declare_add(app)
        berlin = datetime.now(UTC).astimezone() + timedelta(hours=1)
        assert add.using(at=berlin).enqueue(1).refresh().next_run_at == berlin

    @pytest.mark.parametrize(
        "enqueue, error",
        [
            (lambda add: add.enqueue("1"), InvalidArguments),
            (lambda add: add.enqueue(), InvalidArguments),
            (lambda add: add.enqueue(1, c=3), InvalidArguments),
            (lambda add: add.using(delay=-1).enqueue(1), InvalidOption),
            (lambda add: add.using(delay=1, at=datetime.now(UTC)), InvalidOption),
            (lambda add: add.using(priorty=1), InvalidOption),
            (lambda add: add.enqueue_many([(1,), (2, "x")]), InvalidArguments),
            (lambda add: add.enqueue_many([{"a": 1}]), InvalidArguments),
            (lambda add: add.enqueue_many(["ab"]), InvalidArguments),
            (lambda add: add.enqueue_many([Call("other", "{}")]), InvalidArguments),
            (lambda add: add.enqueue_iter([], batch=0), InvalidOption),
        ],
    )
    def test_what_is_wrong_fails_at_the_caller_and_stores_nothing(
        self, app: Pulse, enqueue: Callable[[Any], Any], error: type[Exception]
    ) -> None:
        add = declare_add(app)
        with pytest.raises(error):
            enqueue(add)
        assert sum(app.jobs.counts().values()) == 0

    def test_many_take_calls_and_tuples(self, app: Pulse) -> None:
        add = declare_add(app)
        calls = [add.bind(1, b=5), (2,), (3, 4), add.using(priority=7).bind(4)]
        jobs = add.using(queue="bulk", priority=1).enqueue_many(calls)
        assert [job.payload for job in jobs] == [
            {"a": 1, "b": 5},
            {"a": 2},
            {"a": 3, "b": 4},
            {"a": 4},
        ]
        assert [job.refresh().priority for job in jobs] == [1, 1, 1, 7]
        assert app.jobs.counts(queue="bulk")[Status.PENDING] == 4
        assert add.enqueue_many([]) == []

    def test_iter_commits_batch_by_batch_and_reads_no_further(self, app: Pulse) -> None:
        add = declare_add(app)
        taken: list[int] = []

        def source() -> Iterator[tuple[int]]:
            for n in range(25):
                taken.append(n)
                yield (n,)

        ids = add.enqueue_iter(source(), batch=10)
        assert isinstance(next(ids), UUID)
        assert len(taken) == 10
        assert app.jobs.counts()[Status.PENDING] == 10
        assert len({*ids}) == 24
        assert app.jobs.counts()[Status.PENDING] == 25

    @pytest.mark.parametrize("kind", ["iterable", "async iterable"])
    async def test_aiter_reads_no_further_than_its_batch(self, url: str, kind: str) -> None:
        taken: list[int] = []

        def source() -> Iterator[tuple[int]]:
            for n in range(25):
                taken.append(n)
                yield (n,)

        async def asource() -> AsyncIterator[tuple[int]]:
            for call in source():
                yield call

        async with Pulse(url) as app:
            add = declare_add(app)
            ids = add.aenqueue_iter(source() if kind == "iterable" else asource(), batch=10)
            for number in range(25):
                await anext(ids)
                assert len(taken) == min(25, number // 10 * 10 + 10)
            assert [each async for each in ids] == []

    def test_iter_says_how_much_is_stored_when_it_fails(self, app: Pulse) -> None:
        add = declare_add(app)
        with pytest.raises(InvalidArguments) as failed:
            list(add.enqueue_iter([(1,), (2,), (3,), ("x",)], batch=2))
        assert failed.value.__notes__ == ["Stored by the batches before this one: 2 jobs."]
        assert app.jobs.counts()[Status.PENDING] == 2

    async def test_async_twins(self, url: str) -> None:
        async def source() -> AsyncIterator[tuple[int]]:
            for n in range(5):
                yield (n,)

        async with Pulse(url) as app:
            add = declare_add(app)
            assert (await (await add.aenqueue(1)).arefresh()).status == "PENDING"
            assert len(await add.aenqueue_many([(1,), add.bind(2)])) == 2
            assert len([i async for i in add.aenqueue_iter(source(), batch=2)]) == 5
            assert len([i async for i in add.aenqueue_iter([(1,), (2,), (3,)], batch=2)]) == 3
            assert await app.jobs.acounts() == {**dict.fromkeys(Status, 0), Status.PENDING: 11}
            assert len([job async for job in app.jobs.aiterate(topic="add")]) == 11

    async def test_a_blocking_method_under_a_loop_names_its_twin(self, app: Pulse) -> None:
        add = declare_add(app)
        for call, twin in [
            (lambda: add.enqueue(1), "aenqueue"),
            (lambda: add.enqueue_iter([(1,)]), "aenqueue_iter"),
            (app.jobs.list, "alist"),
            (app.run, "arun"),
        ]:
            with pytest.raises(CalledInEventLoop, match=f"await {twin}"):
                call()


class TestOwnTransaction:
    @pytest.mark.embedded("a caller's transaction is not the server's")
    def test_the_job_exists_when_the_callers_transaction_commits(
        self, app: Pulse, backend: Backend
    ) -> None:
        add = declare_add(app)
        app.jobs.counts()  # the tables must be there; a joined enqueue creates none
        with closing(backend.connect()) as mine:
            mine.execute("BEGIN")
            rolled_back = add.using(conn=mine).enqueue(1)
            mine.rollback()
            mine.execute("BEGIN")
            kept = add.using(conn=mine).enqueue_many([(2,), (3,)])
            by_name = app.enqueue("add", {"a": 4}, conn=mine)
            assert app.jobs.counts()[Status.PENDING] == 0
            mine.commit()
        assert {job.id for job in app.jobs.list()} == {job.id for job in (*kept, by_name)}
        with pytest.raises(JobNotFound):
            rolled_back.refresh()

    def test_batches_cannot_join(self, app: Pulse) -> None:
        add = declare_add(app)
        joined = add.using(conn=object())
        with pytest.raises(InvalidOption, match="commits batch by batch"):
            joined.enqueue_iter([(1,)])


class TestByName:
    def test_a_pure_producer_may_name_any_topic(self, app: Pulse) -> None:
        job = app.enqueue("billing.charge", {"amount": 5}, queue="billing", priority=3)
        assert job.refresh().payload == {"amount": 5}
        assert (job.topic, job.queue, job.priority) == ("billing.charge", "billing", 3)

    def test_a_known_topic_checks_its_payload(self, app: Pulse) -> None:
        declare_add(app)
        assert app.enqueue("add", {"a": 1}).payload == {"a": 1}
        for payload in ({"a": "1"}, {}, {"a": 1, "z": 2}):
            with pytest.raises(InvalidArguments, match="'add'"):
                app.enqueue("add", payload)
        with pytest.raises(InvalidPayload, match="must map the names"):
            app.enqueue("add", [1])  # type: ignore[arg-type]
        assert app.jobs.counts()[Status.PENDING] == 1

    def test_an_app_with_handlers_refuses_topics_it_does_not_know(self, app: Pulse) -> None:
        declare_add(app)
        with pytest.raises(UnknownTopic, match="Did you mean 'add'"):
            app.enqueue("ad", {"a": 1})
        assert app.enqueue("ad", {"a": 1}, unknown=True).topic == "ad"

    @pytest.mark.parametrize("topic", ["", "a,b", "a\n", "x" * 201, None])
    def test_a_topic_must_be_a_name(self, app: Pulse, topic: Any) -> None:
        with pytest.raises(InvalidOption, match="topic"):
            app.enqueue(topic)


class TestResults:
    def test_come_back_typed(self, app: Pulse) -> None:
        @app.job
        async def pack(ctx: Context, parcel: Parcel) -> Parcel:
            await ctx.aprogress({"packed": 1})
            return Parcel(parcel.weight + ctx.attempt)

        job = pack.enqueue(Parcel(1.5))
        work_off(app, job)
        assert job.result(timeout=0) == Parcel(2.5)
        assert (job.status, job.attempts, job.is_done) == (Status.SUCCEEDED, 1, True)
        assert job.progress == {"packed": 1}
        assert app.jobs.get(job.id).result(timeout=0) == Parcel(2.5)
        with Pulse(app.url) as stranger:  # no handler here: plain data
            assert stranger.jobs.get(job.id).result(timeout=0) == {"weight": 2.5}

    def test_a_dead_letter_raises_its_error(self, app: Pulse) -> None:
        fail = declare_fail(app)
        job = fail.enqueue("no paper")
        work_off(app, job)
        with pytest.raises(JobFailed, match="attempt 1: RuntimeError: no paper") as failed:
            job.result()
        assert failed.value.job_id == job.id
        (failure,) = app.jobs.failures(job.id)
        assert "RuntimeError" in (failure.traceback or "")

    def test_a_cancelled_job_raises(self, app: Pulse) -> None:
        job = declare_add(app).enqueue(1)
        assert job.result_value is None
        assert (job.cancel(), job.status) == (Status.CANCELLED, Status.CANCELLED)
        with pytest.raises(JobCancelled):
            job.result()

    def test_waiting_can_end_before_the_job(self, app: Pulse) -> None:
        job = declare_add(app).enqueue(1)
        why = r"is still PENDING after 0\.02 s: no worker is alive: start one with `pulsed worker"
        with pytest.raises(ResultTimeout, match=why) as ended:
            job.result(timeout=0.02)
        assert isinstance(ended.value, TimeoutError)
        with pytest.raises(InvalidOption, match="timeout"):
            job.result(timeout=-1)

    async def test_waiting_does_not_block_the_loop(self, url: str) -> None:
        async with Pulse(url) as app:
            add = declare_add(app)
            async with working(app):
                jobs = await add.aenqueue_many([(n, n) for n in range(20)])
                results = await asyncio.gather(*(job.aresult(60) for job in jobs))
                assert [job.result_value for job in jobs] == results
        assert results == [2 * n for n in range(20)]


class TestDeclaring:
    def test_a_topic_is_taken_once(self, app: Pulse) -> None:
        declare_add(app)
        with pytest.raises(InvalidHandler, match="two handlers"):
            declare_add(app)

    def test_a_router_joins_an_app(self, app: Pulse) -> None:
        router = Router()
        add = declare_add(router)
        urgent = add.using(priority=9)
        with pytest.raises(ConfigError, match=r"Call app\.include"):
            add.enqueue(1)
        with pytest.raises(ConfigError, match=r"Call app\.include"):
            add.bind(1)
        app.include(router, prefix="math.")

        @router.job
        def late() -> None: ...

        assert (add.enqueue(1).topic, urgent.enqueue(1).topic) == ("math.add", "math.add")
        assert urgent.enqueue(1).refresh().priority == 9
        assert late.enqueue().topic == "math.late"
        assert {handler.topic for handler in app.registry} == {"math.add", "math.late"}

    def test_a_router_belongs_to_one_app(self, app: Pulse) -> None:
        router = Router()
        app.include(router)
        with pytest.raises(ConfigError, match="part of an app already"):
            Pulse().include(router)

    def test_imports_are_loaded_when_topics_are_needed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pulsed_test_app.py").write_text(
            "import pulsed\napp = pulsed.Pulse('sqlite://', imports=['pulsed_test_jobs'])\n"
        )
        (tmp_path / "pulsed_test_jobs.py").write_text(
            "from pulsed_test_app import app\n@app.job\ndef found(n: int) -> None: ...\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        app: Pulse = importlib.import_module("pulsed_test_app").app
        assert "pulsed_test_jobs" not in sys.modules
        with pytest.raises(InvalidArguments):
            app.enqueue("found", {"n": "x"})
        assert [handler.topic for handler in app.registry] == ["found"]

    def test_an_import_that_is_not_there_is_named_every_time(self) -> None:
        app = Pulse("sqlite://", imports=["pulsed_no_such.module"])
        for _ in range(2):
            with pytest.raises(ConfigError, match="no module 'pulsed_no_such'"):
                app.enqueue("x")

    def test_an_import_that_fails_inside_shows_its_own_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pulsed_test_broken.py").write_text("import pulsed_no_such_thing\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ModuleNotFoundError, match="pulsed_no_such_thing") as failed:
            Pulse("sqlite://", imports=["pulsed_test_broken"]).enqueue("x")
        assert not isinstance(failed.value, ConfigError)


class TestWorking:
    def test_a_worker_refuses_to_start_with_a_bad_hint(self, app: Pulse) -> None:
        class Local: ...

        def job(value: Any) -> None: ...

        job.__annotations__["value"] = Local
        app.job(job)
        with pytest.raises(InvalidHandler, match="Local"):
            app.run()

    def test_a_worker_without_handlers_says_so(self, app: Pulse) -> None:
        with pytest.raises(ConfigError, match="no handlers"):
            app.run()

    @pytest.mark.parametrize("options", [{"queues": "a,b"}, {"queues": []}, {"concurrency": 0}])
    def test_worker_options_are_checked(self, app: Pulse, options: Any) -> None:
        declare_add(app)
        with pytest.raises(InvalidOption):
            app.run(**options)

    async def test_lifespans_surround_the_work_in_order(self, url: str) -> None:
        events: list[str] = []
        async with Pulse(url) as app:

            @app.lifespan
            async def outer(given: Pulse) -> AsyncIterator[None]:
                assert given is app
                events.append("outer up")
                yield
                events.append("outer down")

            @app.lifespan
            @asynccontextmanager
            async def inner(given: Pulse) -> AsyncIterator[None]:
                events.append("inner up")
                yield
                events.append("inner down")

            @app.job
            async def note() -> None:
                events.append("job")

            job = await note.aenqueue()
            async with working(app):
                await job.aresult(60)
        assert events == ["outer up", "inner up", "job", "inner down", "outer down"]

    def test_an_app_can_be_used_again_after_close(self, app: Pulse) -> None:
        add = declare_add(app)
        add.enqueue(1)
        app.close()
        add.enqueue(2)
        assert app.jobs.counts()[Status.PENDING] == 2

    @pytest.mark.skipif(os.name == "nt", reason="signals")
    def test_run_drains_on_a_signal(self, url: str, tmp_path: Path) -> None:
        script = tmp_path / "worker.py"
        script.write_text(
            textwrap.dedent(f"""\
                import asyncio, os, signal
                from pulsed import Pulse
                app = Pulse({url!r})

                @app.job
                async def stop() -> str:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await asyncio.sleep(0.05)
                    return "finished"

                job = stop.enqueue()
                print(app.run(poll=0.02).name, job.result(timeout=0))
                """)
        )
        run = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
        )
        assert (run.stdout.strip(), run.returncode) == ("DRAINED finished", 0), run.stderr
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_retries_follow_the_handlers_policy(self, app: Pulse) -> None:
        @app.job(max_attempts=3, backoff=Backoff.fixed(0))
        def flaky(ctx: Context) -> int:
            if ctx.attempt < 3:
                raise RuntimeError("not yet")
            return ctx.attempt

        job = flaky.enqueue()
        work_off(app, job)
        assert job.result(timeout=0) == 3
        assert [failure.attempt for failure in app.jobs.failures(job.id)] == [1, 2]
