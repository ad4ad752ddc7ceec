"""The audit log: what operators did is recorded with the act, and what workers do is not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest

from pulsed import Pulse, Retention, Status
from pulsed.engine.upkeep.pruner import Pruner, prune_all
from pulsed.errors import InvalidOption, JobNotFound, PulsedError, ScheduleNotFound
from pulsed.model.audit import (
    LONGEST_DETAIL,
    LONGEST_NAME,
    AuditKey,
    Operator,
    of_filter,
    printable,
)
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter
from pulsed.model.outcome import Succeeded
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.sql import audit_log as sql_audit
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.verbs import audit as audit_log
from tests.support.backends import Backend
from tests.support.commands import lines_of, run
from tests.support.faults import Fault
from tests.support.jobs import a_job, running, settle, submitted
from tests.support.schedules import a_spec

ANNA = Operator("anna@desk")
FINISHED = {Status.SUCCEEDED: 0.0}


async def acts(store: Any, **asked: Any) -> list[tuple[str, int, str]]:
    """Return what the log has, the oldest first."""
    entries = await store.audit_log(**asked)
    return [(each.act, each.affected, each.detail) for each in reversed(entries)]


async def test_acts_on_jobs_are_recorded_with_their_number_and_ids(store, clock):
    jobs = sorted([await submitted(store) for _ in range(3)])
    missing = new_job_id()
    await store.cancel([*jobs, missing], by=ANNA)
    clock.advance(1)
    await store.replay(jobs[:2], by=ANNA)
    clock.advance(1)
    await store.delete(jobs[:1], by=ANNA)
    first = " ".join(map(str, jobs))
    assert [(act, number) for act, number, _ in await acts(store)] == [
        ("cancel jobs", 3),
        ("retry jobs", 2),
        ("delete jobs", 1),
    ]
    details = [detail for _, _, detail in await acts(store)]
    assert sorted(details[0].split()) == first.split()
    assert details[2] == str(jobs[0])


async def test_an_entry_says_when_and_by_whom(store, clock):
    await store.cancel([await submitted(store)], by=ANNA)
    (entry,) = await store.audit_log()
    assert entry.at == clock.now
    assert "anna@desk" in (entry.actor, entry.claimed)
    if isinstance(store, RemoteStore):  # what a caller says of itself is not who it is
        assert (entry.actor, entry.role) == ("anonymous", "admin")


async def test_a_running_job_that_is_asked_to_stop_counts(store):
    run_ = await running(store)
    await store.cancel([run_.job_id], by=ANNA)
    assert await acts(store) == [("cancel jobs", 1, str(run_.job_id))]


async def test_what_did_nothing_is_not_recorded(store):
    await store.cancel([new_job_id()], by=ANNA)
    await store.delete([new_job_id()], by=ANNA)
    done = await running(store)
    await settle(store, done, Succeeded("1"))
    await store.replay([done.job_id], by=ANNA)
    await store.schedules.delete("default", "none", by=ANNA)
    await store.prune(dict.fromkeys(FINISHED, 1e6), limit=5, by=ANNA)
    assert await acts(store) == []


async def test_acts_on_schedules_are_recorded(store, clock):
    for act in (
        store.schedules.put("shop", "tea", a_spec(), by=ANNA),
        store.schedules.put("shop", "tea", a_spec(), by=ANNA),  # says the same
        store.schedules.declare("shop", {"tea": a_spec(topic="other")}, by=ANNA),
        store.schedules.pause("shop", "tea", by=ANNA),
        store.schedules.resume("shop", "tea", by=ANNA),
        store.schedules.run_now("shop", "tea", a_job(), by=ANNA),
        store.schedules.delete("shop", "tea", by=ANNA),
    ):
        await act
        clock.advance(1)
    found = await acts(store)
    assert found.pop(1) == ("declare schedules", 1, "tea")
    assert found == [
        (f"{verb} schedule", 1, "tea of app shop")
        for verb in ("put", "pause", "resume", "run", "delete")
    ]


async def test_a_prune_by_hand_is_recorded_and_the_pruners_own_is_not(store, clock):
    for _ in range(2):
        await settle(store, await running(store), Succeeded("1"))
        clock.advance(61)
        assert (await Pruner(store, Retention(succeeded=60)).tick())[Status.SUCCEEDED] == 1
    assert await acts(store) == []
    await settle(store, await running(store), Succeeded("1"))
    clock.advance(1)
    await prune_all(store, FINISHED, by=Operator("anna@desk", detail="old ones"))
    assert await acts(store) == [("prune jobs", 1, "old ones")]


async def test_what_a_workflow_cancels_is_nobodys_act(store):
    parent = await running(store)
    children = [a_job(parent_id=parent.job_id, parent_step="all|1", id=child_id(n)) for n in (1, 2)]
    await store.workflows.add_children(parent.lease, children)
    await store.cancel([child.id for child in children])
    assert await acts(store) == []
    await store.cancel([children[0].id], by=ANNA)
    assert len(await acts(store)) == 1


def child_id(number: int) -> UUID:
    """Return an id as children have them: computed, not made from the time."""
    return uuid5(NAMESPACE_OID, str(number))


@pytest.mark.parametrize("verb", ["cancel", "replay", "delete"])
async def test_a_lost_answer_leaves_one_entry(store, when, times, verb):
    job_id = await submitted(store)
    if verb == "replay":
        await store.cancel([job_id])
    before = len(await acts(store))  # a server also records an act without an operator
    fault = Fault(store, verb, when, times)
    await getattr(store, verb)([job_id], by=ANNA)
    assert fault.hits == times
    assert len(await acts(store)) == before + 1


async def test_an_act_whose_entry_cannot_be_written_is_not_done(store, monkeypatch):
    job_id = await submitted(store)
    broken = sql_audit.AUDIT_COLUMNS + ", nothing"
    monkeypatch.setattr(sql_audit, "AUDIT_COLUMNS", broken)
    with pytest.raises(PulsedError):
        await store.delete([job_id], by=ANNA)
    monkeypatch.undo()
    assert job_id in await store.get([job_id])
    assert await acts(store) == []


async def test_the_log_is_read_by_time_and_actor_the_newest_first(store, clock):
    began = clock.now
    for name in ("anna@desk", "bert@desk", "anna@desk"):
        await store.cancel([await submitted(store)], by=Operator(name, detail=str(clock.now)))
        clock.advance(60)
    assert len(await store.audit_log(limit=2)) == 2
    newest = await store.audit_log()
    assert [each.at for each in newest] == sorted((each.at for each in newest), reverse=True)
    minute = timedelta(seconds=60)
    middle = await store.audit_log(since=began + minute, until=began + 2 * minute)
    assert [each.at for each in middle] == [began + minute]
    assert len(await store.audit_log(actor="anna@desk")) == 2
    assert await store.audit_log(actor="anna") == []


async def test_pages_lose_no_entry_of_the_same_instant(store, clock):
    for number in range(5):
        await store.cancel([await submitted(store)], by=Operator("anna@desk", detail=str(number)))
        clock.advance(number == 3)
    details: list[str] = []
    page = await store.audit_log(limit=2)
    while page:
        details += [each.detail for each in page]
        page = await store.audit_log(limit=2, before=page[-1].key)
    assert details == ["4", "3", "2", "1", "0"]
    assert await store.audit_log(before=AuditKey(clock.now, UUID(int=0)), since=clock.now) == []


async def test_old_entries_are_removed_by_the_pruner_also_if_all_jobs_are_kept(store, clock):
    await store.cancel([await submitted(store)], by=ANNA)
    clock.advance(89 * 86_400)
    await store.cancel([await submitted(store)], by=ANNA)
    await Pruner(store, Retention.forever()).tick()
    assert len(await acts(store)) == 2
    clock.advance(2 * 86_400)
    await Pruner(store, Retention.forever()).tick()
    assert len(await acts(store)) == 1


async def test_the_oldest_entries_are_removed_when_there_are_too_many(store, clock, monkeypatch):
    monkeypatch.setattr(audit_log, "KEPT_ENTRIES", 3)
    for number in range(5):
        await store.cancel([await submitted(store)], by=Operator("anna@desk", detail=str(number)))
        clock.advance(1)
    await store.prune({}, limit=5)
    assert [detail for _, _, detail in await acts(store)] == ["2", "3", "4"]


async def test_texts_are_bounded_and_cannot_break_a_line(store):
    long = Operator("a\n\x00\x1b[31m" * 200, detail="\ud800" * 1_000 + "x")
    if isinstance(store, SqliteStore):  # protobuf has no such text
        await store.cancel([await submitted(store)], by=long)
        (entry,) = await store.audit_log()
        assert len(entry.actor) == LONGEST_NAME
        assert len(entry.detail) == LONGEST_DETAIL
        assert entry.actor.isprintable()
        assert entry.detail.isprintable()
    ids = [await submitted(store) for _ in range(7)]
    await store.delete(ids, by=ANNA)
    assert (await acts(store))[-1][2].endswith(" and 2 more")


def test_a_filter_reads_like_what_was_asked_for():
    where = JobFilter(status=(Status.PENDING, Status.RETRYING), topic="mail")
    assert of_filter(where) == "status=PENDING,RETRYING topic=mail"
    assert printable("plain", 5) == "plain"


# -- the API and the command ----------------------------------------------------------------------


def test_the_api_records_who_it_is(app: Pulse, monkeypatch):
    monkeypatch.setenv("PULSED_ACTOR", "release-7")

    @app.job
    def send() -> None: ...

    first, second, third = (send.enqueue() for _ in range(3))
    app.jobs.cancel(first.id)
    app.jobs.retry(first.id)
    assert app.jobs.cancel_matching(topic=send.topic) == 3
    app.schedules.put("tea", send, every=60)
    app.schedules.edit("tea", every=30)
    app.schedules.pause("tea")
    app.schedules.resume("tea")
    app.schedules.run_now("tea")
    app.schedules.delete("tea")
    app.jobs.delete(second.id)
    assert sum(app.jobs.prune(older_than=0).values()) == 2
    found = list(reversed(app.audit.list(actor="release-7")))
    assert [(each.act, each.affected) for each in found] == [
        ("cancel jobs", 1),
        ("retry jobs", 1),
        ("cancel jobs", 3),
        ("put schedule", 1),
        ("put schedule", 1),
        ("pause schedule", 1),
        ("resume schedule", 1),
        ("run schedule", 1),
        ("delete schedule", 1),
        ("delete jobs", 1),
        ("prune jobs", 2),
    ]
    assert found[2].detail == f"status=PENDING,RETRYING,WAITING,RUNNING topic={send.topic}"
    assert third.id not in {each.detail for each in found}


def test_the_command_shows_what_commands_did(backend: Backend, app: Pulse):
    @app.job
    def send() -> None: ...

    job_id = str(send.enqueue().id)
    where = {"PULSED_URL": backend.app_url, "PULSED_ACTOR": "anna@desk"}
    assert run("jobs", "cancel", job_id, **where).exit_code == 0
    assert run("jobs", "delete", "--topic", send.topic, "-y", **where).exit_code == 0
    newest, oldest = lines_of(run("audit", "--since", "1h", "--actor", "anna@desk", **where))
    assert (oldest["act"], oldest["affected"], oldest["detail"]) == ("cancel jobs", 1, job_id)
    assert newest["act"] == "delete jobs"
    assert f"topic={send.topic}" in newest["detail"]
    assert lines_of(run("audit", "-n", "1", "--json", **where)) == [newest]
    assert lines_of(run("audit", "--actor", "bert@desk", **where)) == []


def test_tokens_leave_a_trace(database):
    where = {"PULSED_URL": f"sqlite:///{database}", "PULSED_ACTOR": "anna@desk"}
    assert run("token", "new", "web", "--role", "produce", **where).exit_code == 0
    assert run("token", "new", "web", "--role", "produce", **where).exit_code == 1
    assert run("token", "revoke", "web", **where).exit_code == 0
    found = lines_of(run("audit", **where))
    assert [(each["act"], each["detail"]) for each in found] == [
        ("revoke token", "web"),
        ("new token", "web produce"),
    ]


def test_without_a_name_it_is_the_user_and_the_host(database, monkeypatch):
    monkeypatch.delenv("PULSED_ACTOR", raising=False)
    monkeypatch.setenv("LOGNAME", "carla")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    with Pulse(f"sqlite:///{database}") as app:

        @app.job
        def send() -> None: ...

        app.jobs.cancel(send.enqueue().id)
        send.enqueue().cancel()  # a program's own job is not an operator's
        assert [each.actor for each in app.audit.list()] == ["carla@desk"]
        with pytest.raises(JobNotFound):
            app.jobs.cancel(new_job_id())
        with pytest.raises(ScheduleNotFound):
            app.schedules.pause("none")
        with pytest.raises(InvalidOption, match="limit"):
            app.audit.list(limit=0)
        with pytest.raises(InvalidOption, match="actor"):
            app.audit.list(actor="")
        assert len(app.audit.list()) == 1
