"""A pytest plugin that runs the tests of each mutant, in a fork of a warm interpreter.

Every test runs once as it is; that says which statements it uses, and how long it takes. A mutant's
tests are those that use its statement: first the one that killed it last time, then those that
killed others of its statement, then tests of guards, then those that use the fewest statements. A
statement is exchanged where it is handed to the driver, so tests that take guards out of a text by
themselves still find it as it is written, and only behaviour can kill a mutant.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from pulsed.store.sql.statement import Sql, Statement
from tests.mutation.explained import reason_for
from tests.mutation.forks import Forks, Note, failing, fails
from tests.mutation.memory import Decided, Known, Memory
from tests.mutation.mutants import Mutant, name_of, names_by_text, together
from tests.mutation.verdicts import Outcome, Verdict, Verdicts

LONGEST = 8.0
"""Seconds; tests that took longer as they are do not run for mutants."""

ENOUGH = 10
"""Tests for a mutant that is explained: one that they kill needs no explanation."""


class Handed:
    """What is handed to the driver: which statements, and instead of which."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.mutant: Mutant | None = None
        made = Statement.__init__

        def making(self_: Statement, sql: Sql, *batch: Any, **more: Any) -> None:
            self.texts.add(sql.text)
            made(self_, sql if self.mutant is None else self.mutant.of(sql), *batch, **more)

        setattr(Statement, "__init__", making)  # noqa: B010 - mypy knows no such assignment


