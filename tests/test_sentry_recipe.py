"""The recipe for Sentry in docs/hooks.md, with the SDK's transport in memory."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from pulsed import Context, Pulse, Status
from tests.support.pages import ROOT, blocks
from tests.support.workers import until


class InMemory(Transport):
    """Keeps what would be sent."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.sent: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent.append(envelope.get_event())


@pytest.fixture
def transport() -> Iterator[InMemory]:
    made = InMemory()
    with sentry_sdk.isolation_scope() as scope:
        client = sentry_sdk.Client(
            dsn="https://key@host.test/1",
            transport=made,
            default_integrations=False,
            auto_enabling_integrations=False,
        )
        scope.set_client(client)
        yield made
        client.close()


def recipe() -> str:
    (found,) = [b.code for b in blocks(ROOT / "docs/hooks.md") if "capture_exception" in b.code]
    return found


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_failed_run_is_reported_with_its_job(transport: InMemory, is_async: bool):
    async with Pulse("sqlite://") as app:
        exec(recipe(), {"app": app, "Context": Context, "Iterator": Iterator})

        def fails() -> None:
            raise ValueError("mine")

        async def fails_on_loop() -> None:
            fails()

        work = app.job(topic="work", max_attempts=1)(fails_on_loop if is_async else fails)
        job = await work.aenqueue()
        worker = app.worker(poll=0.02)
        task = asyncio.create_task(worker.run())

        async def is_over() -> bool:
            return (await job.arefresh()).status is Status.DEAD_LETTERED

        await until(is_over)
        worker.stop()
        await task
    (event,) = transport.sent
    assert event["tags"] == {"job.id": str(job.id), "job.topic": "work", "job.attempt": 1}
    assert event["exception"]["values"][0]["value"] == "mine"
