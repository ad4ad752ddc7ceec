"""Ending jobs that no worker has started in time."""

from __future__ import annotations

from pulsed.store.results import Expired
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.effects import Effects, effects
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, VerbKind, verb


@verb(VerbKind.TRANSACTION, looks_for_work=True)
def expire(engine: Engine, limit: int) -> Script[tuple[list[Expired], Effects]]:
    """End up to ``limit`` expired jobs, except those that another session has locked."""
    found = yield Statement(engine.expiry.pick_expired, {"most": limit})
    if not found:
        return [], Effects()
    ids = [job_id for (job_id,) in found]
    locked = yield from engine.lock_free(ids)
    free = one_column(job_id for job_id in ids if job_id not in locked)
    ended = (yield Statement(engine.expiry.expire, {}, free)) if free else []
    d = engine.dialect
    expired = [
        Expired(d.uuid(job_id), topic, queue, d.time(expires_at))
        for job_id, _, _, _, topic, queue, expires_at in ended
    ]
    return expired, (yield from effects(engine, ended))
