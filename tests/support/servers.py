"""A pulsed server inside the test's process, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.authentication import Authenticator, TokenAuthenticator
from pulsed.rpc.server.server import Server, ServerOptions
from pulsed.store.base import Store

T = TypeVar("T")

PATIENCE = 60.0


class NoSharedPollerNoise(logging.Filter):
    """Drops a grpc warning: two event loops of one process read the same wake-up socket."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "PollerCompletionQueue" not in record.getMessage()


logging.getLogger("asyncio").addFilter(NoSharedPollerNoise())


class FreshAuthenticator(TokenAuthenticator):
    """Reads the tokens at every call, so that tests need not wait for the next read."""

    async def authenticate(self, context: Any) -> Caller:
        await self.refresh()
        return await super().authenticate(context)


class ServerThread:
    """Serves a store until ``stop()``."""

    def __init__(
        self,
        make_store: Callable[[], Store],
        authenticator: Authenticator | None = None,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {"listen": "127.0.0.1:0", "poll": 0.02, "upkeep": False} | options
        self._options = ServerOptions(**given)
        self._authenticator = authenticator
        self.store = make_store()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        if self._failure is not None:
            raise self._failure

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def url(self) -> str:
        return f"pulse://{self.host}"

    def do(self, work: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work(self.server), self._loop).result(PATIENCE)

    def drain(self) -> None:
        """Let it end as after SIGTERM."""
        self._end(lambda server: server.drain())

    def stop(self) -> None:
        """Let it end at once."""
        self._end(lambda server: server.stop())

    def _end(self, how: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
        if self._thread.is_alive():
            self.do(how)
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self.server = Server(self.store, self._options, self._authenticator)
        try:
            await self.server.start()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self._failure = error
            self._ready.set()
            return
        self._ready.set()
        await self._over.wait()
        await self.store.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
