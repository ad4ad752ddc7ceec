"""The endpoint of metrics and probes: only what it serves, and bounded in every way."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from pulsed.errors import ConfigError
from pulsed.listen_address import ListenAddress
from pulsed.metrics import endpoint
from pulsed.metrics.endpoint import Answer, Endpoint, serving
from tests.support.scrapes import get, request
from tests.support.workers import until

HERE = ListenAddress("127.0.0.1", 0)


async def hello(headers: Mapping[str, str]) -> Answer:
    return Answer(HTTPStatus.OK, f"hello {headers.get('accept')}".encode())


async def broken(_: Mapping[str, str]) -> Answer:
    raise ValueError("mine")


async def endless(_: Mapping[str, str]) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


PATHS = {"/hello": hello, "/broken": broken, "/endless": endless}


@asynccontextmanager
async def bounded(**bounds: Any) -> AsyncIterator[tuple[ListenAddress, Endpoint]]:
    """An endpoint with bounds of the test's own."""
    it = Endpoint(PATHS, **bounds)
    server = await asyncio.start_server(it.connected, "127.0.0.1", 0, limit=endpoint.LONGEST_LINE)
    try:
        yield ListenAddress("127.0.0.1", server.sockets[0].getsockname()[1]), it
    finally:
        server.close()
        await it.close()


async def test_get_and_head_are_answered_with_the_length_of_the_body():
    async with serving(HERE, PATHS) as at:
        got = await get(at, "/hello?x=1", "text/plain")
        assert (got.status, got.text) == (200, "hello text/plain")
        head = await request(at, "HEAD /hello HTTP/1.1\r\nAccept: text/plain\r\n\r\n")
        assert (head.status, head.text) == (200, "")
        assert head.headers["content-length"] == got.headers["content-length"] == "16"
        assert got.headers["connection"] == "close"


@pytest.mark.parametrize(
    "text, status",
    [
        ("POST /hello HTTP/1.1\r\n\r\n", 405),
        ("GET /other HTTP/1.1\r\n\r\n", 404),
        ("GET /hello\r\n\r\n", 400),
        ("GET  /hello HTTP/1.1\r\n\r\n", 400),
        ("GET /hello HTTP/2\r\n\r\n", 400),
        ("\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (f"GET /{'x' * endpoint.LONGEST_LINE} HTTP/1.1\r\n\r\n", 431),
        (f"GET /hello HTTP/1.1\r\na: {'x' * endpoint.LONGEST_LINE}\r\n\r\n", 431),
        ("GET /hello HTTP/1.1\r\n" + "a: b\r\n" * (endpoint.MOST_HEADERS + 1) + "\r\n", 431),
        ("GET /hello HTTP/1.1\r\n" + "a: b\r\n" * endpoint.MOST_HEADERS + "\r\n", 200),
        ("GET /broken HTTP/1.1\r\n\r\n", 500),
    ],
)
async def test_what_is_not_served_is_refused(text: str, status: int):
    async with serving(HERE, PATHS) as at:
        assert (await request(at, text)).status == status


async def test_an_answer_that_takes_too_long_is_refused():
    async with bounded(answer_within=0.01) as (at, _):
        assert (await get(at, "/endless")).status == 503


async def test_a_request_that_does_not_arrive_ends_the_connection():
    async with bounded(read_within=0.01) as (at, _):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write(b"GET /hello HTTP/1.1\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_connections_beyond_the_limit_are_closed_and_others_are_served():
    async with bounded(most_connections=2) as (at, it):
        idle = [await asyncio.open_connection(at.host, at.port) for _ in range(2)]
        await until(lambda: len(it._tasks) == 2)
        reader, writer = await asyncio.open_connection(at.host, at.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        idle[0][1].close()
        await until(lambda: len(it._tasks) == 1)
        assert (await get(at, "/hello")).status == 200
        idle[1][1].close()


async def test_a_port_that_is_taken_is_an_error_that_says_so():
    async with serving(HERE, PATHS) as at:
        with pytest.raises(ConfigError, match=f"cannot be served on {at}"):
            async with serving(at, PATHS):
                pass


def test_an_address_without_a_host_is_this_machine_only():
    assert str(ListenAddress.parse(":9464")) == str(ListenAddress.parse("9464")) == "127.0.0.1:9464"
    assert str(ListenAddress.parse("[::1]:9464")) == "[::1]:9464"
    assert ListenAddress.parse("0.0.0.0:9464") == ListenAddress("0.0.0.0", 9464)
    for text in ("localhost", "x:y", "127.0.0.1:70000", ""):
        with pytest.raises(ConfigError, match="is not an address"):
            ListenAddress.parse(text)


def test_each_of_several_processes_has_a_port_of_its_own():
    assert ListenAddress.parse(":9464").next(3).port == 9467
    assert ListenAddress.parse(":0").next(3).port == 0
    with pytest.raises(ConfigError, match="leaves no"):
        ListenAddress.parse(":65535").next(1)
