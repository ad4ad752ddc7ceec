"""Workers' presence."""

from __future__ import annotations

from uuid import UUID

from pulsed.model.job import WorkerInfo
from pulsed.store.sql import rows as decode
from pulsed.store.sql.insertion import as_json
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.reads import read_all
from pulsed.store.verbs.script import Kind, Script, Verb


def announce(s: Statements, worker: WorkerInfo) -> Verb[None]:
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
    return _write("announce", Statement(s.announce, params))


def retire(s: Statements, worker_id: UUID) -> Verb[None]:
    """Remove a presence row."""
    return _write("retire", Statement(s.retire, {"worker": worker_id}))


def _write(name: str, statement: Statement) -> Verb[None]:
    def script() -> Script[None]:
        yield statement

    return Verb(name, Kind.SINGLE, script)


def workers(s: Statements) -> Verb[list[WorkerInfo]]:
    """Read the presence rows."""
    return read_all("workers", s, Statement(s.read_workers, {}), decode.worker)


def worker(s: Statements, worker_id: UUID) -> Verb[list[WorkerInfo]]:
    """Read the presence row of one worker."""
    return read_all("worker", s, Statement(s.read_worker, {"worker": worker_id}), decode.worker)
