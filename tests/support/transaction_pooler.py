"""A pooler that behaves like PgBouncer in transaction mode, small enough to be in a test.

A client keeps a server connection only while its transaction lasts, then gets another one. So
nothing that lives in a session (prepared statements, SET, LISTEN) is there the next time.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.support.known_types import asking_every_time

TRACKED = {"user", "database", "client_encoding", "application_name", "datestyle", "timezone"}
PROTOCOL = 196_608
SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80_877_103, 80_877_104, 80_877_102


class Link:
    """One TCP connection, read message by message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def message(self) -> bytes:
        head = await self._reader.readexactly(5)
        return head + await self._reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)

    async def startup(self) -> bytes:
        (length,) = struct.unpack("!I", await self._reader.readexactly(4))
        return await self._reader.readexactly(length - 4)


class TransactionPooler:
    """Hands out its server connections in turn, one transaction at a time."""

    def __init__(self, url: str, size: int) -> None:
        self._url = urlsplit(url)
        self._size = size
        self._servers: asyncio.Queue[Link] = asyncio.Queue()
        self._greeting = b""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        for _ in range(self._size):
            link = Link(*await asyncio.open_connection(self._url.hostname, self._url.port))
            names = ["user", "postgres", "database", self._url.path[1:], ""]
            body = struct.pack("!I", PROTOCOL) + "\0".join(names).encode() + b"\0"
            link.writer.write(struct.pack("!I", len(body) + 4) + body)
            self._greeting = b""
            while not self._greeting.endswith(b"Z\0\0\0\5I"):
                self._greeting += await link.message()
            self._servers.put_nowait(link)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = Link(reader, writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            if await self._greet(client):
                await self._relay(client)
        writer.close()
        self._tasks.discard(task)

    async def _greet(self, client: Link) -> bool:
        request = await client.startup()
        while struct.unpack("!I", request[:4])[0] in (SSL_REQUEST, GSS_REQUEST):
            client.writer.write(b"N")
            request = await client.startup()
        if struct.unpack("!I", request[:4])[0] == CANCEL_REQUEST:
            return False
        names = {name.decode().lower() for name in request[4:].split(b"\0")[:-2:2]}
        if unknown := names - TRACKED:
            text = f"SFATAL\0C08P01\0Munsupported startup parameter: {unknown}\0\0".encode()
            client.writer.write(b"E" + struct.pack("!I", len(text) + 4) + text)
            return False
        client.writer.write(self._greeting)
        return True

    async def _relay(self, client: Link) -> None:
        said: asyncio.Future[bytes] = asyncio.ensure_future(client.message())
        try:
            while (await said)[:1] != b"X":
                server = await self._servers.get()
                said = await self._transaction(client, server, said)
                self._servers.put_nowait(server)  # to the back: the next one is another
        finally:
            said.cancel()

    async def _transaction(
        self, client: Link, server: Link, said: asyncio.Future[bytes]
    ) -> asyncio.Future[bytes]:
        """Relay until the server is idle again; returns the client's next message, to come."""
        owed = 0  # answers to Query and Sync
        answer = asyncio.ensure_future(server.message())
        while True:
            await asyncio.wait({said, answer}, return_when=asyncio.FIRST_COMPLETED)
            if said.done():
                owed += said.result()[:1] in (b"Q", b"S")
                server.writer.write(said.result())
                said = asyncio.ensure_future(client.message())
            if answer.done():
                message = answer.result()
                client.writer.write(message)
                owed -= message[:1] == b"Z"
                if message == b"Z\0\0\0\5I" and not owed:
                    return said
                answer = asyncio.ensure_future(server.message())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        while not self._servers.empty():
            self._servers.get_nowait().writer.close()


@asynccontextmanager
async def pooled(url: str, *, size: int = 3) -> AsyncIterator[str]:
    """Put a pooler before the server; yields the URL that leads through it."""
    pooler = TransactionPooler(url, size)
    await pooler.open()
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with asking_every_time():
            yield f"postgresql://postgres@127.0.0.1:{port}{urlsplit(url).path}?sslmode=disable"
    finally:
        pooler.close()
        server.close()
        await server.wait_closed()
