"""The list of jobs: searched by qualifiers, paged by key, and acts on those selected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from uuid import UUID

from starlette.responses import JSONResponse, Response

from pulsed.client import search as searching
from pulsed.client.acts import act_on
from pulsed.client.one_job import checked_id
from pulsed.client.operator import operator
from pulsed.client.search import Completions, Search, parse
from pulsed.errors import InvalidOption
from pulsed.model.bulk import CANCEL, DELETE, RETRY, RUN_NOW, BulkAct
from pulsed.model.control import ControlScope
from pulsed.model.job import JobFilter, JobRow, Status, WorkerInfo
from pulsed.model.limit import split_key
from pulsed.model.page import Counts, Page, bound_of
from pulsed.web.access import Role
from pulsed.web.reasons import reason
from pulsed.web.redaction import Redaction
from pulsed.web.site import PageCall
from pulsed.wording import counted

SIZES = (25, 50, 100, 200)
SIZE = 50
MOST_SELECTED = max(SIZES)
LONGEST_TRAIL = 30
"""Pages that "newer" can go back."""
KNOWN_SECONDS = 30.0
"""How long the names that completion offers are kept."""
RECENT = 200
"""Jobs that their queues, topics and tags are taken from."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A status to choose, and how many jobs of the search have it."""

    label: str
    word: str
    count: int
    is_at_least: bool


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in the list; ``job`` is None if it was deleted while the list was open."""

    id: UUID
    job: JobRow | None
    reason: str = ""

    @property
    def when(self) -> datetime | None:
        """When it last came to where it is."""
        assert self.job is not None
        match self.job.status:
            case Status.RUNNING:
                return self.job.started_at
            case Status.PENDING:
                return self.job.submitted_at
            case Status.RETRYING | Status.WAITING:
                return self.job.updated_at
            case _:
                return self.job.completed_at


async def show(call: PageCall) -> Response:
    """Show a page of the jobs that match the search, or the same jobs again."""
    now = await call.site.now()
    search = search_of(call, call.query.get("q", ""), now)
    size = _size(call.query.get("size", ""))
    before, trail = call.query.get("before") or None, _trail(call.query.get("trail", ""))
    page, chips, newest, workers, _ = await asyncio.gather(
        _page(call, search, size, before),
        _chips(call, search),
        _newest(call, search) if before is None else _nothing(),
        call.site.workers(),
        call.site.summary(),  # which the frame shows: read beside the others
    )
    shown = _ids(call.query.get("ids", "")) or [job.id for job in page]
    found = {job.id: job for job in page}
    redaction = call.site.redaction if call.visitor.may_see_payloads else None
    return await call.page(
        "jobs.html",
        q=search.text,
        search=search,
        problems=search.problems,
        rows=[_row(each, found.get(each), workers, now, redaction) for each in shown],
        chips=chips,
        arrived=sum(each > shown[0] for each in newest) if shown else 0,
        most_arrived=SIZE,
        page=page,
        searched=f"{bound_of(search.where):,}",
        size=size,
        sizes=SIZES,
        before=before,
        older=_older(before, trail, page.next),
        newer=_newer(trail, before),
        refresh=_refresh(call, page, shown),
        acts=_acts_for(call),
        bulk_acts=_acts_for(call) + (BULK_ACTS if call.visitor.may(Role.ADMIN) else []),
    )


async def _page(call: PageCall, search: Search, size: int, before: str | None) -> Page[JobRow]:
    """Return the jobs of the page; those that the address names, if an open list asks again."""
    store, shared = call.app.store, call.site.shared
    if shown := _ids(call.query.get("ids", "")):
        found = await shared.get(("jobs by id", *shown), lambda: store.get(shown))
        following = _id(call.query.get("next", ""))
        return Page(found.values(), next=following, is_cut="cut" in call.query)
    cursor = None if before is None else checked_id(before)
    return await _listed(call, search, size, cursor)


async def _listed(
    call: PageCall, search: Search, size: int, before: UUID | None = None
) -> Page[JobRow]:
    """Return a page of the jobs that match; open tabs read it once per tick, whatever their number.

    Who opens the page wants to see what has just happened.
    """
    read = partial(call.app.store.list_jobs, search.where, limit=size, before=before)
    if not call.is_refresh:
        return await read()
    key = ("jobs", search.text, search.where.payload, size, before)
    return await call.site.shared.get(key, read)


def search_of(call: PageCall, text: str, now: datetime) -> Search:
    """Return the search of a text, as far as the visitor may search."""
    found = parse(text, now)
    if not call.visitor.may_see_payloads:
        return _without_data(found)
    hidden = [name for name in found.payload_names if call.site.redaction.hides(name)]
    if hidden:
        problem = f"{hidden[0]} is hidden in payloads, and cannot be searched."
        return found.without(problem, payload=())
    return found


def _without_data(found: Search) -> Search:
    """Return a search without data of users, which would tell whether there is a job with it."""
    if found.where.payload:
        problem = "You may not see payloads, so you cannot search them."
        found = found.without(problem, payload=())
    if found.where.key is not None:
        found = found.without("You may not see the keys of jobs, nor search for them.", key=None)
    if "," in (found.where.limit_key or ""):
        problem = "You may not see what a limit counts by, nor search for it."
        found = found.without(problem, limit_key=None)
    return found


def _row(
    job_id: UUID,
    job: JobRow | None,
    workers: Sequence[WorkerInfo],
    now: datetime,
    redaction: Redaction | None,
) -> JobLine:
    said = "" if job is None else reason(job, workers, now, redaction=redaction)
    return JobLine(job_id, job, said)


async def _chips(call: PageCall, search: Search) -> list[Chip]:
    where = search.in_any_status
    key = ("jobs counts", search.with_status(""), where.payload)
    counts: Counts = (
        await call.site.counts()
        if where.is_empty
        else await call.site.shared.get(key, lambda: call.app.store.counts(where))
    )

    def chip(label: str, word: str, count: int, *statuses: Status) -> Chip:
        return Chip(label, word, count, bool(counts.at_least.intersection(statuses)))

    pending = counts[Status.PENDING]
    chips = [
        chip("All", "", sum(counts.values()), *Status),
        chip("Dead", "dead", counts[Status.DEAD_LETTERED], Status.DEAD_LETTERED),
        chip("Retrying", "retrying", counts[Status.RETRYING], Status.RETRYING),
        chip("Running", "running", counts[Status.RUNNING], Status.RUNNING),
        chip("Waiting", "waiting", counts[Status.WAITING], Status.WAITING),
        chip("Due", "due", counts.due, Status.PENDING),
        chip("Later", "later", pending - counts.due, Status.PENDING),
        chip("Done", "done", counts[Status.SUCCEEDED], Status.SUCCEEDED),
    ]
    if counts[Status.CANCELLED] or search.status == "cancelled":
        chips.append(chip("Cancelled", "cancelled", counts[Status.CANCELLED], Status.CANCELLED))
    return chips


async def _newest(call: PageCall, search: Search) -> Sequence[UUID]:
    """Return the newest jobs that match, for a list that is open already."""
    if "ids" not in call.query:
        return ()
    return [job.id for job in await _listed(call, search, SIZE)]


async def _nothing() -> Sequence[UUID]:
    return ()


def _refresh(call: PageCall, page: Page[JobRow], ids: Sequence[UUID]) -> str:
    """Return the address of the same jobs: an open list updates its rows and moves none."""
    kept = {name: call.query.get(name) for name in ("q", "size", "before", "trail")}
    if not ids:
        return call.url("/jobs", **kept)
    shown = ".".join(each.hex for each in ids)
    following = page.next.hex if page.next else None
    return call.url("/jobs", **kept, ids=shown, next=following, cut="1" if page.is_cut else None)


def _older(before: str | None, trail: list[str], following: UUID | None) -> dict[str, str] | None:
    if following is None:
        return None
    behind = [*trail, UUID(before).hex if before else "first"][-LONGEST_TRAIL:]
    return {"before": str(following), "trail": ".".join(behind)}


def _newer(trail: list[str], before: str | None) -> dict[str, str] | None:
    if before is None:
        return None
    if not trail or trail[-1] == "first":
        return {}
    return {"before": str(UUID(trail[-1])), "trail": ".".join(trail[:-1])}


def _size(text: str) -> int:
    return int(text) if text in map(str, SIZES) else SIZE


def _trail(text: str) -> list[str]:
    return [each for each in text.split(".") if each == "first" or _id(each)][-LONGEST_TRAIL:]


def _ids(text: str) -> list[UUID]:
    found = (_id(each) for each in text.split(".")[:MOST_SELECTED])
    return [each for each in found if each is not None]


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


# -- completion -----------------------------------------------------------------------------------


async def complete(call: PageCall) -> Response:
    """Return what the text of the search box may become."""
    known = await call.site.shared.get("known", lambda: _known(call), seconds=KNOWN_SECONDS)
    if not call.visitor.may_see_payloads:  # keys, and what a limit counts by, are from payloads
        names = {split_key(key)[0] for key in known.limits}
        known = replace(known, keys=(), limits=_sorted(names))
    return JSONResponse(searching.complete(call.query.get("q", ""), known))


async def _known(call: PageCall) -> Completions:
    """Return names from the handlers, the workers and a few jobs: no scan of the table."""
    store = call.app.store
    workers = await store.workers()
    recent = [
        *await store.list_jobs(JobFilter(), limit=RECENT),
        *await store.list_jobs(JobFilter(status=(Status.DEAD_LETTERED,)), limit=RECENT),
    ]
    topics = {handler.topic for handler in call.app.registry}
    topics |= {topic for worker in workers for topic in worker.topics}
    queues = {queue for worker in workers for queue in worker.queues}
    limits = {key.name for key in await call.site.controls() if key.scope is ControlScope.LIMIT}
    return Completions(
        topics=_sorted(topics | {job.topic for job in recent}),
        queues=_sorted(queues | {job.queue for job in recent}),
        tags=_sorted(tag for job in recent for tag in job.tags),
        errors=_sorted(job.last_error.partition(":")[0] for job in recent if job.last_error),
        keys=_sorted(job.key for job in recent if job.key),
        limits=_sorted(limits | {job.limit_key for job in recent if job.limit_key}),
    )


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name.strip() and len(name) <= 100})[:1_000])


# -- what can be done to those selected -----------------------------------------------------------


def _acts_for(call: PageCall) -> list[tuple[str, str, str]]:
    """Return the acts that the visitor may do: their path, label and look."""
    acts = [
        (role, path, label, look)
        for role, path, label, look in (
            (Role.OPERATOR, "retry", "Retry", ""),
            (Role.OPERATOR, "run-now", "Run now", ""),
            (Role.OPERATOR, "cancel", "Cancel", ""),
            (Role.ADMIN, "delete", "Delete", "danger"),
        )
        if call.visitor.may(role)
    ]
    return [(path, label, look) for _, path, label, look in acts]


BULK_ACTS = [
    ("reschedule", "Reschedule", ""),
    ("reprioritise", "Reprioritise", ""),
    ("move", "Move", ""),
]
"""Acts of an admin on all that match; each asks for a value first."""


def _selected(call: PageCall) -> list[UUID]:
    ids = [checked_id(given) for given in call.form.get("id", [])]
    if not ids:
        raise InvalidOption("Select jobs first.")
    if len(ids) > MOST_SELECTED:
        raise InvalidOption(f"Select at most {MOST_SELECTED} jobs, or act on all that match.")
    return ids


def _act(act: BulkAct) -> Callable[[PageCall], Awaitable[Response]]:
    async def perform(call: PageCall) -> Response:
        ids = _selected(call)
        answers = await act_on(call.app.store, act, ids, operator())
        done = sum(was_done for was_done, _ in answers.values())
        text = f"{act.kind.done.capitalize()}: {counted(done, 'job')}."
        if left := len(ids) - done:
            text += f" {counted(left, 'job')} could not be: {_why(act)}."
        return call.done(text, call.back("/jobs"), is_error=not done)

    return perform


def _why(act: BulkAct) -> str:
    return {
        RETRY: "only dead and cancelled jobs can be retried, and only if their key is free",
        CANCEL: "they have ended",
        RUN_NOW: "they do not wait for their time",
    }.get(act, "they are running, or other jobs need them")


retry = _act(RETRY)
cancel = _act(CANCEL)
run_now = _act(RUN_NOW)
_delete = _act(DELETE)


async def delete(call: PageCall) -> Response:
    """Delete the selected jobs, after a second click on a page that names them."""
    if call.given("sure"):
        return await _delete(call)
    ids = _selected(call)
    found = await call.app.store.get(ids)
    jobs = [found[each] for each in ids if each in found]
    return await call.page("delete.html", jobs=jobs, back=call.back("/jobs"))
