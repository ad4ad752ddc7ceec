"""Acts on jobs: retry, cancel, delete; by id, by ids on stdin, or by a filter and a confirmation.

A filter that matches everything is refused, the number of jobs is shown before anything happens,
and without a terminal to confirm on, ``--yes`` has to say so.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import click
import msgspec

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.options.filters import filter_options
from pulsed.cli.options.job_ids import find_id
from pulsed.cli.prompt import confirm
from pulsed.cli.view.output import at_least
from pulsed.client.bulk import (
    CANCEL,
    DELETE,
    PAGE,
    RETRY,
    RETRY_FRESH,
    RUN_NOW,
    Act,
    act_on_matching,
)
from pulsed.client.filter import chosen_for
from pulsed.client.one_job import checked_id, why_not_deleted
from pulsed.client.operator import operator
from pulsed.model.job import JobFilter, Status
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.wording import counted

OTHERWISE = {
    RETRY.verb: "only dead-lettered and cancelled jobs can be retried",
    CANCEL.verb: "it has ended already",
    RUN_NOW.verb: "it does not wait for its time",
}
"""What to say about a job it could not be done to."""

FRESH = click.option(
    "--fresh", is_flag=True, help="Let workflows begin again, instead of going on from their steps."
)


def _command(act: Act, short: str, text: str, example: str) -> click.Command:
    name = act.verb.replace(" ", "-")

    @click.command(name, short_help=short, help=f"{text}\n\n\b\nExamples:\n{example}")
    @click.argument("ids", metavar="[ID…|-]", nargs=-1)
    @click.option("--all-matching", is_flag=True, help="All jobs that the filters below match.")
    @click.option("--yes", "-y", is_flag=True, help="Do not ask.")
    @filter_options
    @database_options
    def command(
        database: Database,
        ids: tuple[str, ...],
        where: Mapping[str, Any],
        all_matching: bool,  # noqa: FBT001
        yes: bool,  # noqa: FBT001
        fresh: bool = False,  # noqa: FBT001, FBT002
    ) -> int:
        _check_choice(act, ids, where, all_matching=all_matching)
        wanted = RETRY_FRESH if fresh else act
        chosen = chosen_for(where, act.allowed, act.done) if all_matching else None
        with database.store() as store:
            if chosen is not None:
                return _act_on_matching(store, wanted, chosen, yes=yes)
            return _act_on_ids(store, wanted, _given(store, ids))

    return FRESH(command) if act is RETRY else command


retry = _command(
    RETRY,
    "Send dead-lettered or cancelled jobs back to work.",
    "Send dead-lettered or cancelled jobs back to work, with fresh attempts. A workflow "
    "continues from its stored steps, unless --fresh is given.",
    "  pulsed jobs retry 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs list --status dead --ids | pulsed jobs retry -\n"
    "  pulsed jobs retry --all-matching --status dead --topic send_email",
)
cancel = _command(
    CANCEL,
    "Cancel waiting jobs, ask running ones to stop.",
    "Cancel waiting jobs, and ask running ones to stop.",
    "  pulsed jobs cancel 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs cancel --all-matching --tag campaign-7 --yes",
)
run_now = _command(
    RUN_NOW,
    "Let jobs start now that wait for their time.",
    "Let delayed jobs, retries and sleeping workflows start now. A job that waits for a signal, "
    "for another job or for its children goes on waiting.",
    "  pulsed jobs run-now 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs run-now --all-matching --status retrying --topic send_email",
)
delete = _command(
    DELETE,
    "Delete jobs that are not running.",
    "Delete jobs that are not running, with their results and failures.",
    "  pulsed jobs delete 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69\n"
    "  pulsed jobs delete --all-matching --status succeeded --until 30d",
)


def _check_choice(
    act: Act, ids: Sequence[str], where: Mapping[str, Any], *, all_matching: bool
) -> None:
    if all_matching and ids:
        raise CommandError("give ids or --all-matching, not both.", Code.USAGE)
    if all_matching and not where:
        raise CommandError(
            f"without a filter every job would be {act.done}. Say which ones, for example with "
            "--status, --topic, --queue, --tag or --until.",
            Code.USAGE,
        )
    if not all_matching and where:
        raise CommandError("filters need --all-matching beside them.", Code.USAGE)
    if not all_matching and not ids:
        raise CommandError(
            f"which jobs? Give their ids, - for ids on stdin, or --all-matching and a filter "
            f"(see pulsed jobs {act.verb.replace(' ', '-')} --help).",
            Code.USAGE,
        )


def _given(store: Store, ids: Sequence[str]) -> Iterator[UUID]:
    """Return ids as they were given, or from stdin; people may give the beginning of one."""
    if tuple(ids) == ("-",):
        return map(checked_id, itertools.chain.from_iterable(line.split() for line in sys.stdin))
    return iter([find_id(store, given) for given in ids])


def _act_on_ids(store: Store, act: Act, ids: Iterator[UUID]) -> int:
    """Act on ids, batch by batch; the worst thing that happened to one of them is the answer."""
    worst = Code.OK
    done = ResultPrinter(act)
    while batch := list(itertools.islice(ids, PAGE)):
        answers = run_blocking(act.perform(store, batch, operator()))
        for job_id in dict.fromkeys(batch):
            code = _tell(store, act, job_id, answers.get(job_id))
            worst = max(worst, code)
            if code is Code.OK:
                done.add({job_id: answers[job_id][1]})
    done.print_total()
    return worst


class ResultPrinter:
    """Prints the ids that something was done to, and counts them."""

    def __init__(self, act: Act) -> None:
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
            say(f"{self._act.done} {counted(ended, 'job')}")
        if self._asked:
            say(f"asked {counted(self._asked, 'running job')} to stop")


def _tell(store: Store, act: Act, job_id: UUID, answer: tuple[bool, Status] | None) -> Code:
    if answer is None:
        say(f"there is no job {job_id}")
        return Code.NOT_FOUND
    done, status = answer
    if not done:
        say(f"job {job_id} is {status}: {_why_not(store, act, job_id)}")
        return Code.FAILURE
    return Code.OK


def _why_not(store: Store, act: Act, job_id: UUID) -> str:
    if act is DELETE:
        why = run_blocking(why_not_deleted(store, job_id))
        return why[0].lower() + why[1:].rstrip(".")
    return OTHERWISE[act.verb]


def _act_on_matching(store: Store, act: Act, chosen: JobFilter, *, yes: bool) -> int:
    # What is submitted while the question is on the screen is not part of it.
    limit = chosen.until or run_blocking(store.now())
    chosen = msgspec.structs.replace(chosen, until=limit)
    counts = run_blocking(store.counts(chosen))
    total = sum(counts.values())
    if not total and not counts.at_least:
        say(f"no job matches that could be {act.done}")
        return Code.OK
    parts = ", ".join(f"{at_least(counts, s)} {s}" for s in counts if counts[s])
    more = "at least " if counts.at_least else ""
    question = f"{act.verb} {more}{counted(total, 'job')}" + (f" ({parts})" if parts else "")
    confirm(question, yes=yes)
    done = ResultPrinter(act)
    number = run_blocking(act_on_matching(store, act, chosen, done.add))
    done.print_total()
    if act is DELETE and number < total:
        say("children of jobs that have not ended stay, and so do jobs with such children")
    return Code.OK
