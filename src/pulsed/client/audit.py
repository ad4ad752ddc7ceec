"""What operators did to the jobs, schedules and tokens of a database: ``app.audit``."""

from __future__ import annotations

import builtins
from datetime import datetime
from uuid import UUID

from pulsed.client.job import Client
from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_count, checked_instant
from pulsed.handler.payload import UNSTORABLE
from pulsed.model.audit import LONGEST_LOG, LONGEST_NAME, AuditEntry, AuditKey
from pulsed.store.blocking import blocking


class AuditLog:
    """The audit log of an app's database: ``app.audit``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def alist(
        self,
        *,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
        before: AuditKey | None = None,
        actor: str | None = None,
    ) -> builtins.list[AuditEntry]:
        """Read what operators did, the newest first.

        ``actor`` is the name of a token or a user at a host. For the next page, pass the ``key``
        of the last entry as ``before``.
        """
        return await self._client.store().audit_log(
            limit=checked_count("limit", limit, 1, LONGEST_LOG),
            since=None if since is None else checked_instant("since", since),
            until=None if until is None else checked_instant("until", until),
            before=None if before is None else _checked_key(before),
            actor=None if actor is None else _checked_actor(actor),
        )

    list = blocking(alist)


def _checked_key(key: AuditKey) -> AuditKey:
    if not isinstance(key, AuditKey) or not isinstance(key.id, UUID):
        raise InvalidOption(f"before must be the key of an entry, not {key!r:.100}.")
    return AuditKey(checked_instant("before", key.at), key.id)


def _checked_actor(actor: str) -> str:
    is_text = isinstance(actor, str) and 0 < len(actor) <= LONGEST_NAME
    if not is_text or UNSTORABLE.search(actor):
        raise InvalidOption(f"actor must be a name in the audit log, not {actor!r:.100}.")
    return actor
