"""``pulsed jobs prune``: remove finished jobs by their age, once, now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import click

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.options.durations import time_option
from pulsed.cli.options.filters import status_option
from pulsed.cli.prompt import confirm
from pulsed.cli.view.output import at_least, json_option, print_counts
from pulsed.client.operator import operator
from pulsed.client.prune import ages_for
from pulsed.engine.upkeep.pruner import prune_all
from pulsed.model.audit import of_ages
from pulsed.model.job import Status
from pulsed.model.page import Counts
from pulsed.model.retention import Retention, described
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.wording import counted


@click.command(short_help="Remove jobs that ended some time ago.")
@time_option("--older-than", "Ended longer ago than this: 12h, 7d [default: the app's retention].")
@status_option("succeeded, cancelled, dead; repeatable [default: the first two].")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@database_options
def prune(
    database: Database,
    older_than: float | None,
    status: tuple[tuple[Status, ...], ...],
    dry_run: bool,
    yes: bool,
    as_json: bool | None,
) -> int:
    """Remove jobs that ended some time ago, with their results and failures.

    \b
    Workers do this automatically, by the app's retention. Dead letters
    are left alone unless --status, or the app's retention, names them.
    Prints how many of each status. Examples:
      pulsed jobs prune --older-than 7d --dry-run
      pulsed jobs prune --older-than 90d --status dead --yes
      pulsed jobs prune --app shop.jobs:app --yes
    """
    ages = _ages(database, older_than, tuple(each for group in status for each in group))
    with database.store() as store:
        counted = run_blocking(store.prunable(ages))
        total = sum(counted.values())
        more = "at least " if counted.at_least else ""
        if not total:
            say("no job ended so long ago")
        elif not dry_run:
            parts = ", ".join(f"{at_least(counted, s)} {s}" for s in counted if counted[s])
            confirm(f"remove {more}{_jobs(total)} ({parts})", yes=yes)
            counted = _prune(store, ages)
        else:
            say(f"{more}{_jobs(total)} would be removed")
    print_counts(counted, as_json=as_json)
    return Code.OK


def _prune(store: Store, ages: Mapping[Status, float]) -> Counts:
    """Prune, and say how many jobs were removed, also if it is interrupted."""
    removed: Counter[Status] = Counter()
    try:
        run_blocking(prune_all(store, ages, removed, by=operator(of_ages(ages))))
    except BaseException:
        say(f"interrupted: {_jobs(removed.total())} removed so far; the rest is left as it was")
        raise
    say(f"removed {_jobs(removed.total())}")
    return Counts(removed.items())


def _ages(
    database: Database, older_than: float | None, statuses: tuple[Status, ...]
) -> dict[Status, float]:
    app = database.loaded_app()
    if older_than is None and app is None:
        raise CommandError("how old? Give --older-than, or --app to use its retention.", Code.USAGE)
    retention = Retention.forever() if app is None else app.retention
    ages = ages_for(retention, older_than=older_than, status=statuses or None)
    if not ages:
        raise CommandError(
            f"by its retention the app keeps {described(retention.ages)}; give --older-than to "
            "remove others.",
            Code.USAGE,
        )
    return ages


def _jobs(number: int) -> str:
    return counted(number, "job")
