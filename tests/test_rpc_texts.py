"""How long the texts of a request may be: in every field of every method."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pulsed.errors import PulsedError
from pulsed.handler.payload import MAX_PAYLOAD, MAX_TEXT
from pulsed.model.audit import LONGEST_DETAIL, printable
from pulsed.model.job import Status
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import LARGEST_BATCH, METHODS
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.server.access import ANONYMOUS
from pulsed.rpc.server.scopes import Scopes
from pulsed.rpc.server.services.all import services
from pulsed.rpc.server.services.backend import Backend
from pulsed.rpc.server.weight import CHECKED_AS_JSON, CUT_TO_LENGTH, NOT_STORED, check_weight
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import row, running
from tests.support.raw_streams import raw_client
from tests.support.servers import ServerThread

STRING, MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE
TOO_LONG = MAX_PAYLOAD + 100

LEFT_OUT = {
    "every_micros", "NewJob.at", "ScheduleSpec.at", "ScheduleSpec.limit", "seen", "priority",
    "GetScheduleRequest.id", "Rollup.wait", "Rollup.run", "BulkAct.delay_seconds",
}  # fmt: skip
"""Fields that contradict others, or are in the way of the rest."""
PLAIN: dict[str, Any] = {
    "payload": "{}", "result": "1", "results": "1", "progress": "1", "value": "1",
    "values": "1",
    "spec_json": "{}", "cron": "* * * * *", "zone": "UTC", "job_ids": None, "Wait.kind": 3,
    "max_attempts": 3, "lease_seconds": 30.0, "timeout_seconds": 30.0, "factor": 2.0,
    "id_prefix": "01", "id_suffix": "01", "recorder": str(uuid4()), "step_seconds": 60,
    "key_for": "start", "on_duplicate": "return", "fields": "running",
    "AskWorkersRequest.request": "drain",
    "performer": str(uuid4()), "by": "topic", "BulkAct.kind": 7, "JobFilter.outcome": "EXPIRED",
}  # fmt: skip
"""What a request says where any value would not do."""
A_TIME = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = {
    "GetSeriesRequest": {"since": A_TIME, "until": A_TIME + timedelta(hours=1)},
    "GetTotalsRequest": {"since": A_TIME},
    "ListErrorsRequest": {"since": A_TIME},
    "Rollup": {"at": A_TIME},
    "ErrorRollup": {"at": A_TIME, "last_at": A_TIME},
}
"""Times that a request must have."""


class Watched:
    """A store, and the longest text that a request brought to it."""

    is_remote = False

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.calls = 0
        self.longest = 0
        self.schedules = WatchedPart(self, store.schedules)
        self.workflows = WatchedPart(self, store.workflows)
        self.rollups = WatchedPart(self, store.rollups)
        self.controls = WatchedPart(self, store.controls)
        self.bulk = WatchedPart(self, store.bulk)
        self.streams = WatchedPart(self, store.streams)
        self.events = store.events

    def __getattr__(self, name: str) -> Any:
        return self.watch(getattr(self._store, name))

    def watch(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            self.longest = max(self.longest, _longest(msgspec.to_builtins((args, options))))
            return verb(*args, **options)

        return call


class WatchedPart:
    """One of the other interfaces of such a store."""

    def __init__(self, whole: Watched, part: object) -> None:
        self._whole = whole
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return self._whole.watch(getattr(self._part, name))


def _longest(plain: Any) -> int:
    if isinstance(plain, str):
        return len(plain.encode())
    if isinstance(plain, dict):
        return max((_longest(each) for pair in plain.items() for each in pair), default=0)
    if isinstance(plain, list | tuple):
        return max(map(_longest, plain), default=0)
    return 0


def texts_of(descriptor: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every text in a request, at any depth, by the names of the fields that lead to it."""
    for field in descriptor.fields:
        if field.type == MESSAGE:
            if not field.message_type.GetOptions().map_entry:
                yield from texts_of(field.message_type, (*path, field.name))
        elif field.type == STRING:
            yield (*path, field.name)


def filled(request: Any, path: tuple[str, ...], text: str) -> Any:
    """Fill a message with what makes sense, and the text at the end of the path with another."""
    chosen = path[0] if path else None
    oneofs = {field.containing_oneof for field in request.DESCRIPTOR.fields if field.name == chosen}
    for field in request.DESCRIPTOR.fields:
        names = {field.name, f"{request.DESCRIPTOR.name}.{field.name}"}
        others = field.containing_oneof in oneofs - {None} and field.name != chosen
        if others or (names & LEFT_OUT and field.name != chosen):
            continue
        _fill(request, field, path[1:] if field.name == chosen else (), chosen, text)
    return request


