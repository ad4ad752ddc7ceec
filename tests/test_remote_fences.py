"""When a worker stops its jobs because it does not know whether they still are its own."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest
from grpc import aio

from pulsed.engine.worker.leases import LONGEST_PAUSE, Fence, Leases
from pulsed.errors import AccessDenied, ServerUnreachable, TransientStorageError
from pulsed.model.job import Assignment, Lease
from pulsed.model.outcome import Beat
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import ERROR_KEY
from pulsed.rpc.messages.jobs import lease_message
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import ALICE, running
from tests.support.raw_streams import raw_client
from tests.support.servers import ServerThread

NOW = datetime.now(UTC)


class Failing:
    """A store whose heartbeats fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def beat(self, leases: Any, **_: Any) -> dict[Lease, Beat]:
        raise self._error


def held(store: Any, fence: Fence, lease: float = 30.0) -> tuple[Leases, list[Lease]]:
    """Return a lease that is held but unconfirmed for too long, and those that were fenced."""
    given_up: list[Lease] = []
    leases = Leases(store, given_up.extend, lambda *_: None, fence=fence)
    mine = Lease(UUID(int=1), 1, ALICE)
    run = Assignment(mine, "t", "default", 0, "{}", 1, 3, lease, None, {}, NOW, NOW)
    leases.add([run], time.monotonic())
    leases._sure_until = dict.fromkeys(leases._sure_until, time.monotonic() - 1)
    return leases, given_up


AWAY = TransientStorageError("the server's database is away")
UNREACHABLE = ServerUnreachable("no server answers")
DENIED = AccessDenied("the token was revoked")


@pytest.mark.parametrize(
    "fence, error, stops",
    [
        (Fence.UNHEARD, AWAY, False),
        (Fence.UNHEARD, UNREACHABLE, True),
        (Fence.UNHEARD, DENIED, True),
        (Fence.UNCONFIRMED, AWAY, True),
        (Fence.UNCONFIRMED, UNREACHABLE, True),
        (Fence.NEVER, AWAY, False),
        (Fence.NEVER, UNREACHABLE, False),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
def test_a_database_that_is_away_is_away_for_everybody_a_server_is_not(fence, error, stops):
    leases, given_up = held(Failing(error), fence)
    leases.attempt()
    assert bool(given_up) is stops


def test_who_hears_nothing_more_after_that_is_fenced_all_the_same():
    store = Failing(AWAY)
    leases, given_up = held(store, Fence.UNHEARD)
    leases.attempt()
    store._error = UNREACHABLE
    leases.attempt()
    assert given_up == []  # the server has answered a moment ago
    leases._sure_until = dict.fromkeys(leases._sure_until, time.monotonic() - 1)
    leases.attempt()
    assert len(given_up) == 1


@pytest.mark.parametrize("lease", [30.0, 86_400.0])
def test_a_beat_that_failed_is_made_again_soon_however_long_the_lease_is(lease):
    """After a gap, workers get a moment for a heartbeat, not a third of their lease."""
    leases, _ = held(Failing(AWAY), Fence.NEVER, lease)
    leases.attempt()
    assert leases._next_beat - time.monotonic() <= LONGEST_PAUSE


async def test_a_server_says_that_its_database_is_away_before_the_worker_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its silence would be taken for a broken network."""
    with ServerThread(lambda: SqliteStore(tmp_path / "jobs.db")) as server:
        store = SqliteStore(tmp_path / "jobs.db")
        mine = await running(store)
        await store.aclose()
        server.do(lambda it: it.store.now())  # as the command does before it serves

        async def away(_: Any) -> Any:
            raise AWAY

        monkeypatch.setattr(server.store, "perform", away)
        request = pb.HeartbeatRequest(leases=[lease_message(mine.lease)])
        async with raw_client(server.host) as client:
            # Long enough for a slow machine, and shorter than a server's own patience.
            with pytest.raises(aio.AioRpcError, match="database is away") as refused:
                await client("Heartbeat", request, seconds=1.0)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    said = dict(tuple(refused.value.trailing_metadata() or ()))
    assert said[ERROR_KEY] == "TransientStorageError"
