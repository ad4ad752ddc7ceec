"""One job: why it does not run, its attempts, steps and data, and what can be done about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import PlainTextResponse, Response

from pulsed.client.job_tree import Bounds, Node, read_tree
from pulsed.client.one_job import checked_id, read_one
from pulsed.engine.held_back import why
from pulsed.errors import InvalidJob, InvalidOption, InvalidPayload
from pulsed.handler.envelope import is_envelope
from pulsed.model.job import Failure, JobRow, Status, WorkerInfo
from pulsed.model.lifecycle import DELETABLE, LIVING, REPLAYABLE
from pulsed.model.limit import split_key
from pulsed.model.progress import progress_of
from pulsed.model.schedule import ScheduleRow
from pulsed.model.step import StepKind
from pulsed.model.stream import StreamItem
from pulsed.model.workflow import fan_out_of
from pulsed.store.base import Store
from pulsed.web.json_text import NotJson, edited, pretty, shown
from pulsed.web.runs import runs_of, timeline
from pulsed.web.site import PageCall
from pulsed.web.waterfall import rows_of

STEPS = 200
"""Steps on a page."""
RUNS = 50
"""Runs on a page."""
ITEMS = 20
"""Items of its stream on a page."""
FEW = 10
"""Children of a fan-out that are shown, from the first on; and as many failed and running ones."""
TREES = 5
"""Children of a fan-out that are shown with their own steps."""
ANCESTORS = 5
LONGEST_NUMBER = 18
"""Digits of a number in an address."""
LAST_TOKEN = 2**63 - 1
"""Above every lease token."""
LONGEST_TRACEBACK = 8_000
"""Characters of a traceback on the page."""


@dataclass(frozen=True)
class JobView:
    """What the page of a job shows, as it was read."""

    tree: Node
    failures: Sequence[Failure]
    """A page of them, oldest first."""
    earlier_runs: int | None
    """The cursor of the page of failures before them, if there is one."""
    workers: dict[UUID, WorkerInfo]
    hints: Sequence[str]
    schedule: ScheduleRow | None
    items: Sequence[StreamItem]
    """The newest items of its stream, oldest first."""
    ancestors: Sequence[JobRow]
    """Its parent, the parent's parent, and so on."""
    now: datetime

    @property
    def job(self) -> JobRow:
        """The job."""
        return self.tree.job


async def show(call: PageCall) -> Response:
    """Show a job."""
    job_id = checked_id(call.path("id"))
    skip = _number(call, "skip")
    before = _number(call, "before")
    read = partial(read_view, call.app.store, job_id, skip, before)
    view, _ = await asyncio.gather(
        call.site.shared.get(("job", job_id, skip, before), read), call.site.summary()
    )
    job = view.job
    runs = runs_of(job, view.failures, view.tree.waits_since, with_last=not before)
    waterfall = rows_of(view.tree)
    return await call.page(
        "job.html",
        view=view,
        hints=_shown_hints(call, job, view.hints),
        job=job,
        runs=runs[::-1],
        timeline=timeline(job, runs, view.now),
        rows=waterfall.rows,
        scale_is_folded=waterfall.is_folded,
        skip=skip,
        page_of_steps=STEPS,
        earlier_runs=view.earlier_runs,
        before=before,
        fan_out_of=fan_out_of,
        longest_traceback=LONGEST_TRACEBACK,
        **_texts(call, job),
        **_possible_acts(job, view.now),
    )


def _texts(call: PageCall, job: JobRow) -> dict[str, Any]:
    """Return the payload, the result and the like, as far as the visitor may see them."""
    redacted = partial(shown, redaction=call.site.redaction)
    sees = call.visitor.may_see_payloads
    progress = None if job.progress is None else progress_of(msgspec.json.decode(job.progress))
    return {
        "sees": sees,
        "redacted": redacted,
        "payload": redacted(job.payload) if sees else None,
        "result": redacted(job.result) if sees else None,
        "headers": call.site.redaction.apply(job.headers) if sees else {},
        "progress": progress,
        "progress_text": redacted(job.progress),
    }


