"""Data on stdout: tables and colours for people on a terminal, JSON lines for everything else."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import click
import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.plain import harmless, harmless_json, in_line
from pulsed.model.fields import ROW, Kind, fields_of
from pulsed.model.job import JobRow, Status, WorkerInfo
from pulsed.model.page import SEARCHED, Counts, GroupedCounts

F = TypeVar("F", bound=Callable[..., Any])

_encoder = msgspec.json.Encoder(decimal_format="number")

COLOURS = {
    Status.PENDING: "cyan",
    Status.RUNNING: "blue",
    Status.RETRYING: "yellow",
    Status.WAITING: "magenta",
    Status.SUCCEEDED: "green",
    Status.DEAD_LETTERED: "bold red",
    Status.CANCELLED: "dim",
}

SHORT = {Status.DEAD_LETTERED: "DEAD"}
"""Short names for narrow columns; ``--status`` accepts them too."""


def json_option(command: F) -> F:
    """Give a command ``--format`` and ``--json``, and pass them on as ``as_json``.

    None: neither was given.
    """

    @click.option(
        "--format",
        "form",
        type=click.Choice(("table", "json")),
        help="For people or for programs [default: table on a terminal, json in a pipe].",
    )
    @click.option("--json", "wants_json", is_flag=True, help="Short for --format json.")
    @functools.wraps(command)
    def with_format(*, form: str | None, wants_json: bool, **options: Any) -> Any:
        if wants_json and form == "table":
            raise CommandError("--json and --format table contradict each other.", Code.USAGE)
        as_json = True if wants_json else None if form is None else form == "json"
        return command(as_json=as_json, **options)

    return with_format  # type: ignore[return-value]


def list_format_option(command: F) -> F:
    """Give a list ``--format``, ``--json`` and ``--ids``; passes ``as_json`` and ``ids_only``."""

    @click.option(
        "--format",
        "form",
        type=click.Choice(("table", "json", "ids")),
        help="For people, for programs, or the ids alone [default: table on a terminal, json in a "
        "pipe].",
    )
    @click.option("--json", "wants_json", is_flag=True, help="Short for --format json.")
    @click.option("--ids", "wants_ids", is_flag=True, help="Short for --format ids: one on a line.")
    @functools.wraps(command)
    def with_format(*, form: str | None, wants_json: bool, wants_ids: bool, **options: Any) -> Any:
        asked = {form} - {None}
        asked |= {name for name, wanted in (("json", wants_json), ("ids", wants_ids)) if wanted}
        if len(asked) > 1:
            raise CommandError(
                f"{' and '.join(sorted(map(str, asked)))} contradict each other: give one format.",
                Code.USAGE,
            )
        as_json = None if not asked else "json" in asked
        return command(as_json=as_json, ids_only="ids" in asked, **options)

    return with_format  # type: ignore[return-value]


def for_people(*, as_json: bool | None) -> bool:
    """Whether to print for a person: as the options say, or because stdout is a terminal."""
    return sys.stdout.isatty() if as_json is None else not as_json


def console(file: IO[str] | None = None) -> Console:
    """Return a console for tables and colours; it respects NO_COLOR and pipes."""
    return CleanConsole(file=file or sys.stdout, highlight=False, markup=False, emoji=False)


class CleanConsole(Console):
    """A console that draws no control characters but its own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments to draw, without control characters in their texts."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


def text_in_line(text: Text) -> Text:
    """Return a text with colours that stays in its line."""
    text.plain = in_line(text.plain)  # as long as before, so the colours stay where they are
    return text


def one_line(text: str) -> str:
    """Return the first line of a text, without control characters."""
    lines = text.strip().splitlines()
    return in_line(lines[0]) if lines else ""


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    print(harmless_json(_encoder.encode(value).decode()))


def job_as_json(job: JobRow) -> dict[str, Any]:
    """Return a job as JSON data. JSON columns pass unchanged, with big integers."""
    fields = msgspec.structs.asdict(job) | {"next_run_at": job.due_at}
    for field in fields_of(ROW):
        if field.kind is Kind.JSON:
            fields[field.name] = raw(fields[field.name])
    return fields


def worker_as_json(worker: WorkerInfo) -> dict[str, Any]:
    """Return a worker as JSON data."""
    return msgspec.structs.asdict(worker)


def raw(text: str | None) -> msgspec.Raw | None:
    """Return JSON text to be put into JSON unchanged, on one line."""
    return None if text is None else msgspec.Raw(msgspec.json.format(text, indent=-1).encode())


def status_text(status: Status) -> Text:
    """Return a status in its colour."""
    return Text(SHORT.get(status, status.value), style=COLOURS[status])


def status_of(job: JobRow) -> Text:
    """Return a job's status in its colour; CANCELLING while it runs and was asked to stop."""
    if job.is_cancelling:
        return Text("CANCELLING", style=COLOURS[Status.RUNNING])
    return status_text(job.status)


