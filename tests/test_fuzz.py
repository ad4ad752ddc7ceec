"""Hostile input everywhere: no crash, no hang, no traceback to a client, no memory for nothing.

Short and the same every time here; ``python3 dev.py fuzz --minutes 10`` goes on with other input.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click
import grpc
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsed import Pulse
from pulsed.cli.view import times
from pulsed.client.search import complete, in_words, parse
from pulsed.errors import InvalidOption, InvalidPayload, PulsedError
from pulsed.handler.payload import encode_cleaned, encode_untyped
from pulsed.listen_address import ListenAddress
from pulsed.model.timetable import cron_timetable, describe, upcoming
from pulsed.rpc.address import ServerAddress
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import METHODS
from pulsed.rpc.server.json_text import checked_json
from pulsed.store.blocking import run_blocking
from pulsed.store.open import open_store, redacted, where
from pulsed.store.postgres.address import PostgresAddress
from pulsed.store.sqlite.store import SqliteStore
from pulsed.web import Local, Role, dashboard
from pulsed.web.routes import PAGES
from tests.support.fuzzing import fuzzed, messages, texts
from tests.support.jobs import running, submitted
from tests.support.servers import ServerThread
from tests.support.visits import Tab
from tests.web.test_search import KNOWN

NOW = datetime(2026, 11, 17, 9, tzinfo=UTC)

BUGS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
}
"""How a call ends whose server has failed, or is gone."""
LONGEST_DETAIL = 4_000

# -- the server -----------------------------------------------------------------------------------

UNARY = sorted(name for name, method in METHODS.items() if not method.streams)


class Served:
    """A server with a few jobs, and calls to it without pulsed's client."""

    def __init__(self, path: Path) -> None:
        store = SqliteStore(path)
        waiting, run = run_blocking(_filled(store))
        self.known = [str(waiting), str(run.job_id), str(run.lease.worker_id), "test", "default"]
        self._server = ServerThread(lambda: store)
        self._channel = grpc.insecure_channel(self._server.host)

    def call(self, name: str, data: bytes) -> tuple[grpc.StatusCode, str]:
        """Send the bytes of a request; returns how the call ended, and the detail."""
        send = self._channel.unary_unary(METHODS[name].path)
        try:
            send(data, timeout=20)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    def stream(self, sent: Sequence[bytes]) -> tuple[grpc.StatusCode, str]:
        """Send the messages of a stream, and read it to its end."""
        call = self._channel.stream_stream(METHODS["StreamJobs"].path)(iter(sent), timeout=20)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    def close(self) -> None:
        self._channel.close()
        self._server.stop()


async def _filled(store: SqliteStore) -> tuple[Any, Any]:
    return await submitted(store), await running(store, topic="fuzzed")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("fuzz") / "jobs.db")
    yield served
    served.close()


def assert_healthy(name: str, code: grpc.StatusCode, detail: str) -> None:
    assert code not in BUGS, (name, code, detail)
    assert "Traceback" not in detail, (name, detail)
    assert len(detail) <= LONGEST_DETAIL, (name, len(detail))


@fuzzed(150)
@given(st.data())
def test_a_server_answers_every_message(served: Served, data: st.DataObject):
    name = data.draw(st.sampled_from(UNARY))
    request = data.draw(messages(METHODS[name].request, served.known))
    assert_healthy(name, *served.call(name, request.SerializeToString()))


@fuzzed(30)
@given(name=st.sampled_from(UNARY), data=st.binary(max_size=200))
def test_a_server_answers_bytes_that_are_no_message(served: Served, name: str, data: bytes):
    assert_healthy(name, *served.call(name, data))


def a_hello(worker: str) -> bytes:
    hello = pb.Hello(worker_id=worker, queues=["default"], topics=[pb.Topic(name="test")])
    return bytes(pb.StreamJobsRequest(hello=hello).SerializeToString())


WITHDRAW = pb.StreamJobsRequest(withdraw=pb.Withdraw()).SerializeToString()
"""Ends every grant that stands, which may be for a minute."""