def _shown_hints(call: PageCall, job: JobRow, hints: Sequence[str]) -> Sequence[str]:
    """Return why it does not run; its key, and what its limit counts by, are from the payload."""
    if call.visitor.may_see_payloads:
        return hints
    if job.limit_key is not None:
        name, _ = split_key(job.limit_key)
        hints = [hint.replace(repr(job.limit_key), repr(name)) for hint in hints]
    return hints if job.key is None else [hint.replace(f" {job.key!r}", "") for hint in hints]


def _possible_acts(job: JobRow, now: datetime) -> dict[str, Any]:
    """Return which acts the state of the job allows, and what it waits for."""
    return {
        "can_retry": job.status in REPLAYABLE,
        "can_cancel": job.status in LIVING and not job.is_cancelling,
        "can_signal": job.status in LIVING,
        "can_run_now": _waits_for_time(job, now),
        "can_delete": job.status in DELETABLE,
        "awaited_signal": job.wait_key if _waits(job, StepKind.SIGNAL) else "",
        "awaited_job": job.wait_key if _waits(job, StepKind.JOB) else "",
    }


def _waits_for_time(job: JobRow, now: datetime) -> bool:
    is_delayed = job.status in (Status.PENDING, Status.RETRYING) or _waits(job, StepKind.SLEEP)
    return is_delayed and job.next_run_at > now


def _waits(job: JobRow, kind: StepKind) -> bool:
    return job.status is Status.WAITING and job.wait_kind == kind


def _number(call: PageCall, name: str) -> int:
    text = call.query.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER else 0


async def read_view(store: Store, job_id: UUID, skip: int, before: int) -> JobView:
    """Read all that the page of a job shows."""
    job = await read_one(store, job_id)
    now = await store.now()
    workers = await store.workers()
    bounds = Bounds(FEW, failed=FEW, running=FEW, trees=TREES, skip=skip, steps=STEPS)
    made_by = job.schedule_id
    failures = await store.failures(job_id, before=before or LAST_TOKEN, limit=RUNS + 1)
    return JobView(
        tree=await read_tree(store, job, bounds),
        failures=failures[:RUNS][::-1],
        earlier_runs=failures[RUNS - 1].lease_token if len(failures) > RUNS else None,
        workers={worker.id: worker for worker in workers},
        hints=await why(store, job, workers),
        schedule=None if made_by is None else await store.schedules.find(made_by),
        items=await store.streams.newest(job_id, limit=ITEMS),
        ancestors=await _ancestors(store, job),
        now=now,
    )


async def _ancestors(store: Store, job: JobRow) -> list[JobRow]:
    found: list[JobRow] = []
    parent = job.parent_id
    while parent is not None and len(found) < ANCESTORS:
        rows = await store.get([parent])
        if parent not in rows:
            break
        found.append(rows[parent])
        parent = rows[parent].parent_id
    return found


# -- texts ----------------------------------------------------------------------------------------


async def payload(call: PageCall) -> Response:
    """Show or download a job's payload."""
    job = await read_one(call.app.store, checked_id(call.path("id")))
    return _text(call, job, "payload", job.payload)


async def result(call: PageCall) -> Response:
    """Show or download a job's result."""
    job = await read_one(call.app.store, checked_id(call.path("id")))
    return _text(call, job, "result", job.result or "null")


def _text(call: PageCall, job: JobRow, what: str, text: str) -> Response:
    if not call.visitor.may_see_payloads:
        return PlainTextResponse("Payloads and results are hidden from your role.\n", 403)
    answer = PlainTextResponse(pretty(text, call.site.redaction) + "\n")
    if "download" in call.query:
        name = f"{job.id}-{what}.json"
        answer.headers["content-disposition"] = f'attachment; filename="{name}"'
    return answer


