"""Writes docs/reliability.md: what must hold, what is broken on purpose, and what the runs found.

It puts together the tables of docs/faults.md, the figures that long runs have left in
docs/reliability/*.json, and what docs/guarantees.md does not promise. Run by `dev.py reliability`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "docs/faults.md"
GUARANTEES = ROOT / "docs/guarantees.md"
RUNS = ROOT / "docs/reliability"
PAGE = ROOT / "docs/reliability.md"

INVARIANT = re.compile(r"I\d+")
TEST = re.compile(r"`(tests/[\w/]+\.py::[\w:]+)`")

COLUMNS = 3
"""Of a table that names tests: what, what is expected, kept by."""

Run: TypeAlias = Mapping[str, Any]


class Row(NamedTuple):
    """A row of a table of faults or invariants."""

    section: str
    what: str
    """The fault, or the number of the invariant."""
    expected: str
    tests: Sequence[str]


def rows_of(text: str) -> list[Row]:
    """Return the rows of all tables in a page of faults."""
    found = []
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        is_head = cells[0] in ("", "broken") or set(cells[0]) == {"-"}
        if line.startswith("|") and len(cells) == COLUMNS and not is_head:
            found.append(Row(section, cells[0], cells[1], TEST.findall(cells[2])))
    return found


def without_test(rows: Sequence[Row]) -> list[str]:
    """Return the rows that name no test."""
    return [row.what for row in rows if not row.tests]


def runs_in(folder: Path) -> list[Run]:
    """Return the runs whose figures are kept, by kind and name."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    runs = [run for run in found if {"kind", "date", "seconds", "counts"} <= run.keys()]
    return sorted(runs, key=lambda run: (run["kind"], run.get("name", "")))


def page(faults: str, guarantees: str, runs: Sequence[Run]) -> str:
    """Return the page."""
    rows = rows_of(faults)
    invariants = [row for row in rows if INVARIANT.fullmatch(row.what)]
    broken = [row for row in rows if row not in invariants]
    parts = [
        _OPENING,
        "## The runs\n",
        *_runs(runs),
        *_guards(runs),
        "\n## The invariants\n",
        *_invariants(invariants, runs),
        "\n## The faults\n",
        f"{len(broken)} faults, each with the tests that cause it.",
        "[Faults](faults.md) has what is expected.\n",
        *_faults(broken),
        "\n## Not promised\n",
        "The reasons are in the [guarantees](guarantees.md#not-promised).\n",
        *_not_promised(guarantees),
    ]
    return "\n".join(parts) + "\n"


_OPENING = """\
# Reliability

On this page you find what pulsed is measured against, and what the last long runs have found. It is
made by `python3 dev.py reliability` from the tables of [Faults](faults.md) and the figures in
`docs/reliability/`; do not edit it.
"""


def _runs(runs: Sequence[Run]) -> Iterator[str]:
    yield "| run | command | date | engine | time | what | violations |"
    yield "|---|---|---|---|---|---|---|"
    for run in runs:
        counted = {name: value for name, value in run["counts"].items() if name != "seed"}
        counts = ", ".join(f"{_number(value)} {name}" for name, value in counted.items())
        violations = run.get("violations", 0)
        yield _line(
            run.get("title", run["kind"]),
            f"`{run.get('command', run['kind'])}`",
            run["date"],
            run.get("engine", ""),
            _time(run["seconds"]),
            counts,
            str(violations if isinstance(violations, int) else len(violations)),
        )
    for run in runs:
        if left_out := run.get("left_out"):
            yield f"\nLeft out of {run.get('title', run['kind'])}: {'; '.join(left_out)}."


def _guards(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what became of statements without a guard, by engine and by what was removed."""
    for run in runs:
        if run["kind"] != "mutation":
            continue
        yield "\n## The guards\n"
        yield _GUARDS
        yield _line("engine", "removed", "mutants", *OUTCOMES)
        yield _line(*["---"] * (3 + len(OUTCOMES)))
        for engine, found in run["engines"].items():
            for kind, counts in found["kinds"].items():
                numbers = [counts.get(outcome, 0) for outcome in OUTCOMES]
                yield _line(engine, kind, *map(_number, (sum(numbers), *numbers)))


OUTCOMES = ("killed", "covered", "explained", "survived")
_GUARDS = """\
`dev.py mutate` takes one condition or one lock out of one statement, and runs the tests that use
the statement. A mutant is killed if a test fails. It is covered if another guard of the statement
does the same, and a test fails without both. It is explained if nothing can break without it;
`tests/mutation/explained.py` says why.
"""


def _invariants(rows: Sequence[Row], runs: Sequence[Run]) -> Iterator[str]:
    yield "How often each was checked in these runs, of each kind, and the tests that keep it.\n"
    kinds = sorted({run["kind"] for run in runs if run.get("checks")})
    yield _line("", "invariant", *kinds, "kept by")
    yield _line(*["---"] * (3 + len(kinds)))
    for row in rows:
        checked = [_number(_checked(row.what, kind, runs) or "-") for kind in kinds]
        yield _line(row.what, row.expected, *checked, _tests(row))


def _checked(invariant: str, kind: str, runs: Sequence[Run]) -> int:
    checks = [check for run in runs if run["kind"] == kind for check in run.get("checks", ())]
    return sum(check["checked"] for check in checks if check["invariant"] == invariant)


def _faults(rows: Sequence[Row]) -> Iterator[str]:
    yield "| | fault | tests |"
    yield "|---|---|---|"
    for row in rows:
        yield _line(row.section, row.what, _tests(row))


def _not_promised(guarantees: str) -> Iterator[str]:
    _, _, section = guarantees.partition("## Not promised\n")
    for name in re.findall(r"^- \*\*(.+?)\.?\*\*", section, re.MULTILINE):
        yield f"- {name}"


def _tests(row: Row) -> str:
    return ", ".join(f"`{test}`" for test in row.tests)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: object) -> str:
    return f"{value:,.12g}" if isinstance(value, int | float) else str(value)


def _time(seconds: float) -> str:
    minute = 60
    return f"{seconds:.0f} s" if seconds < 2 * minute else f"{seconds / minute:.0f} min"


def main() -> int:
    """Write the page; 1 if a row names no test."""
    faults = FAULTS.read_text("utf-8")
    if missing := without_test(rows_of(faults)):
        print("these rows of docs/faults.md name no test:", *missing, sep="\n  ")
        return 1
    PAGE.write_text(page(faults, GUARANTEES.read_text("utf-8"), runs_in(RUNS)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
