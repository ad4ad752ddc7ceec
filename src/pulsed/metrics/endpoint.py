"""A small HTTP server for a handful of read-only paths, on the event loop that it reports on.

A loop that is stuck does not answer, which is what a liveness probe has to see. Everything is
bounded: the request's size, the time it takes, and the connections. Each connection serves one
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from pulsed.errors import ConfigError
from pulsed.listen_address import ListenAddress

log = logging.getLogger("pulsed.metrics")

LONGEST_LINE = 4_096
"""Bytes of the request line, and of each header."""
MOST_HEADERS = 64
READ_WITHIN = 5.0
"""Seconds for the whole request to arrive."""
ANSWER_WITHIN = 10.0
"""Seconds for the answer to be made, and as many for it to be sent."""
MOST_CONNECTIONS = 32


class Answer(NamedTuple):
    """What a path answers."""

    status: HTTPStatus
    text: bytes
    content_type: str = "text/plain; charset=utf-8"


Path: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Answer]]
"""Answers a request for one path; it gets the headers, their names in lower case."""


@contextlib.asynccontextmanager
async def serving(
    address: ListenAddress, paths: Mapping[str, Path]
) -> AsyncIterator[ListenAddress]:
    """Serve paths while the block runs; yields where, with the port that was taken."""
    endpoint = Endpoint(paths)
    try:
        server = await asyncio.start_server(
            endpoint.connected, address.host, address.port, limit=LONGEST_LINE
        )
    except OSError as error:
        raise ConfigError(
            f"Metrics and health cannot be served on {address}: {error.strerror or error}. Choose "
            "another port; port 0 takes a free one."
        ) from error
    try:
        yield ListenAddress(address.host, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await endpoint.close()


class Endpoint:
    """The paths that are served, and the open connections."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        *,
        read_within: float = READ_WITHIN,
        answer_within: float = ANSWER_WITHIN,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._paths = paths
        self._read_within = read_within
        self._answer_within = answer_within
        self._most_connections = most_connections
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection, unless there are too many."""
        if len(self._tasks) >= self._most_connections:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="pulsed-metrics")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._read_within):
                request = await _read_request(reader)
            if isinstance(request, HTTPStatus):
                method, answer = "GET", _refused(request)
            else:
                method, answer = request.method, await self._answer(request)
            writer.write(_response(method, answer))
            async with asyncio.timeout(self._answer_within):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone, or is too slow
        finally:
            writer.transport.abort()

    async def _answer(self, request: _Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED)
        path = self._paths.get(request.path)
        if path is None:
            return _refused(HTTPStatus.NOT_FOUND)
        try:
            async with asyncio.timeout(self._answer_within):
                return await path(request.headers)
        except TimeoutError:
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:
            log.exception("%s failed", request.path)
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR)


class _Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]


async def _read_request(reader: asyncio.StreamReader) -> _Request | HTTPStatus:
    """Return a request, or why it is refused. A body is not read: no path takes one."""
    try:
        first = await _read_line(reader)
        headers: dict[str, str] = {}
        for _ in range(MOST_HEADERS + 1):
            line = await _read_line(reader)
            if not line:
                break
            name, colon, value = line.partition(":")
            if not colon:
                return HTTPStatus.BAD_REQUEST
            headers[name.strip().lower()] = value.strip()
        else:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    except asyncio.LimitOverrunError:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    match first.split(" "):
        case [method, target, ("HTTP/1.1" | "HTTP/1.0")]:
            return _Request(method, target.partition("?")[0], headers)
    return HTTPStatus.BAD_REQUEST


async def _read_line(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\n")).decode("latin-1").rstrip("\r\n")


def _refused(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())


def _response(method: str, answer: Answer) -> bytes:
    status, text, content_type = answer
    allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(text)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{allow}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if method == "HEAD" else text)