class Mutating:
    """Replaces the loop over the tests by one over the mutants."""

    def __init__(
        self,
        engine: str,
        mutants: Sequence[Mutant],
        memory: Memory,
        show: Callable[[str], None],
        *,
        known: Iterable[Verdict] = (),
        processes: int = 2,
        most_tests: int = 2_000,
        until: float = float("inf"),
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._took_before, self._began = memory.took, time.monotonic()
        self._show = show
        self._most_tests = most_tests
        self._until = until
        self._forks = Forks(processes)
        self._handed = Handed()
        self._items: dict[str, pytest.Item] = {}
        self._users: dict[str, list[str]] = defaultdict(list)
        self._killers: dict[str, dict[str, None]] = defaultdict(dict)
        """Tests that have killed mutants of a statement, the latest last."""
        self.verdicts = Verdicts()
        for verdict in known:
            self.verdicts.add(verdict)
        self._mutants = mutants
        self.unstable: list[str] = []
        """Tests that killed a mutant, and then fail without one as well."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of this engine."""
        items[:] = [item for item in items if engine_of(item) == self._engine]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Learn what the tests use, then run those of each mutant."""
        self._items = {item.nodeid: item for item in session.items}
        self._learn()
        self.verdicts.forget_kills_but_of(self._items.keys() & self._memory.tests.keys())
        self._find_users()
        self._run(self._to_run())
        self._run_covered()
        if time.monotonic() < self._until:
            self._run_killers_again()
        self._remember()
        return True

    # -- the tests as they are --------------------------------------------------------------------

    def _learn(self) -> None:
        """Run the tests that are not known yet, a file at a time."""
        by_file: dict[str, list[pytest.Item]] = defaultdict(list)
        for name, item in self._items.items():
            if name not in self._memory.tests:
                by_file[name.partition("::")[0]].append(item)
        for items in by_file.values():
            if time.monotonic() < self._until:
                self._forks.start(self._watching(items), self._learned)
        self._forks.finish()
        known = self._items.keys() & self._memory.tests.keys()
        self._show(f"{len(known)} of {len(self._items)} tests pass as they are")

    def _watching(self, items: Sequence[pytest.Item]) -> Callable[[Note], int]:
        names = names_by_text(self._engine)

        def work(note: Note) -> int:
            found: dict[str, Any] = {}
            for at, item in enumerate(items):
                self._handed.texts.clear()
                began = time.monotonic()
                if not fails(item, items[at + 1] if at + 1 < len(items) else None):
                    used = {name_of(names, text) for text in self._handed.texts} - {None}
                    found[item.nodeid] = [time.monotonic() - began, sorted(map(str, used))]
                note.write(json.dumps(found))
            return 0

        return work

    def _learned(self, code: int, note: str) -> None:
        for name, (seconds, statements) in json.loads(note or "{}").items():
            self._memory.tests[name] = Known(seconds, statements)
        self._memory.save()

    def _find_users(self) -> None:
        """Note which tests use which statements, the most specific first."""
        tests = self._memory.tests
        known = [name for name in self._items if name in tests and tests[name].seconds < LONGEST]
        known.sort(key=lambda name: ("guard" not in name, _breadth(tests[name])))
        for name in known:
            for statement in tests[name].statements:
                self._users[statement].append(name)
        for mutant, killer in self._memory.killers.items():
            if killer in self._items:
                self._killers[mutant.partition(": ")[0]][killer] = None

    # -- mutants ----------------------------------------------------------------------------------

    def _to_run(self) -> list[Mutant]:
        """Return the mutants without a verdict, then those that have survived so far."""
        unknown = [each for each in self._mutants if each not in self.verdicts]
        return [*unknown, *self.verdicts.survivors()]

    def _run(self, mutants: Iterable[Mutant]) -> None:
        for mutant in mutants:
            if time.monotonic() < self._until:
                self._start(mutant, self._judge)
        self._forks.finish()

    def _start(self, mutant: Mutant, judge: Callable[[Verdict], None]) -> None:
        tests = self._tests_of(mutant)

        def done(code: int, note: str) -> None:
            outcome = Outcome.KILLED if code else Outcome.SURVIVED
            judge(Verdict(mutant, outcome, note if code else "", len(tests)))

        self._run_tests(mutant, tests, self._memory.killers.get(mutant.name, ""), done)

    def _run_tests(
        self, mutant: Mutant, tests: Sequence[str], suspected: str, done: Callable[[int, str], None]
    ) -> None:
        """Run tests of a mutant until one fails that is suspected, or that is of its statement.

        Any other may have failed because the machine was busy: it has to fail twice.
        """
        items = [self._items[name] for name in tests]
        limits = [self._memory.tests[name].seconds for name in tests]

        def work(note: Note) -> int:
            self._handed.mutant = mutant
            if mutant.patch is not None:
                mutant.patch()
            return int(failing(items, note, limits))

        def ended(code: int, note: str) -> None:
            if code != 1 or note not in tests or note == suspected or mutant.statement in note:
                done(code, note)
            else:
                self._run_tests(mutant, tests[tests.index(note) :], note, done)

        self._forks.start(work, ended)

    def _judge(self, verdict: Verdict) -> None:
        mutant = verdict.mutant
        verdict = self.verdicts.add(verdict)
        self._decide(verdict)
        if verdict.outcome is Outcome.KILLED:
            self._killers[mutant.statement].pop(verdict.killer, None)
            self._killers[mutant.statement][verdict.killer] = None
            self._memory.killers[mutant.name] = verdict.killer
        else:
            self._memory.killers.pop(mutant.name, None)
            self._show(f"survived {verdict.tests} tests: {mutant.name}")
        is_milestone = len(self.verdicts) % 50 == 0
        if is_milestone or verdict.outcome is Outcome.SURVIVED:
            self._remember()
        if is_milestone:
            self._show(f"{len(self.verdicts)} of {len(self._mutants)} mutants")

    def _decide(self, verdict: Verdict) -> None:
        """Keep a verdict for a run that goes on with this one."""
        how = verdict.outcome.value, verdict.killer, verdict.tests
        self._memory.decided[verdict.mutant.name] = Decided(*how, verdict.mutant.digest)

    def _remember(self) -> None:
        self._memory.took = self._took_before + time.monotonic() - self._began
        self._memory.save()

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that may kill a mutant, those first that will."""
        statements = mutant.statement.split(" + ")
        first = [self._memory.killers.get(mutant.name)]
        first += [name for each in statements for name in reversed(self._killers[each])]
        users = [name for each in statements for name in self._users.get(each, [])]
        if mutant.patch is not None and not users:
            users = self._in_code()
        tests = [name for name in dict.fromkeys([*first, *users]) if name in self._memory.tests]
        most = self._most_tests if reason_for(mutant) is None else min(ENOUGH, self._most_tests)
        return [name for name in tests if name in self._items][:most]

    def _in_code(self) -> list[str]:
        """Return tests for a change of code: races and those of the engine alone first."""
        words = ("race", "guard", f"test_{self._engine}", "steps", "concurren")
        names = [name for name in self._items if any(word in name for word in words)]
        known = [name for name in names if name in self._memory.tests]
        return sorted(known, key=lambda name: _breadth(self._memory.tests[name]))

    def _run_covered(self) -> None:
        """Remove a survivor together with each other one: either may cover for the other."""
        for pair in list(self.verdicts.pairs()):
            if time.monotonic() < self._until:
                self._start(together(pair), partial(self._judge_pair, pair))
        self._forks.finish()

    def _judge_pair(self, pair: Sequence[Mutant], verdict: Verdict) -> None:
        for mutant in pair if verdict.outcome is Outcome.KILLED else ():
            self._decide(self.verdicts.cover(mutant))

    def _run_killers_again(self) -> None:
        """Run the tests that killed mutants once more as they are: they have to pass."""
        by_file: dict[str, list[pytest.Item]] = defaultdict(list)
        for name in sorted(self.verdicts.killers()):
            by_file[name.partition("::")[0]].append(self._items[name])
        for items in by_file.values():
            limits = [self._memory.tests[item.nodeid].seconds for item in items]
            work = _rerun(items, limits)
            self._forks.start(work, self._reran)
        self._forks.finish()

    def _reran(self, code: int, note: str) -> None:
        if code:
            self.unstable.append(note)


def _rerun(items: Sequence[pytest.Item], limits: Sequence[float]) -> Callable[[Note], int]:
    return lambda note: int(failing(items, note, limits))


def _breadth(known: Known) -> float:
    """Return how little a test says about each statement that it uses, and how long it takes."""
    return len(known.statements) * (0.02 + known.seconds)


def engine_of(item: pytest.Item) -> str:
    """Return the engine that a test uses."""
    callspec = getattr(item, "callspec", None)
    values: Mapping[str, Any] = {} if callspec is None else callspec.params
    named = {value for value in values.values() if isinstance(value, str)}
    if "remote" in named:
        return "remote"
    fixtures = set(getattr(item, "fixturenames", ()))
    if (
        item.path.name.startswith("test_postgres")
        or "postgres" in named
        or fixtures & {"postgres_url", "postgres", "only_postgres", "admin"}
    ):
        return "postgres"
    return "sqlite"
