"""The audit log: who did what, and when."""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from uuid import UUID

from starlette.responses import Response

from pulsed.client.search import NotUnderstood, instant
from pulsed.errors import InvalidOption
from pulsed.model.audit import AuditEntry, AuditKey
from pulsed.web.redaction import HIDDEN
from pulsed.web.site import PageCall

PAGE_SIZE = 50


async def show(call: PageCall) -> Response:
    """Show what operators did, the newest first."""
    given = {name: call.query.get(name, "").strip() for name in ("actor", "since", "until")}
    now = (await call.site.summary()).now
    problems: list[str] = []
    times = {name: _time(given[name], now, problems) for name in ("since", "until")}
    before = _cursor(call.query.get("before", ""))
    entries = []
    if not problems:
        try:
            entries = await call.app.audit.alist(
                limit=PAGE_SIZE + 1,
                since=times["since"],
                until=times["until"],
                before=before,
                actor=given["actor"] or None,
            )
        except InvalidOption as error:
            problems.append(str(error))
    shown = entries[:PAGE_SIZE]
    is_last = len(entries) <= PAGE_SIZE
    older = None if is_last else call.url("/audit", **given, before=_written(shown[-1].key))
    return await call.page(
        "audit.html",
        entries=shown,
        detail=partial(_detail, sees=call.visitor.may_see_payloads),
        older=older,
        given=given,
        problems=problems,
        before=before,
    )


def _detail(entry: AuditEntry, *, sees: bool) -> str:
    """Return what an act was about; a filter may name data that not every visitor may see."""
    return entry.detail if sees or _OF_DATA.search(entry.detail) is None else HIDDEN


_OF_DATA = re.compile(r"(?:^| )(?:payload|key|limit_key)=")
"""Conditions of a filter whose values come from payloads."""


def _time(text: str, now: datetime, problems: list[str]) -> datetime | None:
    try:
        return instant(text, now) if text else None
    except NotUnderstood as error:
        problems.append(str(error))
        return None


def _written(key: AuditKey) -> str:
    return f"{key.at.isoformat()},{key.id}"


def _cursor(text: str) -> AuditKey | None:
    """Return where a page begins; a cursor that was tampered with begins at the newest."""
    at, _, entry = text.partition(",")
    try:
        key = AuditKey(datetime.fromisoformat(at), UUID(entry))
    except ValueError:
        return None
    return key if key.at.tzinfo else None