def _fill(
    request: Any, field: FieldDescriptor, rest: tuple[str, ...], chosen: str | None, text: str
) -> None:
    if field.type == MESSAGE:
        if field.message_type.name == "Timestamp":
            if given := TIMES.get(request.DESCRIPTOR.name, {}).get(field.name):
                getattr(request, field.name).FromDatetime(given)
            return
        if field.message_type.GetOptions().map_entry:
            return
        part = getattr(request, field.name)
        filled(part.add() if field.is_repeated else part, rest, text)
        return
    value = text if field.name == chosen and not rest else _plain(request, field)
    if field.is_repeated:
        getattr(request, field.name).append(value)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        setattr(request, field.name, uuid4().bytes)
    else:
        setattr(request, field.name, value)


def _plain(request: Any, field: FieldDescriptor) -> Any:
    for name in (f"{request.DESCRIPTOR.name}.{field.name}", field.name):
        if PLAIN.get(name) is not None:
            return PLAIN[name]
    if field.type == STRING:
        is_id = field.name.endswith(("id", "ids", "before"))
        return str(uuid4()) if is_id else "word"
    return field.type != FieldDescriptor.TYPE_BOOL and 1


def full_name(descriptor: Descriptor, path: tuple[str, ...]) -> str:
    for name in path[:-1]:
        descriptor = descriptor.fields_by_name[name].message_type
    return f"{descriptor.name}.{path[-1]}"


UNARY = [name for name, method in METHODS.items() if not method.streams]
WITH_TEXT = [name for name in UNARY if any(texts_of(METHODS[name].request.DESCRIPTOR))]


@pytest.fixture
async def watched(database) -> AsyncIterator[Watched]:
    store = SqliteStore(database)
    yield Watched(store)
    await store.aclose()


async def asked(watched: Watched, method: str, path: tuple[str, ...], text: str) -> None:
    """Make a call as the server does, from the bytes on; what it refuses is refused."""
    known = METHODS[method]
    data = filled(known.request(), path, text).SerializeToString()
    store: Any = watched
    backend = Backend(
        store=store,
        scopes=Scopes(store),
        hint=lambda: None,
        describe=pb.GetServerResponse,
        largest_batch=LARGEST_BATCH,
    )
    service = services(backend)[known.service]
    watched.calls = watched.longest = 0
    check_weight(known.request, data, LARGEST_BATCH)
    await getattr(service, known.function)(known.request.FromString(data), ANONYMOUS)


@pytest.mark.parametrize("method", WITH_TEXT)
async def test_no_text_of_any_request_reaches_the_store_beyond_its_limit(watched, method):
    descriptor = METHODS[method].request.DESCRIPTOR
    for path in texts_of(descriptor):
        is_json = full_name(descriptor, path) in CHECKED_AS_JSON
        long = "x" * TOO_LONG
        text = json.dumps({"long": long}) if is_json else long
        with contextlib.suppress(Refusal, PulsedError):
            await asked(watched, method, path, text)
        assert watched.longest <= (MAX_PAYLOAD if is_json else MAX_TEXT), ".".join(path)


@pytest.mark.parametrize("method", WITH_TEXT)
async def test_the_same_requests_with_short_texts_reach_it(watched, method):
    """Or the test above would prove nothing."""
    with contextlib.suppress(Refusal, PulsedError):
        await asked(watched, method, (), "")
    assert watched.calls


def test_the_texts_with_rules_of_their_own_are_in_the_contract():
    known = {
        full_name(METHODS[method].request.DESCRIPTOR, path)
        for method in METHODS
        for path in texts_of(METHODS[method].request.DESCRIPTOR)
    }
    assert known >= CHECKED_AS_JSON | CUT_TO_LENGTH | NOT_STORED


async def test_a_long_error_is_cut_and_its_report_gets_through(database):
    near = SqliteStore(database)
    lease = (await running(near)).lease
    long = "first " + "é" * MAX_PAYLOAD + " last"
    with ServerThread(lambda: SqliteStore(database)) as server:
        async with raw_client(server.host) as client:
            report = pb.Report(
                lease=pb.Lease(
                    job_id=str(lease.job_id),
                    lease_token=lease.token,
                    worker_id=str(lease.worker_id),
                ),
                failed=pb.Failed(error=long, traceback=long, final=True),
            )
            await client("ReportResult", report)
    job = await row(near, lease.job_id)
    (failure,) = await near.failures(lease.job_id)
    assert job.status is Status.DEAD_LETTERED
    for text in (job.last_error, failure.error, failure.traceback):
        assert text is not None
        assert len(text.encode()) <= MAX_TEXT
        assert text.startswith("first ")
        assert text.endswith(" last")
        assert "bytes and more left out" in text
    await near.aclose()


def test_only_what_is_kept_of_an_operators_text_is_looked_at():
    class Counted(str):
        __slots__ = ()
        looked = 0

        def __getitem__(self, key: Any) -> Any:
            return Counted(str(self)[key])

        def __iter__(self) -> Iterator[str]:
            Counted.looked += len(self)
            return iter(str(self))

    kept = printable(Counted("x\n" * 100_000), LONGEST_DETAIL)
    assert len(kept) == LONGEST_DETAIL
    assert kept.endswith("…")
    assert Counted.looked <= LONGEST_DETAIL
