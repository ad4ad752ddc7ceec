"""Acts on all jobs that match a search: a preview that counts them, a confirmation, progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
from starlette.responses import Response

from pulsed.client.bulk import CANCEL, DELETE, RETRY, RUN_NOW, Act
from pulsed.errors import InvalidOption
from pulsed.model.job import JobFilter, Status
from pulsed.model.page import bound_of
from pulsed.web.access import Role
from pulsed.web.pages.jobs import search_of
from pulsed.web.search import Search, in_words
from pulsed.web.site import PageCall
from pulsed.web.works import Work, new_id
from pulsed.wording import counted

ACTS = {"retry": RETRY, "run-now": RUN_NOW, "cancel": CANCEL, "delete": DELETE}
ROLES = {"delete": Role.ADMIN}


async def preview(call: PageCall) -> Response:
    """Show how many jobs an act would change, and ask whether to do it."""
    name = call.query.get("act", "")
    act = ACTS.get(name)
    if act is None or not call.visitor.may(ROLES.get(name, Role.OPERATOR)):
        raise InvalidOption(f"You cannot do {name!r:.40} to all jobs that match.")
    now = await call.app.store.now()
    search = search_of(call, call.query.get("q", ""), now)
    where = _chosen(search, act, now)
    counts, _ = await asyncio.gather(call.app.store.counts(where), call.site.summary())
    return await call.page(
        "bulk.html",
        q=search.text,
        name=name,
        act=act,
        what=in_words(where, now),
        counts={status: number for status, number in counts.items() if number},
        total=sum(counts.values()),
        is_at_least=bool(counts.at_least),
        searched=f"{bound_of(where):,}",
        until=where.until,
        back=call.url_path("/jobs", q=search.text),
    )


def _chosen(search: Search, act: Act, until: datetime) -> JobFilter:
    """Return the jobs of an act: of the search, and in a status that allows it.

    What is submitted after the preview is not part of it.
    """
    if search.problems:
        raise InvalidOption(f"The search is not clear, so nothing is done: {search.problems[0]}")
    if search.where.is_empty:
        raise InvalidOption(
            f"Without a search every job would be {act.done}. Narrow it down first, for example "
            "by status:, topic: or until:."
        )
    wanted = search.where.status or tuple(Status)
    allowed = tuple(status for status in act.allowed if status in wanted)
    if not allowed:
        raise InvalidOption(
            f"Jobs that are {', '.join(wanted)} cannot be {act.done}; only "
            f"{', '.join(act.allowed)} can."
        )
    until = min(until, search.where.until) if search.where.until else until
    return msgspec.structs.replace(search.where, status=allowed, until=until)


def _perform(name: str) -> Callable[[PageCall], Awaitable[Response]]:
    act = ACTS[name]

    async def start(call: PageCall) -> Response:
        now = await call.app.store.now()
        until = _instant(call.given("until"))
        search = search_of(call, call.given("q"), until)
        where = _chosen(search, act, min(until, now))
        expected = call.given("expected")
        if act is DELETE and call.given("typed").replace(",", "").strip() != expected:
            raise InvalidOption(f"Type {expected} to confirm. Nothing was deleted.")
        work = Work(
            id=new_id(),
            act=act,
            what=in_words(where, now),
            expected=int(expected) if expected.isdecimal() and len(expected) < 10 else 0,
            is_at_least=bool(call.given("at_least")),
        )
        call.site.works.start(call.app.store, act, where, work)
        text = f"{act.verb.capitalize()}: started on {counted(work.expected, 'job')}."
        return call.done(text, call.url_path(f"/bulk/{work.id}", q=search.text))

    return start


retry = _perform("retry")
run_now = _perform("run-now")
cancel = _perform("cancel")
delete = _perform("delete")


async def show(call: PageCall) -> Response:
    """Show how far an act is."""
    work = call.site.works.get(call.path("name"))
    q = call.query.get("q", "")
    if work is None:
        raise InvalidOption("This act is not known here: the dashboard was restarted since.")
    return await call.page("bulk_progress.html", q=q, work=work)


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption("This form has expired: open it again.") from None
    if found.tzinfo is None:
        raise InvalidOption("This form has expired: open it again.")
    return found
