"""Limits as programs and people use them: handlers, ``app.limits``, the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pulsed import Limit, Pulse, Rate
from pulsed.engine.held_back import held_back
from pulsed.engine.upkeep.scheduler import with_limit_keys
from pulsed.errors import InvalidHandler, InvalidOption
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.ids import new_job_id
from pulsed.model.job import NewJob
from pulsed.model.limit import LimitRule
from pulsed.model.schedule import Overlap
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.store.blocking import run_blocking
from pulsed.store.schedules import Fire
from pulsed.store.sqlite.store import SqliteStore
from tests.support.commands import run as cli
from tests.support.jobs import claim
from tests.support.raw_streams import raw_client
from tests.support.schedules import a_spec
from tests.support.servers import ServerThread
from tests.support.workers import NEVER, all_finished, until


def declared(app: Pulse) -> None:
    """Declare the limits of an app, as its worker does at its start."""
    run_blocking(app.store.controls.declare(ControlScope.LIMIT, app.registry.limits()))


def key_of(app: Pulse, job: Any) -> str | None:
    return run_blocking(app.store.get([job.id]))[job.id].limit_key


def test_jobs_get_their_key_however_they_are_enqueued(app):
    @app.job(limit=Limit("openai", per="tenant", running=2))
    def ask(prompt: str, tenant: str = "free") -> None: ...

    @app.job(sequential=True)
    def ordered() -> None: ...

    @app.job(limit=3)
    def plain() -> None: ...

    assert key_of(app, ask.enqueue("?", tenant="acme")) == "openai,acme"
    assert key_of(app, ask.enqueue("?")) == "openai,free"
    (one, other) = ask.enqueue_many([("?", "a"), ask.bind("?", tenant="b")])
    assert [key_of(app, one), key_of(app, other)] == ["openai,a", "openai,b"]
    assert key_of(app, app.enqueue("ask", {"prompt": "?", "tenant": "c"})) == "openai,c"
    assert key_of(app, ordered.enqueue()) == "ordered"
    assert key_of(app, plain.enqueue()) == "plain"


def test_the_jobs_of_a_schedule_have_their_key(app):
    @app.job(limit=Limit(running=1, per="tenant"))
    def ask(tenant: str) -> None: ...

    app.schedules.put("daily", ask.bind("acme"), cron="@daily")
    behind_a_server = None  # it does not know the code: a worker computes the key
    expected = behind_a_server if app.store.is_remote else "ask,acme"
    assert key_of(app, app.schedules.run_now("daily")) == expected


def test_what_a_schedule_fires_has_its_key():
    row: Any = SimpleNamespace(spec=SimpleNamespace(topic="ask"))
    job = NewJob(id=new_job_id(), topic="ask", payload='{"tenant": "acme"}')
    what: Any = None
    fire = Fire(row, what, [job], Overlap.ALLOW)
    (keyed,) = with_limit_keys(fire, {"ask": LimitRule("mail", "tenant")}).jobs
    assert keyed.limit_key == "mail,acme"
    assert with_limit_keys(fire, {}).jobs == [job]


async def test_what_a_server_fires_has_its_key_by_the_rules_of_connected_workers(database):
    """It has no code; this worker claims nothing, so only the fire can have written the key."""
    topic = pb.Topic(name="ask", limit_name="mail", limit_per="tenant")
    due = datetime.now(UTC) - timedelta(minutes=1)
    with ServerThread(lambda: SqliteStore(database), poll=NEVER) as server:
        async with raw_client(server.host) as client:
            stream = client.stream()
            hello = pb.Hello(worker_id=str(stream.worker_id), queues=["default"], topics=[topic])
            await stream.call.write(pb.StreamJobsRequest(hello=hello))
            await until(server.server.dispatcher.limit_rules)
            spec = a_spec(topic="ask", payload='{"tenant": "acme"}', at=due)
            server.do(lambda its: its.store.schedules.put("default", "s", spec))
            (fired,) = server.do(lambda its: its._scheduler.tick())
            stream.call.cancel()
            await until(lambda: not server.server.dispatcher.limit_rules())
    assert fired.limit_key == "mail,acme"


@pytest.mark.parametrize(
    "options",
    [
        {"limit": "five"},
        {"limit": 0},
        {"limit": True},
        {"limit": Limit(running=1, per="nobody")},
        {"limit": 1, "sequential": True},
        {"sequential": "nobody"},
        {"sequential": 7},
    ],
)
def test_a_limit_that_does_not_fit_the_handler_is_refused(app, options):
    with pytest.raises(InvalidHandler):

        @app.job(**options)
        def ask(tenant: str) -> None: ...


def test_one_limit_has_one_set_of_numbers(app):
    @app.job(limit=Limit("openai", running=2))
    def one() -> None: ...

    @app.job(limit=Limit("openai", running=2))
    def same() -> None: ...

    with pytest.raises(InvalidHandler, match="two sets of numbers"):

        @app.job(limit=Limit("openai", running=3))
        def other() -> None: ...


async def test_a_worker_declares_its_limits_before_it_claims(app):
    at_once, most = 0, 0

    @app.job(limit=Limit("shared", running=2))
    async def ask(n: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1

    jobs = await ask.aenqueue_many([(n,) for n in range(10)])
    worker = app.worker(concurrency=8, poll=0.05)
    running = asyncio.create_task(worker.run())
    await all_finished(app.store, [job.id for job in jobs])
    worker.stop()
    await running
    assert most <= 2
    (limit,) = await app.limits.alist()
    assert (limit.name, limit.declared) == ("shared", Numbers(running=2))
    assert (limit.running, limit.waiting) == (0, 0)


def test_app_limits_shows_and_changes_them(app):
    @app.job(limit=Limit("openai", running=2, per="tenant", rate=Rate(60, per=60)))
    def ask(tenant: str) -> None: ...

    declared(app)
    ask.enqueue_many([("a",), ("a",), ("b",)])
    policies = app.registry.policies()
    (run,) = run_blocking(claim(app.store, topics=policies, limit=1))
    (limit,) = app.limits.list()
    assert (limit.running, limit.waiting, limit.keys) == (1, 2, ())
    limit = app.limits.get("openai")
    held = {key.value: (key.running, key.waiting) for key in limit.keys}
    assert held == {"a": (1, 1), "b": (0, 1)}
    (holder,) = [key for key in limit.keys if key.value == "a"]
    assert holder.holders == (str(run.job_id),)
    app.limits.override("openai", running=1)
    assert app.limits.get("openai").numbers == Numbers(running=1, rate=Rate(60, per=60))
    app.limits.override("openai", rate=None)
    assert app.limits.get("openai").numbers == Numbers(running=1)
    app.limits.clear("openai")
    assert app.limits.get("openai").override is None
    app.limits.pause("openai")
    assert run_blocking(claim(app.store, topics=policies)) == []
    app.limits.resume("openai")
    acts = [entry.act for entry in app.audit.list()]
    assert acts == ["resume limit", "pause limit", "clear limit", "limit limit", "limit limit"]
    with pytest.raises(InvalidOption):
        app.limits.override("openai")


def test_why_says_who_holds_the_limit_and_until_when_a_rate(app):
    @app.job(sequential="tenant")
    def ask(tenant: str) -> None: ...

    @app.job(limit=Limit(rate=Rate(1, per=60)))
    def call() -> None: ...

    declared(app)
    first, second = ask.enqueue("a"), ask.enqueue("a")
    call.enqueue()
    throttled = call.enqueue()
    run_blocking(claim(app.store, topics=app.registry.policies()))

    def reasons(job: Any) -> list[str]:
        row = run_blocking(app.store.get([job.id]))[job.id]
        return run_blocking(held_back(app.store, row, run_blocking(app.store.now())))

    (held,) = reasons(second)
    assert str(first.id) in held
    (rate,) = reasons(throttled)
    assert "the next may start in" in rate
    app.limits.pause("ask")
    (paused,) = reasons(second)
    assert paused.startswith("its limit 'ask' was paused by ")
    assert paused.endswith(" ago: resume it with `pulsed limits resume ask`")


def test_jobs_are_found_by_the_key_of_their_limit(app):
    store = app.store
    run_blocking(store.submit([_job("mail,a"), _job("mail,a"), _job("mail,b"), _job(None)]))
    assert len(app.jobs.list(limit_key="mail,a")) == 2
    with pytest.raises(InvalidOption):
        app.jobs.list(limit_key=7)


def _job(key: str | None) -> NewJob:
    return NewJob(id=new_job_id(), topic="t", payload="{}", limit_key=key)


def test_limits_on_the_command_line(app, url):
    @app.job(limit=Limit("openai", running=2))
    def ask() -> None: ...

    declared(app)
    ask.enqueue()
    listed = cli("limits", "list", "--json", "--url", url)
    shown = json.loads(listed.stdout)
    assert (shown["name"], shown["waiting"]) == ("openai", 1)
    assert (
        cli("limits", "set", "openai", "--running", "5", "--rate", "60/1m", "--url", url).exit_code
        == 0
    )
    assert app.limits.get("openai").numbers == Numbers(running=5, rate=Rate(60, per=60))
    assert '"override":{' in cli("limits", "list", "--url", url).stdout
    assert cli("limits", "show", "openai", "--url", url).exit_code == 0
    assert cli("limits", "pause", "openai", "--url", url).exit_code == 0
    assert app.limits.get("openai").paused
    assert cli("limits", "resume", "openai", "--url", url).exit_code == 0
    assert cli("limits", "clear", "openai", "--url", url).exit_code == 0
    assert cli("limits", "set", "openai", "--url", url).exit_code == 2
    assert cli("limits", "set", "openai", "--rate", "fast", "--url", url).exit_code == 2
    assert cli("limits", "set", "openai", "--running", "-1", "--url", url).exit_code == 2
