"""The search box: what its terms mean, what they may become, and that no text breaks it."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsed.client.search import Completions, complete, in_words, parse, quoted
from pulsed.model.job import JobFilter, PayloadField, Status

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
ID = "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"


@pytest.mark.parametrize(
    "text, where",
    [
        ("", JobFilter()),
        ("status:dead", JobFilter(status=(Status.DEAD_LETTERED,))),
        ("status:running,retrying", JobFilter(status=(Status.RUNNING, Status.RETRYING))),
        ("status:due", JobFilter(status=(Status.PENDING,), due=True)),
        ("Status:LATER", JobFilter(status=(Status.PENDING,), due=False)),
        ("topic:send*", JobFilter(topic_prefix="send")),
        ('topic:send tag:"a b"', JobFilter(topic="send", tag="a b")),
        ("payload.user.id:7", JobFilter(payload=(PayloadField(("user", "id"), 7),))),
        ('payload.User:"7"', JobFilter(payload=(PayloadField(("User",), "7"),))),
        ("payload.ok:true", JobFilter(payload=(PayloadField(("ok",), True),))),
        ("payload.name:ada", JobFilter(payload=(PayloadField(("name",), "ada"),))),
        (
            "payload.a:null payload.b:1.5",
            JobFilter(payload=(PayloadField(("a",), None), PayloadField(("b",), 1.5))),
        ),
        ("since:2h", JobFilter(since=NOW - timedelta(hours=2))),
        ("until:2026-11-01", JobFilter(until=datetime(2026, 11, 1, tzinfo=UTC))),
        (f"id:{ID}", JobFilter(id_prefix=UUID(ID).hex)),
        ("id:0197a8*", JobFilter(id_prefix="0197a8")),
        ("id:3f1d2c4b5a69", JobFilter(id_suffix="3f1d2c4b5a69")),
        ("3f1d2c4b5a69", JobFilter(id_suffix="3f1d2c4b5a69")),
        (ID, JobFilter(id_prefix=UUID(ID).hex)),
        (f"worker:{ID}", JobFilter(worker=UUID(ID))),
        (f"schedule:{ID} parent:{ID}", JobFilter(schedule=UUID(ID), parent=UUID(ID))),
        ("outcome:expired", JobFilter(outcome="EXPIRED")),
        ("timeout", JobFilter(error="timeout")),
        ('"took 30 s"', JobFilter(error="took 30 s")),
    ],
)
def test_a_term_becomes_a_condition(text, where):
    found = parse(text, NOW)
    assert (found.where, found.problems) == (where, ())


@pytest.mark.parametrize(
    "text, says",
    [
        ("status:ded", "status:ded is none of"),
        ("outcome:over", "outcome must be one of"),
        ("colour:red", "colour: is no qualifier; there are status:"),
        ("since:soon", "soon is no time: write 2h"),
        ("since:999999w", "is no time"),
        ("status:due,dead", "cannot be combined"),
        ("status:due status:dead", "cannot be combined"),
        ("id:xyz", "is no id"),
        ("worker:alice", "worker:alice: "),
        ("payload.a.0:1", "positions in lists"),
        ("payload.:1", "payload"),
        ("topic:a,b", "must not be blank or contain"),
    ],
)
def test_what_is_not_understood_is_said_and_the_rest_holds(text, says):
    found = parse(f"queue:mail {text}", NOW)
    assert says in " ".join(found.problems)
    assert found.where.queue == "mail"


def test_a_chip_changes_the_status_and_keeps_the_rest():
    search = parse('status:dead topic:send* tag:"a b" status:running', NOW)
    assert search.with_status("done") == 'status:done topic:send* tag:"a b"'
    assert search.with_status("") == 'topic:send* tag:"a b"'
    assert parse("status:dead", NOW).status == "dead"


@given(st.text())
def test_no_text_breaks_it(text):
    for each in (text, f"status:{text}", f"payload.{text}", f"since:{text} id:{text}", f'"{text}'):
        found = parse(each, NOW)
        assert parse(found.with_status(""), NOW).where.status == ()
        assert in_words(found.where, NOW)
        complete(each, KNOWN)


@given(st.text(min_size=1))
def test_a_quoted_value_is_read_as_it_was(text):
    found = parse(f"error:{quoted(text)}", NOW)
    assert found.problems or found.where.error == text


KNOWN = Completions(topics=("send_email", "resend", "charge"), queues=("mail",), tags=("a b",))


@pytest.mark.parametrize(
    "text, offered",
    [
        ("sta", ["status:"]),
        ("status:dea", ["status:dead_lettered", "status:dead"]),
        ("topic:send", ["topic:send_email", "topic:resend"]),
        ("status:dead queue:", ["status:dead queue:mail"]),
        ("tag:", ['tag:"a b"']),
        ("pay", ["payload."]),
        ("colour:", []),
    ],
)
def test_the_last_term_is_completed(text, offered):
    assert complete(text, KNOWN) == offered


def test_a_filter_in_words():
    where = parse("status:dead topic:send* payload.user:7 since:2h", NOW).where
    assert in_words(where, NOW) == (
        "DEAD LETTERED jobs of topics that begin with send, with 7 as user in the payload, "
        "submitted in the last 2 h"
    )
