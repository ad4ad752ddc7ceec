"""The presence rows of workers."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pulsed.model.job import WorkerInfo, WorkerRequest
from pulsed.store.sql import rows as decode
from pulsed.store.sql.insertion import as_json
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reads import read_all
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb


def announce(engine: Engine, worker: WorkerInfo) -> Verb[WorkerRequest | None]:
    """Write or refresh a presence row; returns what an operator has asked of the worker."""
    params = {
        "worker": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": as_json(worker.queues),
        "topics": as_json(worker.topics),
        "slots": worker.slots,
        "running": worker.running,
        "stuck": worker.stuck,
        "state": worker.state,
        "version": worker.version,
    }

    def script() -> Script[WorkerRequest | None]:
        [(request,)] = yield Statement(engine.presence.announce, params)
        return None if request is None else WorkerRequest(request)

    return Verb("announce", VerbKind.SINGLE, script)


@verb(VerbKind.SINGLE)
def retire(engine: Engine, worker_id: UUID) -> Script[None]:
    """Remove a presence row."""
    yield Statement(engine.presence.retire, {"worker": worker_id})


@verb(VerbKind.TRANSACTION)
def ask_workers(
    engine: Engine, ids: Sequence[UUID], request: WorkerRequest
) -> Script[list[WorkerInfo]]:
    """Ask workers to end; returns those that there are."""
    statement = Statement(engine.presence.ask, {"request": request.value}, one_column(ids))
    return decode.worker.all(engine.dialect, (yield statement))


def workers(engine: Engine) -> Verb[list[WorkerInfo]]:
    """Read the presence rows."""
    return read_all("workers", engine, Statement(engine.presence.read_workers, {}), decode.worker)


def worker(engine: Engine, worker_id: UUID) -> Verb[list[WorkerInfo]]:
    """Read the presence row of one worker."""
    return read_all(
        "worker",
        engine,
        Statement(engine.presence.read_worker, {"worker": worker_id}),
        decode.worker,
    )
