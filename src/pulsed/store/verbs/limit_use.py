"""What a limit has in use, for people: counted up to a bound, and never by a claim."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from uuid import UUID

from pulsed.model.control import ControlScope
from pulsed.model.limit import KeyUse, LimitUse
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.controls import read_rates
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, VerbKind, verb

MOST_COUNTED = 5_000
"""Jobs that are counted in each queue, and runs."""

MOST_QUEUES = 50

SHOWN_HOLDERS = 5


@verb(VerbKind.READ)
def limit_use(engine: Engine, name: str, keys: int) -> Script[LimitUse]:
    """Read what a limit has in use, with its ``keys`` busiest keys."""
    params = {"name": name, "beyond": f"{name}-", "most": MOST_COUNTED}  # "-" follows ","
    holders = defaultdict[str, list[UUID]](list)
    for key, job_id in (yield Statement(engine.limited.limit_runs, params)):
        holders[key].append(engine.dialect.uuid(job_id))
    waiting: Counter[str] = Counter()
    is_cut = sum(map(len, holders.values())) >= MOST_COUNTED
    rows = yield Statement(engine.health.queues, {})
    queues = [queue for (queue,) in rows if queue is not None]
    for queue in queues[:MOST_QUEUES]:
        rows = yield Statement(engine.limited.limit_waits, params | {"queue": queue})
        found = {key: number for key, number in rows}  # noqa: C416 - rows are not pairs to mypy
        is_cut |= sum(found.values()) >= MOST_COUNTED
        waiting.update(found)
    busiest = _busiest(holders, waiting, keys)
    tats = (yield from read_rates(engine, ControlScope.LIMIT, busiest)) if busiest else {}
    return LimitUse(
        running=sum(map(len, holders.values())),
        waiting=waiting.total(),
        keys=tuple(
            KeyUse(
                key=key,
                running=len(holders.get(key, ())),
                waiting=waiting[key],
                holders=tuple(holders.get(key, ())[:SHOWN_HOLDERS]),
                tat=tats.get(key),
            )
            for key in busiest
        ),
        at_least=is_cut or len(queues) > MOST_QUEUES,
    )


def _busiest(holders: Mapping[str, list[UUID]], waiting: Mapping[str, int], most: int) -> list[str]:
    """Return the keys with the most waiting jobs, then with the most runs."""
    every = {*holders, *waiting}

    def rank(key: str) -> tuple[int, int, str]:
        return -waiting.get(key, 0), -len(holders.get(key, ())), key

    return sorted(every, key=rank)[:most]
