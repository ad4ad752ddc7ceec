"""Acts on all jobs that match a search: a preview that counts them, a confirmation, progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

import msgspec
from starlette.responses import Response

from pulsed.client.acts import moving, reprioritising, rescheduling
from pulsed.client.bulk import read_bulk, start_bulk, stop_bulk
from pulsed.client.one_job import checked_id
from pulsed.client.search import NotUnderstood, Search, coming, in_words
from pulsed.errors import InvalidOption
from pulsed.model.bulk import CANCEL, DELETE, RETRY, RUN_NOW, BulkAct, BulkKind, BulkRow, Skip
from pulsed.model.job import JobFilter, Status
from pulsed.model.limit import split_key
from pulsed.model.page import bound_of
from pulsed.web.access import Role
from pulsed.web.pages.jobs import search_of
from pulsed.web.site import PageCall
from pulsed.wording import counted

KINDS = {kind.verb.replace(" ", "-"): kind for kind in BulkKind}
OPERATED = (BulkKind.RETRY, BulkKind.RUN_NOW, BulkKind.CANCEL)
"""What an operator may do; the others are for admins."""
MOST_SHOWN = 100
"""Operations in the list, and skipped jobs of one."""


async def preview(call: PageCall) -> Response:
    """Show how many jobs an act would change, and ask whether to do it."""
    name = call.query.get("act", "")
    kind = KINDS.get(name)
    needed = Role.OPERATOR if kind in OPERATED else Role.ADMIN
    if kind is None or not call.visitor.may(needed):
        raise InvalidOption(f"You cannot do {name!r:.40} to all jobs that match.")
    now = await call.app.store.now()
    search = search_of(call, call.query.get("q", ""), now)
    where = _chosen(search, kind, now)
    counts, _ = await asyncio.gather(call.app.store.counts(where), call.site.summary())
    return await call.page(
        "bulk.html",
        q=search.text,
        name=name,
        kind=kind,
        what=in_words(where, now),
        counts={status: number for status, number in counts.items() if number},
        total=sum(counts.values()),
        is_at_least=bool(counts.at_least),
        searched=f"{bound_of(where):,}",
        until=where.until,
        back=call.url_path("/jobs", q=search.text),
    )


def _chosen(search: Search, kind: BulkKind, until: datetime) -> JobFilter:
    """Return the jobs of an act: of the search, and in a status that allows it.

    What is submitted after the preview is not part of it.
    """
    if search.problems:
        raise InvalidOption(f"The search is not clear, so nothing is done: {search.problems[0]}")
    if search.where.is_empty:
        raise InvalidOption(
            f"Without a search every job would be {kind.done}. Narrow it down first, for example "
            "by status:, topic: or until:."
        )
    wanted = search.where.status or tuple(Status)
    allowed = tuple(status for status in kind.allowed if status in wanted)
    if not allowed:
        raise InvalidOption(
            f"Jobs that are {', '.join(wanted)} cannot be {kind.done}; only "
            f"{', '.join(kind.allowed)} can."
        )
    until = min(until, search.where.until) if search.where.until else until
    return msgspec.structs.replace(search.where, status=allowed, until=until)


def _perform(
    kind: BulkKind, made: Callable[[str, datetime], BulkAct]
) -> Callable[[PageCall], Awaitable[Response]]:
    """Return the page that starts an act, which ``made`` makes of the form's value."""

    async def start(call: PageCall) -> Response:
        now = await call.app.store.now()
        until = _instant(call.given("until"))
        search = search_of(call, call.given("q"), until)
        where = _chosen(search, kind, min(until, now))
        expected = call.given("expected")
        if kind is BulkKind.DELETE and call.given("typed").replace(",", "").strip() != expected:
            raise InvalidOption(f"Type {expected} to confirm. Nothing was deleted.")
        row = await start_bulk(call.app.store, made(call.given("to"), now), where)
        call.site.performing.start(call.app.store, row.id)
        more = "at least " if row.is_at_least else ""
        text = f"{kind.verb.capitalize()}: started on {more}{counted(row.total, 'job')}."
        return call.done(text, call.url_path(f"/bulk/{row.id}", q=search.text))

    return start


def _rescheduling(given: str, now: datetime) -> BulkAct:
    try:
        return rescheduling(coming(given, now), None)
    except NotUnderstood as error:
        raise InvalidOption(str(error)) from None


def _reprioritising(given: str, _: datetime) -> BulkAct:
    try:
        return reprioritising(int(given[:10]))
    except ValueError:
        raise InvalidOption(f"{given!r:.40} is no priority: write a number.") from None


retry = _perform(BulkKind.RETRY, lambda *_: RETRY)
run_now = _perform(BulkKind.RUN_NOW, lambda *_: RUN_NOW)
cancel = _perform(BulkKind.CANCEL, lambda *_: CANCEL)
delete = _perform(BulkKind.DELETE, lambda *_: DELETE)
reschedule = _perform(BulkKind.RESCHEDULE, _rescheduling)
reprioritise = _perform(BulkKind.REPRIORITISE, _reprioritising)
move = _perform(BulkKind.MOVE, lambda given, _: moving(given))


async def show(call: PageCall) -> Response:
    """Show how far an operation is; one that no process performs continues in this one."""
    store = call.app.store
    row, skips = await _followed(call, checked_id(call.path("id")))
    if not row.has_ended:
        call.site.performing.start(store, row.id)
    return await call.page(
        "bulk_progress.html",
        q=call.query.get("q", ""),
        row=row,
        what=_words(call, row),
        skips=skips[:MOST_SHOWN],
    )


async def _followed(call: PageCall, bulk_id: UUID) -> tuple[BulkRow, Sequence[Skip]]:
    """Read an operation; tabs that follow it share the read."""
    store = call.app.store

    async def read() -> tuple[BulkRow, Sequence[Skip]]:
        row = await read_bulk(store, bulk_id)
        return row, await store.bulk.skips(bulk_id) if row.skipped else ()

    return await call.site.shared.get(f"bulk {bulk_id}", read) if call.is_refresh else await read()


async def stop(call: PageCall) -> Response:
    """End an operation."""
    row = await stop_bulk(call.app.store, checked_id(call.path("id")))
    text = f"{row.kind.verb.capitalize()}: {row.state.lower()} after {counted(row.done, 'job')}."
    return call.done(text, call.url_path(f"/bulk/{row.id}", q=call.given("q")))


async def operations(call: PageCall) -> Response:
    """List the latest operations."""
    newest = partial(call.app.store.bulk.list, limit=MOST_SHOWN)
    rows = await call.site.shared.get("operations", newest)
    return await call.page("operations.html", rows=[(row, _words(call, row)) for row in rows])


def _words(call: PageCall, row: BulkRow) -> str:
    """Return which jobs an operation is about, without values that are hidden from the visitor."""
    try:
        where = row.where
    except InvalidOption as error:
        return str(error)
    hides, sees = call.site.redaction.hides, call.visitor.may_see_payloads
    payload = tuple(each for each in where.payload if sees and not any(map(hides, each.path)))
    shown = msgspec.structs.replace(where, payload=payload)
    if not sees:
        limit = None if where.limit_key is None else split_key(where.limit_key)[0]
        shown = msgspec.structs.replace(shown, key=None, limit_key=limit)
    hidden = "" if shown == where else ", with hidden values"
    return in_words(shown, row.started_at) + hidden


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption("This form has expired: open it again.") from None
    if found.tzinfo is None:
        raise InvalidOption("This form has expired: open it again.")
    return found
