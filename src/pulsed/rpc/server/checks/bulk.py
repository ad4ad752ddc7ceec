"""What a server accepts of a bulk operation."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pulsed.client.acts import checked_act, checked_statuses
from pulsed.model.bulk import BulkAct, BulkKind
from pulsed.model.job import JobFilter
from pulsed.rpc.messages.bulk import act_of
from pulsed.rpc.messages.errors import invalid
from pulsed.rpc.messages.jobs import filter_of
from pulsed.rpc.server.access import Caller, TokenRole, denied
from pulsed.rpc.server.checks.items import converted

OPERATED = (BulkKind.RETRY, BulkKind.CANCEL, BulkKind.RUN_NOW)
"""What the role operate may do; all other acts need admin, as they do for single jobs."""


def act(message: Any, caller: Caller) -> BulkAct:
    """Return an act that the caller may do."""
    asked: BulkAct = converted(act_of, message)
    if asked.kind not in OPERATED and TokenRole.ADMIN not in caller.roles:
        raise denied(f"To {asked.kind.verb} jobs, {caller.name} needs the role admin.")
    if asked.queue is not None and caller.queues is not None and asked.queue not in caller.queues:
        raise denied(f"{caller.name} may not use queue {asked.queue!r}.")
    return checked_act(asked)


def chosen(request: Any, asked: BulkAct, caller: Caller) -> JobFilter:
    """Return the filter of an operation: within the caller's limits, never all jobs."""
    where: JobFilter = converted(filter_of, request.where)
    if where.conditions < request.conditions:
        raise invalid("The filter has conditions that this server does not know: upgrade it.")
    caller.check_filter(where)
    return replace(where, status=checked_statuses(where, asked.kind))