class Table:
    """A table that fits the terminal.

    On a narrow one, flexible columns shrink to their minimum widths, in their order. If that is not
    enough, optional columns are left out, the first one first. If all of these are gone, flexible
    columns shrink on. Other columns are never cut.
    """

    def __init__(
        self,
        *heads: str,
        flexible: Mapping[str, int],
        optional: Sequence[str] = (),
        numbers: Collection[str] = (),
    ) -> None:
        self._heads = heads
        self._flexible = flexible
        """Names of columns that may shrink, and their minimum widths."""
        self._optional = optional
        self._numbers = numbers
        """Names of columns that are aligned at the right."""
        self._rows: list[tuple[Sequence[Text], Text | None]] = []

    def add(self, *cells: str | Text, below: Text | None = None) -> None:
        """Add a row, and perhaps a line below it."""
        texts = [text_in_line(Text(cell) if isinstance(cell, str) else cell) for cell in cells]
        assert len(texts) == len(self._heads)
        self._rows.append((texts, None if below is None else text_in_line(below)))

    def show(self, to: Console) -> None:
        """Print the table."""
        for line in self.lines(to.width):
            to.print(line, no_wrap=True, overflow="ellipsis")

    def lines(self, available: int) -> Iterator[Text]:
        """Yield the lines of the table, its heads first, for a terminal of this width."""
        widths = self._fitted_widths(available)
        yield self._line([Text(head, style="dim") for head in self._heads], widths)
        for cells, below in self._rows:
            yield self._line(cells, widths)
            if below is not None:
                line = Text("  ").append_text(below)
                line.truncate(available, overflow="ellipsis")
                yield line

    def _fitted_widths(self, available: int) -> dict[int, int]:
        """Return the widths of the columns that are shown, by their places."""
        columns = zip(
            self._heads, *([c.plain for c in cells] for cells, _ in self._rows), strict=True
        )
        widths = {place: max(map(cell_len, column)) for place, column in enumerate(columns)}
        for head in self._optional:
            if _total(self._shrunk(widths, self._flexible, available)) <= available:
                break
            del widths[self._heads.index(head)]
        widths = self._shrunk(widths, self._flexible, available)
        return self._shrunk(widths, dict.fromkeys(self._flexible, 1), available)

    def _shrunk(
        self, widths: Mapping[int, int], flexible: Mapping[str, int], available: int
    ) -> dict[int, int]:
        shrunk = dict(widths)
        for head, least in flexible.items():
            place = self._heads.index(head)
            if place in shrunk:
                wanted = shrunk[place] - max(0, _total(shrunk) - available)
                shrunk[place] = min(shrunk[place], max(least, wanted))
        return shrunk

    def _line(self, cells: Sequence[Text], widths: Mapping[int, int]) -> Text:
        line = Text()
        for place, width in widths.items():
            cell = cells[place]
            is_number = self._heads[place] in self._numbers
            indent = width - cell_len(cell.plain) if is_number else 0
            text = _fitted(" " * indent + cell.plain, width)
            line.append(text, style=cell.style).append("  ")
        line.rstrip()
        return line


def _total(widths: Mapping[int, int]) -> int:
    """Return the width of a line, with the gaps between its columns."""
    return sum(widths.values()) + 2 * (len(widths) - 1)


def print_counts(counted: Counts, *, as_json: bool | None, scanned: int = SEARCHED) -> None:
    """Print numbers of jobs by status, and which of them are only lower bounds."""
    if not for_people(as_json=as_json):
        print_json(dict(counted))
        if counted.at_least:
            names = joined(sorted(counted.at_least))
            say(f"{scanned:,} jobs were scanned: there may be more of {names}")
        return
    table = Table("STATUS", "JOBS", flexible={})
    numbers = {status: at_least(counted, status) for status in counted}
    width = max(map(len, numbers.values()))
    for status, number in numbers.items():
        style = "" if counted[status] else "dim"
        table.add(status_text(status), Text(f"{number:>{width}}", style=style))
    table.show(console())


def print_grouped(counted: GroupedCounts, *, as_json: bool | None, scanned: int) -> None:
    """Print numbers of jobs by some of their fields."""
    if not for_people(as_json=as_json):
        for values, number in counted:
            fields = dict(zip(counted.by, values, strict=True))
            print_json(fields | {"jobs": number, "at_least": counted.is_cut})
    elif counted:
        heads = [name.upper() for name in counted.by]
        flexible = dict.fromkeys((head for head in heads if head != "STATUS"), 12)
        table = Table(*heads, "JOBS", flexible=flexible, numbers=("JOBS",))
        for values, number in counted:
            cells = [Text("none", style="dim") if value is None else value for value in values]
            table.add(*cells, f"{'≥ ' if counted.is_cut else ''}{number:,}")
        table.show(console())
    if counted.is_cut:
        say(f"{scanned:,} jobs were scanned, the newest: there may be more of each")
    if counted.is_short:
        say(f"the {len(counted):,} largest groups; there are more")
    if not counted:
        say("no job matches")


def at_least(counted: Counts, status: Status) -> str:
    """Return one of the numbers as text; with ``≥`` if it is a lower bound."""
    return f"{'≥ ' if status in counted.at_least else ''}{counted[status]:,}"


def _fitted(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + "…"


def joined(names: Iterable[str], most: int = 12) -> str:
    """Return names for a line of text; those beyond ``most`` are only counted."""
    given = [in_line(name) for name in names]
    more = f" and {len(given) - most} more" if len(given) > most else ""
    return ", ".join(given[:most]) + more


def print_hanging(screen: Console, line: Text, indent: int) -> None:
    """Print a line; wrapped lines are indented to its text, not to its label."""
    head, *rest = line.wrap(screen, screen.width)
    screen.print(head)
    if rest:
        tail = Text(" ").join(Text(part.plain.strip(), part.style) for part in rest)
        for part in tail.wrap(screen, max(20, screen.width - indent)):
            screen.print(Text(" " * indent).append_text(part))
