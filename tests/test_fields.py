"""The table of a job's fields: schema, messages and every conversion have what is in it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from pulsed.client.schedule_spec import JOB_OPTIONS
from pulsed.engine.upkeep.scheduler import template
from pulsed.errors import InvalidOption, InvalidPayload
from pulsed.handler.options import OPTIONS
from pulsed.model.attributes import Attribute, attributes
from pulsed.model.backoff import Backoff
from pulsed.model.fields import (
    CLAIM,
    FIELDS,
    NEW,
    POLICY,
    ROW,
    TEMPLATE,
    Field,
    Kind,
    Use,
    attributes_of,
    fields_of,
    wire_names,
)
from pulsed.model.ids import new_job_id
from pulsed.model.job import Assignment, JobRow, Lease, NewJob, TopicPolicy
from pulsed.model.schedule import ScheduleRow, ScheduleSpec
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as messages
from pulsed.rpc.messages import schedules as schedule_messages
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.server.checks import items as checks
from pulsed.store.sql.rows import assignment, job
from tests.support.jobs import ALICE, a_policy, claim_one, row

NOON = datetime(2026, 2, 3, 12, 0, 0, 123456, tzinfo=UTC)

STRUCTS: dict[Use, type[Any]] = {
    NEW: NewJob, ROW: JobRow, CLAIM: Assignment, TEMPLATE: ScheduleSpec, POLICY: TopicPolicy
}  # fmt: skip
MESSAGES: dict[Use, Any] = {
    NEW: pb.NewJob, ROW: pb.Job, CLAIM: pb.Assignment, TEMPLATE: pb.ScheduleSpec, POLICY: pb.Topic
}  # fmt: skip
USES = pytest.mark.parametrize("use", STRUCTS, ids=lambda use: use.name.lower())


# -- the table and the structs --------------------------------------------------------------------


def test_every_attribute_of_a_job_is_in_the_table():
    assert set(NewJob.__struct_fields__) == set(attributes_of(NEW))
    assert set(JobRow.__struct_fields__) == set(attributes_of(ROW))
    lease = {"id", "lease_token"}  # with the worker's id, which is not the job's to have
    claimed = {*attributes_of(CLAIM)} - lease | {"lease", "queue"}
    assert set(Assignment.__struct_fields__) == claimed
    # A topic's limit is no column: it decides how jobs are claimed.
    beside = {"topic", "limit_name", "limit_per", "limit_default"}
    assert set(TopicPolicy.__struct_fields__) == beside | {*attributes_of(POLICY)}
    assert set(ScheduleSpec.__struct_fields__) >= set(attributes_of(TEMPLATE))


@USES
def test_the_table_and_the_annotations_mean_the_same_kind_of_value(use):
    annotated = attributes(STRUCTS[use])
    for field in fields_of(use):
        if field.attribute(use) in annotated:
            stored_otherwise = {Kind.SECONDS: Kind.FLOAT, Kind.JSON: Kind.TEXT}
            expected = stored_otherwise.get(field.kind, field.kind)
            assert annotated[field.attribute(use)].kind is expected, field.name


def test_what_a_schedule_sets_a_producer_can_set():
    assert all(NEW in field.use for field in fields_of(TEMPLATE) + fields_of(POLICY))


# -- the schema -----------------------------------------------------------------------------------

POSTGRES_TYPES = {
    "int": {"integer", "smallint"}, "bigint": {"bigint"}, "float8": {"double precision"},
    "bool": {"boolean"}, "timestamptz": {"timestamp with time zone"}, "json": {"json"},
    "text": {"text"}, "uuid": {"uuid"},
}  # fmt: skip
SQLITE_TYPES = {
    "int": "INTEGER", "bigint": "INTEGER", "float8": "REAL", "bool": "INTEGER",
    "timestamptz": "INTEGER", "json": "TEXT", "text": "TEXT", "uuid": "BLOB",
}  # fmt: skip


@pytest.mark.embedded("the same tables as those of SQLite")
async def test_the_table_of_jobs_has_these_columns_and_no_others(store, backend):
    await store.now()
    expected = {
        name: sql for field in FIELDS if field.is_stored for name, sql in field.columns.items()
    }
    if store.dialect.engine == "sqlite":
        found = backend.execute("SELECT name, type FROM pragma_table_info('pulse_jobs')")
        assert dict(found) == {name: SQLITE_TYPES[sql] for name, sql in expected.items()}
    else:
        found = backend.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_name = 'pulse_jobs'"
        )
        assert dict(found).keys() == expected.keys()
        assert [name for name, sql in found if sql not in POSTGRES_TYPES[expected[name]]] == []


# -- the messages ---------------------------------------------------------------------------------


@USES
def test_the_contract_has_every_field(use):
    names = wire_names(use)
    if use is CLAIM:
        names["id"] = "job_id"
    known = MESSAGES[use].DESCRIPTOR.fields_by_name
    assert [name for name in names.values() if name not in known] == []


def test_every_field_of_the_contract_is_in_the_table():
    """A field that a client of another language sets must not be dropped in silence."""
    limit = {"limit_name", "limit_per", "limit_default"}
    for use, beside in (
        (NEW, set()),
        (ROW, set()),
        (CLAIM, {"job_id", "queue"}),
        (POLICY, {"name", *limit}),
    ):
        known = set(MESSAGES[use].DESCRIPTOR.fields_by_name)
        assert known - set(wire_names(use).values()) == beside, use


def other_than_default(name: str, attribute: Attribute) -> Any:
    """Return a value for an attribute that differs from its default."""
    words = {"wait_kind": "SIGNAL", "key_for": "60.5", "on_duplicate": "replace"}
    by_kind = {
        Kind.TEXT: words.get(name, f'{{"{name}": 1}}'),
        Kind.INTEGER: len(name),
        Kind.FLOAT: len(name) + 0.5,
        Kind.FLAG: True,
        Kind.UUID: UUID(int=0x7000_8000_0000_0000_0000 + len(name)),
        Kind.INSTANT: NOON + timedelta(microseconds=len(name)),
        Kind.BACKOFF: Backoff(1.5, 2.5, 3.5, 4.5, 0.5),
        Kind.HEADERS: {"name": name},
        Kind.TEXTS: (name, "b"),
    }
    if attribute.enum is not None:
        return list(attribute.enum)[-1]
    return by_kind[attribute.kind] if attribute.kind else Lease(new_job_id(), 2**50, ALICE)


def full(struct: type[Any], **options: Any) -> Any:
    """Return a struct in which nothing is as it is by default."""
    known = attributes(struct)
    values = {name: other_than_default(name, known[name]) for name in known}
    return struct(**values | options)


@pytest.mark.parametrize(
    "struct, to_message, to_value",
    [
        (NewJob, messages.new_job_message, messages.new_job_of),
        (JobRow, messages.job_message, messages.job_of),
        (Assignment, messages.assignment_message, lambda m: messages.assignment_of(m, ALICE)),
        (TopicPolicy, messages.topic_message, messages.topic_of),
        (ScheduleSpec, schedule_messages.spec_message, schedule_messages.spec_of),
    ],
)  # fmt: skip
def test_a_message_carries_every_field(struct, to_message, to_value):
    value = full(struct)
    unset = {
        name: attribute.default
        for name, attribute in attributes(struct).items()
        if attribute.default is not msgspec.NODEFAULT
    }
    assert [name for name in unset if getattr(value, name) == unset[name]] == []
    sent = to_message(value)
    assert to_value(type(sent).FromString(sent.SerializeToString())) == value
    bare = msgspec.structs.replace(value, **unset)
    sent = to_message(bare)
    assert to_value(type(sent).FromString(sent.SerializeToString())) == bare


# -- the stores -----------------------------------------------------------------------------------


async def test_a_job_keeps_every_field_from_its_producer_to_its_worker(store):
    """Over every store: the insertion, the row that operators read, and the answer to a claim."""
    new = full(
        NewJob, id=new_job_id(), delay=0.0, at=None, payload='{"n": 1}', queue="default",
        schedule_id=uuid4(), parent_id=uuid4(), lease=30.25, expires_at=NOON.replace(year=2100),
    )  # fmt: skip
    await store.submit([new])
    found = await row(store, new.id)
    for field in fields_of(NEW):
        if ROW in field.use:
            assert getattr(found, field.name) == getattr(new, field.attribute(NEW)), field.name
    claimed = await claim_one(store, topics=[a_policy(new.topic)])
    after = await row(store, new.id)
    assert (claimed.lease, claimed.queue) == (Lease(new.id, after.lease_token, ALICE), "default")
    for field in fields_of(CLAIM):
        if field.name not in ("id", "lease_token"):
            told = getattr(claimed, field.attribute(CLAIM))
            assert told == getattr(after, field.name), field.name


async def test_a_claim_fills_every_policy_that_a_producer_left_unset(store, backend):
    policy = full(TopicPolicy, topic="t", lease=12.5, limit_name="")
    new = full(
        NewJob, id=new_job_id(), topic="t", delay=0.0, at=None, queue="default", payload="{}",
        expires_at=None,
        **{field.attribute(NEW): None for field in fields_of(POLICY)}, limit_key=None,
    )  # fmt: skip
    await store.submit([new])
    await claim_one(store, topics=[policy])
    stored = backend.row(new.id)
    filled = {name: stored[name] for field in fields_of(POLICY) for name in field.columns}
    backoff = {f"backoff_{name}": value for name, value in vars_of(policy.backoff).items()}
    assert filled == {
        "max_attempts": policy.max_attempts, **backoff,
        "timeout_ms": policy.timeout * 1000, "lease_ms": 12_500,
    }  # fmt: skip


def vars_of(backoff: Backoff) -> dict[str, float]:
    return {name: getattr(backoff, name) for name in Backoff.__struct_fields__}


@pytest.mark.parametrize("read", [job, assignment], ids=["job", "assignment"])
def test_a_reader_reads_every_attribute(read):
    """No other test would notice a missing field that has a default."""
    source = read.source(frozenset())
    arguments = source.partition("found.append(struct(")[2]
    given = arguments.count(",\n") + 1
    assert given == len(read._struct.__struct_fields__)


# -- schedules and checks -------------------------------------------------------------------------


def test_the_jobs_of_a_schedule_have_all_that_it_says():
    spec = full(ScheduleSpec)
    made = template(full(ScheduleRow), spec, new_job_id())
    assert {name: getattr(made, name) for name in attributes_of(TEMPLATE)} == {
        name: getattr(spec, name) for name in attributes_of(TEMPLATE)
    }
    assert set(JOB_OPTIONS) <= OPTIONS.keys()


REFUSED: dict[str, dict[str, Any]] = {
    "id": {"id": str(UUID(int=0))},
    "topic": {"topic": ""},
    "payload": {"payload": "[]"},
    "queue": {"queue": "a,b"},
    "priority": {"priority": 101},
    "delay": {"delay_seconds": float("nan")},
    "at": {"at": {"seconds": 253_402_300_799}},
    "expires": {"expires_seconds": -1.0},
    "expires_at": {"expires_at": {"seconds": 253_402_300_799}},
    "max_attempts": {"max_attempts": 0},
    "backoff": {"backoff": {"base": -1}},
    "timeout": {"timeout_seconds": -1.0},
    "lease": {"lease_seconds": 0.0},
    "headers": {"headers": {"a": "\0"}},
    "tags": {"tags": ["a,b"]},
    "schedule_id": {"schedule_id": "none"},
    "occurrence": {"occurrence": {"seconds": 2**60}},
    "parent_id": {"parent_id": "none"},
    "parent_step": {"parent_step": "x" * 10_000},
    "key": {"key": "x" * 256},
    "key_for": {"key": "k", "key_for": "soon"},
    "on_duplicate": {"key": "k", "on_duplicate": "drop"},
    "limit_key": {"limit_key": f"mail,{'x' * 129}"},
}
"""What a server does not accept; ``outlives`` is right whatever it is."""


def test_every_field_is_checked_here():
    assert REFUSED.keys() == set(attributes_of(NEW)) - {"outlives"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_server_refuses_what_cannot_be_stored(name):
    message: dict[str, Any] = {"id": str(uuid4()), "topic": "t", "payload": "{}"}
    checks.new_job(pb.NewJob(**message))
    with pytest.raises((InvalidOption, InvalidPayload, Refusal)):
        checks.new_job(pb.NewJob(**message | REFUSED[name]))


def test_a_field_of_several_columns_has_one_type_for_all():
    (backoff,) = (field for field in FIELDS if field.kind is Kind.BACKOFF)
    assert list(backoff.columns) == [f"backoff_{part}" for part in Backoff.__struct_fields__]
    assert Field("x", Kind.SECONDS, column="x_ms").columns == {"x_ms": "bigint"}