async def traceback(call: PageCall) -> Response:
    """Show the whole traceback of a failed run."""
    job_id, token = checked_id(call.path("id")), _token(call)
    found = await call.app.store.failures(job_id, after=token - 1, limit=1)
    if not found or found[0].lease_token != token:
        return PlainTextResponse("There is no such run.\n", 404)
    return PlainTextResponse((found[0].traceback or found[0].error) + "\n")


def _token(call: PageCall) -> int:
    text = call.path("token")
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise InvalidOption(f"{text!r} is no run.")
    return int(text)


# -- acts -----------------------------------------------------------------------------------------


async def retry(call: PageCall) -> Response:
    """Send a dead-lettered or cancelled job back to PENDING."""
    job_id = checked_id(call.path("id"))
    fresh = call.given("fresh") == "yes"
    await call.app.jobs.aretry(job_id, fresh=fresh)
    start = " from the start" if fresh else ""
    return call.done(f"The job is pending and will run again{start}.", call.back(f"/jobs/{job_id}"))


async def edit(call: PageCall) -> Response:
    """Show the payload of a dead letter, to be edited before a retry."""
    job = await read_one(call.app.store, checked_id(call.path("id")))
    return await _edit_page(call, job, pretty(job.payload, call.site.redaction))


async def edit_and_retry(call: PageCall) -> Response:
    """Replace the payload of a dead letter, and send it back to PENDING."""
    job = await read_one(call.app.store, checked_id(call.path("id")))
    text = call.given("payload")
    try:
        arguments = msgspec.json.decode(edited(text, job.payload, call.site.redaction))
        await call.app.jobs.aedit_and_retry(job.id, arguments, fresh=call.given("fresh") == "yes")
    except (NotJson, InvalidJob) as error:
        return await _edit_page(call, job, text, str(error))
    return call.done("The payload is changed, and the job will run again.", f"/jobs/{job.id}")


async def _edit_page(call: PageCall, job: JobRow, text: str, problem: str = "") -> Response:
    if not call.visitor.may_see_payloads:
        return PlainTextResponse("Payloads and results are hidden from your role.\n", 403)
    if job.status not in REPLAYABLE:
        raise InvalidOption(f"The job is {job.status}; edit one that failed or was cancelled.")
    if is_envelope(job.payload):
        raise InvalidOption("The payload is encrypted: edit it where the app has its codec.")
    steps = (await call.app.store.workflows.history(job.id, limit=1)).checkpoints
    return await call.page(
        "job_edit.html",
        status=422 if problem else 200,
        job=job,
        text=text,
        problem=problem,
        has_steps=bool(steps),
        is_checked=call.app.registry.find(job.topic) is not None,
    )


async def run_now(call: PageCall) -> Response:
    """Make a job due that waits for its time."""
    job_id = checked_id(call.path("id"))
    await call.app.jobs.arun_now(job_id)
    return call.done("The job is due now.", call.back(f"/jobs/{job_id}"))


async def cancel(call: PageCall) -> Response:
    """Cancel a job, or ask it to stop."""
    job_id = checked_id(call.path("id"))
    status = await call.app.jobs.acancel(job_id)
    asked = status is Status.RUNNING
    text = "The job is asked to stop." if asked else "The job is cancelled."
    return call.done(text, call.back(f"/jobs/{job_id}"))


async def delete(call: PageCall) -> Response:
    """Remove a job."""
    job_id = checked_id(call.path("id"))
    if call.given("sure") != "yes":
        raise InvalidOption("Tick the box to confirm: a deleted job cannot be brought back.")
    await call.app.jobs.adelete(job_id)
    return call.done(f"Job {job_id} is deleted.", "/jobs")


async def signal(call: PageCall) -> Response:
    """Send a signal to a workflow."""
    job_id = checked_id(call.path("id"))
    name, text = call.given("name").strip(), call.given("payload").strip()
    try:
        value = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError as error:
        raise InvalidPayload(
            f"The signal was not sent, because its value is no JSON: {error}."
        ) from error
    await call.app.asignal(job_id, name, value)
    return call.done(f"The signal {name!r} is sent.", call.back(f"/jobs/{job_id}"))
