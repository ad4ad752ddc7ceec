"""A TCP proxy between a client and its server that drops, delays, swallows and cuts.

It runs in a thread with an event loop of its own; the storm turns its knobs from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

PIECE = 1 << 16


class FaultyProxy:
    """Stands before ``host:port``; healthy until told otherwise."""

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1", at: int = 0) -> None:
        self._server = (host, port)
        self._listen = listen
        self.port = at
        self.delay = 0.0
        """Seconds that each piece takes longer, either way."""
        self.swallows = False
        """Whether nothing passes: connections stay open, also new ones, and never answer."""
        self.cuts = 0
        self._to_cut = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def drop(self) -> None:
        """Close every connection there is, without a word."""
        self._loop.call_soon_threadsafe(self._drop)

    def cut_answers(self, number: int) -> None:
        """Forward the next requests, such as a COMMIT, and cut them off before the answer."""
        self._to_cut = number

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, self._listen, self.port)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._drop()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(reader, writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passable()
        from_server, to_server = await asyncio.open_connection(*self._server)
        self._writers.add(to_server)
        doomed = asyncio.Event()
        pumps = [
            asyncio.ensure_future(self._pump(reader, to_server, doomed, cuts=True)),
            asyncio.ensure_future(self._pump(from_server, writer, doomed)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            to_server.transport.abort()
            self._writers.discard(to_server)

    async def _passable(self) -> None:
        while self.swallows:  # noqa: ASYNC110 - it is set by another thread
            await asyncio.sleep(0.05)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        doomed: asyncio.Event,
        *,
        cuts: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE):
                if doomed.is_set() and not cuts:
                    return  # the answer
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._passable()
                if cuts and self._to_cut > 0:
                    self._to_cut -= 1
                    self.cuts += 1
                    doomed.set()
                target.write(data)
                await target.drain()
