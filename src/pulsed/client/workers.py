"""The workers of a database: ``app.workers``."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from uuid import UUID

from pulsed.client.job import Client
from pulsed.client.operator import operator
from pulsed.engine.why import live
from pulsed.errors import InvalidOption, WorkerNotFound
from pulsed.model.job import WorkerInfo, WorkerRequest
from pulsed.store.base import Store
from pulsed.store.blocking import blocking

MOST_AT_ONCE = 1_000
"""Workers that are asked in one transaction."""


class Workers:
    """See which workers there are, and drain or stop them remotely."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def alist(self) -> builtins.list[WorkerInfo]:
        """Read the workers, also those that have gone silent; the oldest first."""
        return await self._client.store().workers()

    list = blocking(alist)

    async def adrain(
        self, *workers: UUID | str, host: str | None = None, everywhere: bool = False
    ) -> builtins.list[WorkerInfo]:
        """Ask workers to claim nothing more, finish what runs, and end; returns those asked.

        Name them by id, by the beginning of an id, or as ``host:pid``; or take all live ones of a
        ``host``, or ``everywhere``. They learn it at once, behind a server within their ``tick``.
        """
        return await self._ask(WorkerRequest.DRAIN, workers, host, everywhere=everywhere)

    drain = blocking(adrain)

    async def astop(
        self, *workers: UUID | str, host: str | None = None, everywhere: bool = False
    ) -> builtins.list[WorkerInfo]:
        """Ask workers to hand back what runs, and end; otherwise like ``adrain``."""
        return await self._ask(WorkerRequest.STOP, workers, host, everywhere=everywhere)

    stop = blocking(astop)

    async def _ask(
        self,
        request: WorkerRequest,
        named: Sequence[UUID | str],
        host: str | None,
        *,
        everywhere: bool,
    ) -> builtins.list[WorkerInfo]:
        store = self._client.store()
        chosen = await choose(store, named, host, everywhere=everywhere)
        return await ask(store, chosen, request)


async def choose(
    store: Store, named: Sequence[UUID | str], host: str | None, *, everywhere: bool
) -> list[WorkerInfo]:
    """Return the workers that are meant, of which there must be one for each name."""
    if (bool(named) + (host is not None) + everywhere) != 1:
        raise InvalidOption("Say which workers: some by their ids, those of one host, or all.")
    found = await store.workers()
    if named:
        return [_one(found, str(name)) for name in named]
    return [each for each in live(found, await store.now()) if host in (None, each.host)]


async def ask(
    store: Store, workers: Sequence[WorkerInfo], request: WorkerRequest
) -> list[WorkerInfo]:
    """Ask workers to end; returns those that are still there."""
    ids = list(dict.fromkeys(each.id for each in workers))
    asked: list[WorkerInfo] = []
    for begin in range(0, len(ids), MOST_AT_ONCE):
        some = ids[begin : begin + MOST_AT_ONCE]
        asked += await store.ask_workers(some, request, by=operator())
    return asked


def _one(workers: Sequence[WorkerInfo], name: str) -> WorkerInfo:
    """Return the worker that is meant."""
    found = [
        each
        for each in workers
        if name and (str(each.id).startswith(name.lower()) or name == f"{each.host}:{each.pid}")
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise WorkerNotFound(f"There is no worker {name!r:.100}. `pulsed workers` lists them.")
    ids = ", ".join(str(each.id) for each in found[:5])
    raise WorkerNotFound(
        f"{len(found)} workers are meant by {name!r:.100}: {ids}. Be more precise."
    )
