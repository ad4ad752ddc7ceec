"""Schedules as a user meets them: ``app.schedule(...)`` and ``app.schedules``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pulsed import Backoff, Context, Pulse
from pulsed.client.schedules import EDIT_TRIES
from pulsed.engine.upkeep.scheduler import Scheduler
from pulsed.errors import (
    ConfigError,
    InvalidJob,
    InvalidOption,
    PulsedError,
    ScheduleChanged,
    ScheduleNotFound,
)
from pulsed.model.job import Status
from pulsed.model.schedule import CatchUp, Overlap, ScheduleState, occurrence_id
from pulsed.store.blocking import run_blocking
from tests.support.apps import declare_add, work_off

PAST = datetime(2026, 1, 1, tzinfo=UTC)
FAR = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def app(url):
    with Pulse(url) as app:
        app.add = declare_add(app)  # type: ignore[attr-defined]
        yield app


def fire_due(app: Pulse) -> list[Any]:
    return run_blocking(Scheduler(app.store).tick())


# -- declaring ------------------------------------------------------------------------------------


def test_declaring_does_no_io_and_says_what_is_wrong(tmp_path):
    app = Pulse(f"sqlite:///{tmp_path}/none/jobs.db")
    add = declare_add(app)
    app.schedule("good", add.bind(1), every=60)
    with pytest.raises(InvalidOption, match="minute field"):
        app.schedule("bad", add.bind(1), cron="61 * * * *")
    with pytest.raises(InvalidJob):
        app.schedule("unbound", add, every=60)  # an argument is missing
    with pytest.raises(ConfigError, match="declared twice"):
        app.schedule("good", add.bind(2), every=60)
    app.schedule("bad", add.bind(1), every=60)  # the name is still free
    assert list(tmp_path.iterdir()) == []


def test_a_decorator_declares_and_returns_the_job(url):
    with Pulse(url) as app:

        @app.schedule("nightly", cron="0 3 * * *", tz="Europe/Berlin", queue="q")
        @app.job
        def clean() -> int:
            return 7

        assert clean() == 7
        assert app.schedules.apply().created == ["nightly"]
        schedule = app.schedules.get("nightly")
        assert (schedule.topic, schedule.spec.queue) == ("clean", "q")
        assert schedule.zone.key == "Europe/Berlin"
        with pytest.raises(InvalidJob):

            @app.schedule("unbound", every=60)  # type: ignore[type-var]
            @app.job
            def needs(a: int) -> int:
                return a


def test_sync_says_what_it_did(url):
    def declared(**schedules: dict[str, Any]) -> Pulse:
        app = Pulse(url, name="mine")
        add = declare_add(app)
        for name, when in schedules.items():
            app.schedule(name, add.bind(1), **when)
        return app

    with declared(a={"every": 60}, b={"every": 60}, c={"every": 60}) as app:
        assert app.schedules.apply() == (["a", "b", "c"], [], [], [])
        assert app.schedules.apply() == ([], [], ["a", "b", "c"], [])
        app.schedules.put("by_hand", "add", every=60, payload={"a": 1})
    with Pulse(url, name="other") as other:
        add = declare_add(other)
        other.schedule("theirs", add.bind(1), every=60)
        assert other.schedules.apply() == (["theirs"], [], [], [])
    with declared(a={"every": 60}, b={"every": 61}, d={"every": 60}) as app:
        assert app.schedules.apply() == (["d"], ["b"], ["a"], ["c"])
        assert app.schedules.get("c").state is ScheduleState.ACTIVE
        assert app.schedules.apply(pause_removed=True).removed == ["c"]
        states = {each.name: str(each.state) for each in app.schedules.list()}
        assert states == {
            "a": "ACTIVE",
            "b": "ACTIVE",
            "by_hand": "ACTIVE",
            "c": "PAUSED",
            "d": "ACTIVE",
        }
        assert {each.name for each in app.schedules.list(all_apps=True)} == {*states, "theirs"}


def test_an_edit_by_hand_lasts_until_the_declaration_is_written_again(app):
    app.schedule("s", app.add.bind(1), every=60)
    app.schedules.apply()
    app.schedules.edit("s", every=90)
    assert app.schedules.get("s").spec.every == 90_000_000
    assert app.schedules.apply().changed == ["s"]
    assert app.schedules.get("s").spec.every == 60_000_000


# -- putting, editing -----------------------------------------------------------------------------


def test_put_takes_a_job_a_bound_job_and_a_topic(app):
    @app.job(queue="q", priority=3)
    def plain() -> None: ...

    by_job = app.schedules.put("job", plain, every=60)
    assert (by_job.topic, by_job.spec.queue, by_job.spec.priority) == ("plain", "q", 3)
    bound = app.schedules.put("bound", app.add.bind(1, b=2), every=60)
    assert json.loads(bound.spec.payload) == {"a": 1, "b": 2}
    named = app.schedules.put("named", "add", every=60, payload={"a": 1})
    assert json.loads(named.spec.payload)["a"] == 1
    using = app.schedules.put("using", app.add.using(priority=9).bind(1), every=60)
    assert using.spec.priority == 9


def test_every_option_is_kept(app):
    options: dict[str, Any] = {
        "cron": "@hourly",
        "tz": "Europe/Berlin",
        "catch_up": "all",
        "limit": 5,
        "overlap": "skip",
        "jitter": timedelta(seconds=30),
        "start": PAST,
        "end": FAR,
        "queue": "q",
        "priority": 3,
        "max_attempts": 7,
        "backoff": Backoff.fixed(3),
        "timeout": 5,
        "lease": timedelta(seconds=9),
        "headers": {"h": "1"},
        "tags": ["x", "y"],
    }
    spec = app.schedules.put("s", app.add.bind(1), **options).spec
    assert (spec.cron, spec.zone, spec.limit, spec.jitter) == ("0 * * * *", "Europe/Berlin", 5, 30)
    assert (spec.catch_up, spec.overlap) == (CatchUp.ALL, Overlap.SKIP)
    assert (spec.start, spec.end, spec.queue, spec.priority) == (PAST, FAR, "q", 3)
    assert (spec.max_attempts, spec.timeout, spec.lease) == (7, 5, 9)
    assert (spec.backoff, spec.headers, spec.tags) == (Backoff.fixed(3), {"h": "1"}, ("x", "y"))
    edited = app.schedules.edit("s", priority=4).spec
    assert edited.priority == 4
    assert edited.times == spec.times
    assert (edited.backoff, edited.tags, edited.limit) == (spec.backoff, spec.tags, 5)


def test_the_texts_of_other_crons_are_stored_as_what_they_mean(app):
    often = app.schedules.put("often", app.add.bind(1), cron="@every 1h30m")
    assert (often.spec.cron, often.spec.every) == (None, 90 * 60 * 1_000_000)
    assert often.description == "Every 1 hour 30 minutes"
    morning = app.schedules.put("am", app.add.bind(1), cron="CRON_TZ=Europe/Berlin 0 9 * * *")
    assert (morning.spec.cron, morning.spec.zone) == ("0 9 * * *", "Europe/Berlin")
    assert morning.description == "At 09:00 every day (Europe/Berlin)"
    assert app.schedules.edit("am", cron="0 8 * * *").zone.key == "Europe/Berlin"
    assert app.schedules.edit("am", cron="TZ=Asia/Tokyo 0 8 * * *").zone.key == "Asia/Tokyo"
    assert app.schedules.edit("am", cron="@every 5m").spec.every == 300 * 1_000_000


@pytest.mark.parametrize("year", [1, 999, 9001, 9999])
def test_an_instant_that_stores_read_differently_is_refused(app, year):
    """Some drivers take the first and the last of all instants for infinity, and others do not."""
    edge = datetime(year, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidOption, match="between the years 1000 and 9000"):
        app.schedules.put("edge", app.add.bind(1), at=edge)
    with pytest.raises(InvalidOption, match="between the years 1000 and 9000"):
        app.schedules.put("edge", app.add.bind(1), every=60, end=edge)


def test_an_instant_of_long_ago_is_due_at_once(app):
    app.schedules.put("old", app.add.bind(1), at=datetime(1000, 1, 1, tzinfo=UTC))
    assert len(fire_due(app)) == 1
    assert app.schedules.get("old").state is ScheduleState.DONE


def test_an_edit_keeps_what_it_does_not_name_and_another_kind_replaces_the_kind(app):
    app.schedules.put("s", app.add.bind(1), every=60, queue="q", catch_up="skip")
    spec = app.schedules.edit("s", cron="0 9 * * *", tz="Asia/Kathmandu").spec
    assert (spec.every, spec.cron, spec.zone) == (None, "0 9 * * *", "Asia/Kathmandu")
    assert (spec.queue, spec.catch_up) == ("q", CatchUp.SKIP)
    assert app.schedules.edit("s", cron="0 8 * * *").spec.zone == "Asia/Kathmandu"
    assert json.loads(app.schedules.edit("s", payload={"a": 2}).spec.payload)["a"] == 2
    back = app.schedules.edit("s", every=timedelta(minutes=5)).spec
    assert (back.cron, back.zone, back.every) == (None, "UTC", 300_000_000)
    once = app.schedules.edit("s", at=FAR)
    assert (once.spec.every, once.next_run_at) == (None, FAR)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of"),
    ({"every": 60, "cron": "* * * * *"}, "exactly one of"),
    ({"every": 60, "at": FAR}, "exactly one of"),
    ({"every": 0}, "every"),
    ({"every": -5}, "every"),
    ({"every": float("nan")}, "every"),
    ({"every": "60"}, "every"),
    ({"every": True}, "every"),
    ({"every": 60, "tz": "Europe/Berlin"}, "tz= is for cron="),
    ({"at": FAR, "tz": "Europe/Berlin"}, "tz= is for cron="),
    ({"cron": "* * * *"}, "4 fields"),
    ({"cron": "* 25 * * *"}, "hour field '25'"),
    ({"cron": "* * 32 * *"}, "day-of-month field '32'"),
    ({"cron": "0 0 30 2 *"}, "30 2"),
    ({"cron": 5}, "cron must be a text"),
    ({"cron": "@never"}, "nickname"),
    ({"cron": "* * * * *", "tz": "Mars/Base"}, "no time zone"),
    ({"at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
    ({"at": "tomorrow"}, "at must be a datetime"),
    ({"every": 60, "start": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
    ({"every": 60, "end": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
    ({"every": 60, "start": FAR, "end": PAST}, "start= must not be later"),
    ({"every": 60, "end": PAST}, "never run"),
    ({"at": FAR, "start": PAST}, "start= and end= bound"),
    ({"every": 60, "catch_up": "some"}, "catch_up must be"),
    ({"every": 60, "overlap": "maybe"}, "overlap must be"),
    ({"every": 60, "limit": 5}, "limit= bounds"),
    ({"every": 60, "catch_up": "one", "limit": 5}, "limit= bounds"),
    ({"every": 60, "catch_up": "all", "limit": 0}, "limit"),
    ({"every": 60, "catch_up": "all", "limit": 1.5}, "limit"),
    ({"every": 60, "jitter": -1}, "jitter"),
    ({"every": 60, "jitter": float("inf")}, "jitter"),
    ({"every": 60, "delay": 5}, "delay="),
    ({"every": 60, "conn": 1}, "conn="),
    ({"every": 60, "priority": 10**9}, "priority"),
    ({"every": 60, "max_attempts": 0}, "max_attempts"),
    ({"every": 60, "queue": ""}, "queue"),
    ({"every": 60, "evry": 60}, "evry"),
    ({"every": 60, "payload": {"a": 1}}, "payload="),
]


@pytest.mark.parametrize("options, said", BAD_OPTIONS, ids=lambda value: str(value)[:50])
def test_a_bad_option_is_refused_with_a_reason_and_changes_nothing(app, options, said):
    with pytest.raises(PulsedError, match=said):
        app.schedules.put("s", app.add.bind(1), **options)
    assert app.schedules.list() == []
    before = app.schedules.put("s", app.add.bind(1), every=3600).row
    with pytest.raises(PulsedError, match=said):
        app.schedules.put("s", app.add.bind(1), **options)
    assert app.schedules.get("s").row == before


@pytest.mark.parametrize("target", [None, 5, print, "", "unknown topic?"])
def test_what_is_no_job_cannot_be_scheduled(app, target):
    with pytest.raises(PulsedError):
        app.schedules.put("s", target, every=60)
    assert app.schedules.list() == []


def test_options_bound_to_the_job_that_make_no_sense_for_a_schedule(app):
    for options in ({"delay": 5}, {"at": FAR}):
        with pytest.raises(InvalidOption):
            app.schedules.put("s", app.add.using(**options).bind(1), every=60)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 300, None, 5])
def test_a_bad_name_is_refused(app, name):
    with pytest.raises(PulsedError):
        app.schedules.put(name, app.add.bind(1), every=60)
    with pytest.raises(PulsedError):
        app.schedule(name, app.add.bind(1), every=60)


def test_a_producer_schedules_topics_that_it_does_not_know(url):
    with Pulse(url) as app:
        assert app.schedules.put("s", "elsewhere", every=60, payload={"x": 1}).topic == "elsewhere"


@pytest.mark.parametrize("act", ["get", "pause", "resume", "delete", "run_now", "fires", "next"])
def test_a_schedule_that_is_not_there(app, act):
    with pytest.raises(ScheduleNotFound, match="no schedule 'none'"):
        getattr(app.schedules, act)("none")
    with pytest.raises(ScheduleNotFound):
        app.schedules.edit("none", every=60)


# -- what it does ---------------------------------------------------------------------------------


def test_an_instant_in_the_past_runs_now_and_the_handler_knows_why(app):
    @app.job
    def tell(ctx: Context) -> list[str]:
        return [str(ctx.schedule_id), str(ctx.occurrence)]

    schedule = app.schedules.put("s", tell, at=PAST)
    (made,) = fire_due(app)
    job = app.jobs.get(made.id)
    work_off(app, job)
    assert app.jobs.get(made.id).result(0) == [str(schedule.id), str(PAST)]
    after = app.schedules.get("s")
    assert (after.state, after.next_run_at, after.next()) == (ScheduleState.DONE, None, [])
    assert after.last_occurrence == PAST
    (fire,) = app.schedules.fires("s")
    assert (fire.job_id, fire.occurrence, fire.status) == (made.id, PAST, Status.SUCCEEDED)
    assert fire.job_id == occurrence_id(schedule.id, PAST)
    assert fire.fired_at > PAST


def test_a_job_without_a_schedule_has_no_occurrence(app):
    @app.job
    def tell(ctx: Context) -> list[str]:
        return [str(ctx.schedule_id), str(ctx.occurrence)]

    job = tell.enqueue()
    work_off(app, job)
    assert job.result(0) == ["None", "None"]


def between_look_and_write(app: Pulse, monkeypatch, act: Callable[[], object], times: int) -> None:
    """Let another process act while an edit is being decided, so many times."""
    write = app.store.schedules.put

    async def later(*args: Any, **options: Any) -> Any:
        nonlocal times
        if times > 0:
            times -= 1
            with ThreadPoolExecutor(1) as thread:
                thread.submit(act).result()
        return await write(*args, **options)

    monkeypatch.setattr(app.store.schedules, "put", later)


@pytest.fixture
def somebody(url):
    with Pulse(url) as app:
        yield app


def test_two_who_edit_different_options_at_once_lose_nothing(app, somebody, monkeypatch):
    app.schedules.put("s", app.add.bind(1), every=60)
    between_look_and_write(app, monkeypatch, lambda: somebody.schedules.edit("s", queue="mail"), 1)
    edited = app.schedules.edit("s", priority=7)
    assert (edited.spec.queue, edited.spec.priority) == ("mail", 7)
    assert app.schedules.get("s").row == edited.row


def test_an_edit_does_not_bring_a_deleted_schedule_back(app, somebody, monkeypatch):
    app.schedules.put("s", app.add.bind(1), every=60)
    between_look_and_write(app, monkeypatch, lambda: somebody.schedules.delete("s"), 1)
    with pytest.raises(ScheduleNotFound):
        app.schedules.edit("s", priority=7)
    assert app.schedules.list() == []


def test_an_edit_that_others_overtake_again_and_again_gives_up(app, somebody, monkeypatch):
    app.schedules.put("s", app.add.bind(1), every=60)
    numbers = itertools.count(1)

    def go_on() -> None:
        somebody.schedules.edit("s", priority=next(numbers))

    between_look_and_write(app, monkeypatch, go_on, EDIT_TRIES)
    with pytest.raises(ScheduleChanged, match="read it again"):
        app.schedules.edit("s", queue="mail")
    spec = app.schedules.get("s").spec
    assert (spec.queue, spec.priority) == ("default", EDIT_TRIES)


def test_run_now_makes_a_job_of_the_schedule_and_leaves_the_cursor(app):
    before = app.schedules.put("s", app.add.bind(1, b=5), every=3600, tags=["x"])
    jobs = [app.schedules.run_now("s"), app.schedules.run_now("s")]
    assert jobs[0].id != jobs[1].id
    work_off(app, *jobs)
    assert [job.result(0) for job in jobs] == [6, 6]
    assert app.schedules.get("s").row == before.row
    fires = app.schedules.fires("s")
    assert {fire.job_id for fire in fires} == {job.id for job in jobs}
    assert {fire.occurrence for fire in fires} == {None}


def test_run_now_of_a_paused_schedule(app):
    app.schedules.put("s", app.add.bind(1), every=3600)
    paused = app.schedules.pause("s")
    job = app.schedules.run_now("s")
    work_off(app, job)
    assert job.result(0) == 2
    assert app.schedules.get("s").row == paused.row


def test_coming_occurrences(app):
    schedule = app.schedules.put("s", app.add.bind(1), cron="0 9 * * *", tz="Europe/Berlin")
    five = schedule.next()
    assert len(five) == 5
    assert five[0] == schedule.next_run_at
    assert {each.astimezone(schedule.zone).hour for each in five} == {9}
    assert app.schedules.next("s", 2) == five[:2]
    start = datetime(2090, 1, 1, tzinfo=UTC)
    ending = app.schedules.put(
        "e", app.add.bind(1), every=60, start=start, end=start + timedelta(seconds=60)
    )
    assert ending.next(10) == [start, start + timedelta(seconds=60)]
    for count in (0, -1, 1.5, 10**9):
        with pytest.raises(InvalidOption):
            schedule.next(count)


def test_a_schedule_says_in_words_what_it_does(app):
    schedule = app.schedules.put("s", app.add.bind(1), cron="0 9 * * *", tz="Europe/Berlin")
    assert "09:00" in schedule.description
    assert "Europe/Berlin" in schedule.description
    assert "'s' ACTIVE" in repr(schedule)
    assert (schedule.app, schedule.missed, schedule.error) == ("default", 0, None)


def test_pause_resume_and_delete(app):
    app.schedules.put("s", app.add.bind(1), at=PAST)
    assert app.schedules.pause("s").state is ScheduleState.PAUSED
    assert fire_due(app) == []
    assert app.schedules.resume("s").state is ScheduleState.ACTIVE
    assert len(fire_due(app)) == 1
    app.schedules.delete("s")
    assert app.schedules.list() == []
    assert app.jobs.counts()[Status.PENDING] == 1


async def test_every_method_has_its_async_twin(url):
    async with Pulse(url) as app:
        add = declare_add(app)
        app.schedule("declared", add.bind(1), every=60)
        assert (await app.schedules.aapply()).created == ["declared"]
        await app.schedules.aput("s", add.bind(1), every=60)
        await app.schedules.aedit("s", every=61)
        await app.schedules.apause("s")
        await app.schedules.aresume("s")
        await app.schedules.arun_now("s")
        assert len(await app.schedules.afires("s")) == 1
        assert len(await app.schedules.anext("s", 3)) == 3
        assert len(await app.schedules.alist()) == 2
        await app.schedules.adelete("s")
        with pytest.raises(PulsedError, match="aput"):
            app.schedules.put("s", add.bind(1), every=60)
