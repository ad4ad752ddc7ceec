"""The presence rows of workers."""

from __future__ import annotations

from uuid import UUID

from pulsed.model.job import WorkerInfo
from pulsed.store.sql import rows as decode
from pulsed.store.sql.insertion import as_json
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reads import read_all
from pulsed.store.verbs.script import Script, Verb, VerbKind


def announce(engine: Engine, worker: WorkerInfo) -> Verb[None]:
    """Write or refresh a presence row."""
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
    return _write("announce", Statement(engine.presence.announce, params))


def retire(engine: Engine, worker_id: UUID) -> Verb[None]:
    """Remove a presence row."""
    return _write("retire", Statement(engine.presence.retire, {"worker": worker_id}))


def _write(name: str, statement: Statement) -> Verb[None]:
    def script() -> Script[None]:
        yield statement

    return Verb(name, VerbKind.SINGLE, script)


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