@fuzzed(60)
@given(st.data())
def test_a_server_answers_every_stream(served: Served, data: st.DataObject):
    """Whatever comes first, and in whatever order; a good Hello half of the time."""
    fuzzed_message = messages(pb.StreamJobsRequest, served.known).map(
        lambda message: message.SerializeToString()
    )
    some = st.one_of(fuzzed_message, fuzzed_message, st.binary(max_size=100), st.just(WITHDRAW))
    sent = data.draw(st.lists(some, max_size=5))
    if data.draw(st.booleans()):
        sent.insert(0, a_hello(served.known[2]))
    assert_healthy("StreamJobs", *served.stream([*sent, WITHDRAW]))


# -- the dashboard --------------------------------------------------------------------------------

ROUTES = [route for route in PAGES if route.path != "/live"]  # a stream, which does not end
NAMES = (
    *("q", "before", "after", "after_app", "skip", "span", "act", "ids", "next", "size", "app"),
    *("topic", "trail", "at", "back", "delay", "expected", "fresh", "name", "payload", "queue"),
    *("sure", "tags", "to", "typed", "unit", "until", "actor", "id", "priority", "running", "rate"),
)


class Visited:
    """A dashboard on a database with a few jobs, and an event loop to visit it in."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.new_event_loop()
        app = Pulse(f"sqlite:///{path}")
        waiting, run = self._loop.run_until_complete(_filled(app.store))  # type: ignore[arg-type]
        self._app = app
        self.known = [str(waiting), str(run.job_id), str(run.lease.worker_id), "test", "default"]
        self._tab = Tab(dashboard(app, access=Local(Role.ADMIN)))

    def visit(self, method: str, path: str, fields: dict[str, str]) -> Any:
        tab = self._tab
        if method == "GET":
            visit = tab.get(f"{path}?{urlencode(fields, errors='replace')}")
        else:
            visit = tab.post(path, **{name: _sendable(text) for name, text in fields.items()})
        return self._loop.run_until_complete(visit)

    def live(self, query: str, headers: dict[str, str], leave_after: int) -> Any:
        """Open the event stream, and leave it after some messages, or before the first."""
        asked = self._tab.request("GET", f"/live?{query}", b"", headers, leave_after)
        return self._loop.run_until_complete(asyncio.wait_for(asked, 20))

    @property
    def streams(self) -> int:
        """How many event streams are open."""
        return int(self._tab.app.inner.state.hub.streams)

    def close(self) -> None:
        self._loop.run_until_complete(self._tab.app.inner.state.hub.close())
        self._loop.run_until_complete(self._app.aclose())
        self._loop.close()


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    visited = Visited(tmp_path_factory.mktemp("fuzz") / "jobs.db")
    yield visited
    visited.close()


@fuzzed(60)
@given(st.data())
def test_the_dashboard_answers_every_request(visited: Visited, data: st.DataObject):
    text = texts(*visited.known)
    route = data.draw(st.sampled_from(ROUTES))
    path = route.path
    for part in ("{id}", "{token}", "{name:path}"):
        path = path.replace(part, quote(_sendable(data.draw(text)), safe=""))
    fields = data.draw(st.dictionaries(st.sampled_from(NAMES), text, max_size=4))
    answer = visited.visit(route.method, path, fields)
    assert answer.status < 500, (route.path, fields, answer.text[:500])
    assert "Traceback (most" not in answer.body, (route.path, fields)
    for each in fields.values():
        if "<script>" in each:
            assert each not in answer.body, (route.path, fields)


OF_STREAMS = ("last-event-id", "accept", "accept-encoding", "cache-control", "range", "origin")


@fuzzed(15)
@given(st.data())
def test_an_event_stream_begins_and_ends_with_its_reader(visited: Visited, data: st.DataObject):
    text = texts(*visited.known, "text/event-stream", "bytes=0-", "gzip", "http://evil.example")
    values = text.map(lambda each: _sendable(each).encode("latin-1", "replace").decode("latin-1"))
    headers = data.draw(st.dictionaries(st.sampled_from(OF_STREAMS), values, max_size=3))
    query = urlencode(data.draw(st.dictionaries(text, text, max_size=2)), errors="replace")
    answer = visited.live(query, headers, data.draw(st.integers(1, 2)))
    assert answer.status < 500, (query, headers)
    assert "Traceback" not in answer.body
    assert all(
        line.startswith(("event: ", "data: ")) for line in answer.body.split("\n") if line
    ), (query, headers, answer.body[:200])
    assert visited.streams == 0


# -- parsers --------------------------------------------------------------------------------------


@fuzzed(150)
@given(texts("*/5 * * * *", "TZ=Europe/Berlin 0 9 * * MON-FRI", "L", "5#3", "*/7", "1-5/2"))
def test_a_cron_expression_is_a_timetable_or_refused(text: str):
    with suppress(PulsedError):
        timetable = cron_timetable(text)
        describe(timetable)
        list(zip(range(3), upcoming(timetable, NOW, anchor=NOW), strict=False))


@fuzzed(80)
@given(texts("sqlite:///x.db", "postgresql://u:p@h:5432/d", "pulse://h:1", "[::1]:80", "a:b@c,d"))
def test_a_url_is_an_address_or_refused_and_shows_no_password(text: str):
    for url in (text, f"sqlite:///{text}", f"postgresql://{text}", f"pulse://{text}"):
        with suppress(PulsedError):
            PostgresAddress.parse(url)
        with suppress(PulsedError):
            ServerAddress.parse(url)
        with suppress(PulsedError):
            ListenAddress.parse(url)
        with suppress(PulsedError):
            run_blocking(open_store(url).aclose())
        with suppress(PulsedError):
            where(url)
    password = "s3cret" + "".join(each for each in text if each.isalnum())[:20]
    assert password not in redacted(f"postgresql://user:{password}@host/db?x={quote(text)}")


@fuzzed(200)
@given(texts("status:dead", "topic:a*", "payload.user:7", "since:2h", 'tag:"x y"', "id:0197"))
def test_a_search_is_a_filter_and_says_what_it_did_not_understand(text: str):
    search = parse(text, NOW)
    assert all(isinstance(problem, str) for problem in search.problems)
    in_words(search.where, NOW)
    complete(text, KNOWN)
    search.with_status("dead")


@fuzzed(150)
@given(texts("90", "30s", "5m", "2h", "3d", "1h30m", "2026-11-17", "tomorrow"))
def test_a_duration_is_a_number_or_refused(text: str):
    for read in (times.duration, times.past, times.future, times.coming, times.expiry):
        with suppress(click.BadParameter, PulsedError):
            read(text)


# -- payloads -------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts()
    | st.text(alphabet=st.characters(codec=None), max_size=5)
    | st.binary(max_size=5)
    | st.datetimes()
    | st.just(object()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=2)
    ),
    max_leaves=8,
)


@fuzzed(120)
@given(VALUES)
def test_a_value_is_json_that_a_server_takes_or_refused(value: Any):
    for encode in (encode_untyped, encode_cleaned):
        try:
            text = encode("The value", value)
        except InvalidPayload:
            continue
        msgspec.json.decode(text)
        checked_json("The value", text)


@fuzzed(150)
@given(
    texts("1" + "0" * 308, "1e308", "[1,2]", '{"a":{"b":[]}}', "-", "1.", '"\\ud800"', "\ufeff1")
)
def test_a_json_text_is_taken_or_refused(text: str):
    with suppress(InvalidPayload, InvalidOption):
        checked_json("The payload", text.encode("utf-8", "replace").decode(), is_object=True)


@pytest.mark.parametrize("unit", ["[", "[]", '{"a":', "1,", '"\\u0000', "0", "-", "\\", " "])
def test_reading_json_takes_memory_in_proportion(unit: str):
    text = unit * (500_000 // len(unit))
    tracemalloc.start()
    try:
        with suppress(InvalidPayload):
            checked_json("The payload", text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most <= 8 * len(text)
