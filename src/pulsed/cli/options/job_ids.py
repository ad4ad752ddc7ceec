"""Job ids as people give them: in full, or a prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pulsed.cli.exits import Code, CommandError
from pulsed.client.one_job import checked_id
from pulsed.model.job import JobFilter
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking

SHORTEST_PREFIX = 6
"""Digits. Ids begin with a timestamp: a shorter prefix would match the jobs of hours."""

LISTED = 10
"""Jobs that are named if a prefix is ambiguous."""

_PREFIX = re.compile(r"[0-9a-f-]{1,36}", re.IGNORECASE)


def find_id(store: Store, given: str) -> UUID:
    """Return the id of the one job whose id has the given prefix."""
    digits = given.replace("-", "").lower()
    if len(digits) >= 32 or not _PREFIX.fullmatch(given):
        return checked_id(given)
    if len(digits) < SHORTEST_PREFIX:
        raise CommandError(
            f"{given!r} is too short: give at least {SHORTEST_PREFIX} digits of the id.", Code.USAGE
        )
    beyond = UUID(int=min(int(digits.ljust(32, "f"), 16) + 1, 2**128 - 1))
    newest = run_blocking(store.list_jobs(JobFilter(), limit=LISTED + 1, before=beyond))
    found = [job.id for job in newest if job.id.hex.startswith(digits)]
    if not found:
        raise CommandError(f"there is no job whose id begins with {given}", Code.NOT_FOUND)
    if len(found) > 1:
        more = "\n  …" if len(found) > LISTED else ""
        ids = "".join(f"\n  {job_id}" for job_id in found[:LISTED])
        raise CommandError(
            f"several jobs begin with {given}; give more digits of the one:{ids}{more}", Code.USAGE
        )
    return found[0]


def with_whole_ids(store: Store, where: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a filter's conditions with whole ids where people gave the beginning of one."""
    found = dict(where)
    if "parent" in where:
        found["parent"] = find_id(store, where["parent"])
    if "worker" in where and len(digits := where["worker"].replace("-", "").lower()) < 32:
        workers = [each.id for each in run_blocking(store.workers())]
        found["worker"] = _only([each for each in workers if each.hex.startswith(digits)], digits)
    return found


def _only(workers: Sequence[UUID], digits: str) -> UUID:
    if len(workers) != 1:
        ids = "".join(f"\n  {worker_id}" for worker_id in workers[:LISTED])
        told = f"several workers begin with {digits}:{ids}" if workers else None
        raise CommandError(
            told or f"there is no worker whose id begins with {digits}", Code.NOT_FOUND
        )
    return workers[0]
