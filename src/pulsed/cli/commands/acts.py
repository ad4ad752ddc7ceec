"""Acts on jobs: retry, cancel and so on; by id, by ids on stdin, or by a filter and confirmation.

A filter that matches everything is refused, the number of jobs is shown before anything happens,
and without a terminal to confirm on, ``--yes`` has to say so. An act by a filter is a bulk
operation, which this process performs unless others do.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import click
import msgspec

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.options.durations import time_option
from pulsed.cli.options.filters import filter_options
from pulsed.cli.options.job_ids import find_id, with_whole_ids
from pulsed.cli.prompt import confirm
from pulsed.cli.view.bulk_progress import print_end, progress_bar
from pulsed.cli.view.output import at_least
from pulsed.cli.view.times import coming
from pulsed.client.acts import act_on, chosen_for, moving, reprioritising, rescheduling
from pulsed.client.bulk import PAGE, start_bulk, stop_bulk
from pulsed.client.one_job import checked_id, key_taken, why_not_deleted
from pulsed.client.operator import operator
from pulsed.engine.upkeep.bulk import perform_to_end
from pulsed.model.bulk import (
    CANCEL,
    DELETE,
    RETRY,
    RETRY_FRESH,
    RUN_NOW,
    BulkAct,
    BulkKind,
    BulkRow,
    BulkState,
)
from pulsed.model.job import JobFilter, Status
from pulsed.model.lifecycle import REPLAYABLE
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.wording import counted

F = TypeVar("F", bound=Callable[..., Any])

OTHERWISE = {
    BulkKind.RETRY: "only dead-lettered and cancelled jobs can be retried",
    BulkKind.CANCEL: "it has ended already",
    BulkKind.RUN_NOW: "it does not wait for its time",
}
"""What to say about a job it could not be done to."""

NOT_STARTED = "only jobs that have not started can be changed"


def _command(
    kind: BulkKind,
    short: str,
    text: str,
    example: str,
    made: Callable[..., BulkAct],
    *options: Callable[[Any], Any],
) -> click.Command:
    """Return the command of an act, which ``made`` makes from its own ``options``."""
    name = kind.verb.replace(" ", "-")

    @click.command(name, short_help=short, help=f"{text}\n\n\b\nExamples:\n{example}")
    @click.argument("ids", metavar="[ID…|-]", nargs=-1)
    @click.option("--yes", "-y", is_flag=True, help="Do not ask.")
    @click.option(
        "--detach", is_flag=True, help="With a filter: leave the work to workers, and return."
    )
    @filter_options
    @database_options
    def command(
        database: Database,
        ids: tuple[str, ...],
        where: Mapping[str, Any],
        yes: bool,
        detach: bool,
        **arguments: Any,
    ) -> int:
        _check_choice(kind, ids, where)
        act = made(**arguments)
        with database.store() as store:
            if ids:
                return _act_on_ids(store, act, _given(store, ids))
            chosen = chosen_for(with_whole_ids(store, where), act.kind)
            return _act_on_matching(store, act, chosen, yes=yes, detach=detach)

    for option in reversed(options):
        option(command)
    return command


retry = _command(
    BulkKind.RETRY,
    "Send dead-lettered or cancelled jobs back to work.",
    "Send dead-lettered or cancelled jobs back to work, with fresh attempts. A workflow "
    "continues from its stored steps, unless --fresh is given.",
    "  pulsed jobs retry 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs list --status dead --ids | pulsed jobs retry -\n"
    "  pulsed jobs retry --status dead --topic send_email",
    lambda *, fresh: RETRY_FRESH if fresh else RETRY,
    click.option(
        "--fresh", is_flag=True,
        help="Restart workflows from the beginning, instead of after their stored steps.",
    ),
)  # fmt: skip
cancel = _command(
    BulkKind.CANCEL,
    "Cancel waiting jobs, ask running ones to stop.",
    "Cancel waiting jobs, and ask running ones to stop.",
    "  pulsed jobs cancel 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs cancel --tag campaign-7 --yes",
    lambda: CANCEL,
)
run_now = _command(
    BulkKind.RUN_NOW,
    "Let jobs start now that wait for their time.",
    "Let delayed jobs, retries and sleeping workflows start now. A job that waits for a signal, "
    "for another job or for its children goes on waiting.",
    "  pulsed jobs run-now 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs run-now --status retrying --topic send_email",
    lambda: RUN_NOW,
)
delete = _command(
    BulkKind.DELETE,
    "Delete jobs that are not running.",
    "Delete jobs that are not running, with their results and failures.",
    "  pulsed jobs delete 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs delete --status succeeded --until 30d",
    lambda: DELETE,
)


def _rescheduling(*, at: datetime | None, delay: float | None, now: bool) -> BulkAct:
    if [at is not None, delay is not None, now].count(True) != 1:
        raise CommandError("when? Give one of --at, --delay and --now.", Code.USAGE)
    return RUN_NOW if now else rescheduling(at, delay)


reschedule = _command(
    BulkKind.RESCHEDULE,
    "Change the time of jobs.",
    "Change the time of jobs that have not started, or that will be retried.",
    "  pulsed jobs reschedule 0197a8c2-7d4e-7c31 --at 2026-12-01T08:00Z\n"
    "  pulsed jobs reschedule --status retrying --topic send_email --delay 1h",
    _rescheduling,
    click.option("--at", type=coming, metavar="TIME", help="ISO-8601, or 2h from now."),
    time_option("--delay", "This long from now."),
    click.option("--now", is_flag=True, help="At once, as run-now does."),
)
reprioritise = _command(
    BulkKind.REPRIORITISE,
    "Change the priority of jobs.",
    "Change the priority of jobs that have not started.",
    "  pulsed jobs reprioritise --topic send_email --to 50",
    lambda *, to: reprioritising(to),
    click.option("--to", type=int, required=True, help="-100 to 100; higher runs first."),
)
move = _command(
    BulkKind.MOVE,
    "Move jobs to another queue.",
    "Move jobs that have not started to another queue.",
    "  pulsed jobs move --queue default --topic send_email --to mail",
    lambda *, to: moving(to),
    click.option("--to", metavar="QUEUE", required=True, help="The new queue."),
)
COMMANDS = (retry, cancel, run_now, delete, reschedule, reprioritise, move)


def _check_choice(kind: BulkKind, ids: Sequence[str], where: Mapping[str, Any]) -> None:
    if where and ids:
        raise CommandError("give ids or filters, not both.", Code.USAGE)
    if not where and not ids:
        raise CommandError(
            f"which jobs? Give their ids, - for ids on stdin, or filters such as --status and "
            f"--topic: without a filter every job would be {kind.done}.",
            Code.USAGE,
        )


def _given(store: Store, ids: Sequence[str]) -> Iterator[UUID]:
    """Return ids as they were given, or from stdin; people may give the beginning of one."""
    if tuple(ids) == ("-",):
        return map(checked_id, itertools.chain.from_iterable(line.split() for line in sys.stdin))
    return iter([find_id(store, given) for given in ids])


# -- by id ----------------------------------------------------------------------------------------


def _act_on_ids(store: Store, act: BulkAct, ids: Iterator[UUID]) -> int:
    """Act on ids, batch by batch; the worst thing that happened to one of them is the answer."""
    worst = Code.OK
    done = ResultPrinter(act)
    while batch := list(itertools.islice(ids, PAGE)):
        answers = run_blocking(act_on(store, act, batch, operator()))
        for job_id in dict.fromkeys(batch):
            code = _tell(store, act, job_id, answers.get(job_id))
            worst = max(worst, code)
            if code is Code.OK:
                done.add({job_id: answers[job_id][1]})
    done.print_total()
    return worst


class ResultPrinter:
    """Prints the ids that something was done to, and counts them."""

    def __init__(self, act: BulkAct) -> None:
        self._act = act
        self._total = 0
        self._asked = 0

    def add(self, statuses: Mapping[UUID, Status]) -> None:
        """Count jobs by their statuses now: a cancelled one may still be running."""
        if statuses:
            print("\n".join(map(str, statuses)))
        self._total += len(statuses)
        if self._act is CANCEL:
            self._asked += sum(status is Status.RUNNING for status in statuses.values())

    def print_total(self) -> None:
        """Print how many there were."""
        ended = self._total - self._asked
        if ended or not self._asked:
            say(f"{self._act.kind.done} {counted(ended, 'job')}")
        if self._asked:
            say(f"asked {counted(self._asked, 'running job')} to stop")


def _tell(store: Store, act: BulkAct, job_id: UUID, answer: tuple[bool, Status] | None) -> Code:
    if answer is None:
        say(f"there is no job {job_id}")
        return Code.NOT_FOUND
    done, status = answer
    if not done:
        say(f"job {job_id} is {status}: {_why_not(store, act, job_id, status)}")
        return Code.FAILURE
    return Code.OK


def _why_not(store: Store, act: BulkAct, job_id: UUID, status: Status) -> str:
    if act is DELETE:
        why = run_blocking(why_not_deleted(store, job_id))
        return why[0].lower() + why[1:].rstrip(".")
    if act.kind is BulkKind.RETRY and status in REPLAYABLE:
        return str(run_blocking(key_taken(store, job_id)))
    return OTHERWISE.get(act.kind, NOT_STARTED)


# -- by a filter ----------------------------------------------------------------------------------


def _act_on_matching(
    store: Store, act: BulkAct, chosen: JobFilter, *, yes: bool, detach: bool
) -> int:
    # What is submitted while the question is on the screen is not part of it.
    limit = chosen.until or run_blocking(store.now())
    chosen = msgspec.structs.replace(chosen, until=limit)
    counts = run_blocking(store.counts(chosen))
    total = sum(counts.values())
    if not total and not counts.at_least:
        say(f"no job matches that could be {act.kind.done}")
        return Code.OK
    parts = ", ".join(f"{at_least(counts, s)} {s}" for s in counts if counts[s])
    more = "at least " if counts.at_least else ""
    question = f"{act.kind.verb} {more}{counted(total, 'job')}" + (f" ({parts})" if parts else "")
    confirm(question, yes=yes)
    row = run_blocking(start_bulk(store, act, chosen))
    print(row.id, flush=True)
    if detach:
        say(f"workers do it: see how far with `pulsed bulk show {row.id}`")
        return Code.OK
    return _perform(store, row)


def _perform(store: Store, row: BulkRow) -> int:
    """Perform an operation; Ctrl-C stops it, while a lost terminal leaves it to the workers."""
    try:
        with progress_bar(row) as tell:
            ended = run_blocking(perform_to_end(store, row.id, tell)) or row
    except KeyboardInterrupt:
        ended = run_blocking(stop_bulk(store, row.id))
        print_end(ended, ())
        raise
    print_end(ended, run_blocking(store.bulk.skips(row.id)) if ended.skipped else ())
    return Code.OK if ended.state is BulkState.DONE else Code.FAILURE
