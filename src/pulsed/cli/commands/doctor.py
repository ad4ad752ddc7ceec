"""``pulsed doctor``: is everything well?"""

from __future__ import annotations

import click
from rich.text import Text

from pulsed.cli.exits import Code
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.plain import in_line
from pulsed.cli.view.output import console, for_people, json_option, print_hanging, print_json
from pulsed.engine.doctor.examine import examine
from pulsed.engine.doctor.finding import Finding, Severity, is_healthy
from pulsed.store.blocking import run_blocking
from pulsed.wording import counted

STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}

EXAMPLES = """\b
examples:
  pulsed doctor --url sqlite:///jobs.db
  pulsed doctor --json | jq 'select(.level != "ok")'"""


@click.command(epilog=EXAMPLES + ENVIRONMENT)
@json_option
@database_options
def doctor(database: Database, as_json: bool | None) -> int:
    """Check the database, its jobs and its workers. Exits with 6 if a check fails."""
    app = database.loaded_app()
    with database.store() as store:
        findings = run_blocking(examine(store, None if app is None else app.retention))
    if not for_people(as_json=as_json or False):  # for people, also in a pipe
        for finding in findings:
            print_json(finding._asdict())
    else:
        _show(findings)
    return Code.OK if is_healthy(findings) else Code.UNHEALTHY


def _show(findings: list[Finding]) -> None:
    screen = console()
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        line = Text(f"{finding.level:4}", style=STYLES[finding.level])
        line.append(f"  {finding.check:{width}}  ", style="bold").append(in_line(finding.detail))
        print_hanging(screen, line, 8 + width)
        if finding.advice:
            advice = Text(" " * (8 + width) + "→ ", style="yellow").append(in_line(finding.advice))
            print_hanging(screen, advice, 10 + width)
    bad = [finding for finding in findings if finding.level is not Severity.OK]
    failed = [finding for finding in bad if finding.level is Severity.FAIL]
    warned = len(bad) - len(failed)
    verdict = f"{len(failed)} failed, {counted(warned, 'warning')}, {len(findings)} checks"
    screen.print(Text(verdict, style="bold red" if failed else "bold"))
