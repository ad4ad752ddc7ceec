"""A pytest plugin that runs the tests of each mutant, in a fork of a warm interpreter.

First every test runs once, as it is; that says which statements it uses, and how long it takes. A
mutant's tests are those that use its statement, until one fails. A statement is
exchanged where it is handed to the driver, so tests that take guards out of a text by themselves
still find it as it is written, and only behaviour can kill a mutant.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pulsed.store.sql.statement import Sql, Statement
from tests.mutation.mutants import Mutant, together

SECONDS = 120
"""A mutant that hangs for so long counts as killed."""
LONGEST = 3.0
"""Tests that took longer as they are do not run for mutants."""


class Handed:
    """What is handed to the driver: which statements, and instead of which."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.instead: dict[str, Sql] = {}
        made = Statement.__init__

        def making(self_: Statement, sql: Sql, params: Any, rows: Any = ()) -> None:
            self.texts.add(sql.text)
            made(self_, self.instead.get(sql.text, sql), params, rows)

        setattr(Statement, "__init__", making)  # noqa: B010 - mypy knows no such assignment


class Mutating:
    """Replaces the loop over the tests by one over the mutants."""

    def __init__(
        self,
        engine: str,
        mutants: Sequence[Mutant],
        processes: int,
        most_tests: int,
        show: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._mutants = mutants
        self._processes = processes
        self._most_tests = most_tests
        self._show = show
        self._running: dict[int, tuple[Mutant, int]] = {}
        self._handed = Handed()
        self.survivors: list[Mutant] = []
        self.killed: list[Mutant] = []
        self.covered: list[Mutant] = []
        """Those that only survived because another guard of the statement covers for theirs."""
        self.failed: list[str] = []
        """Tests that fail without any mutant."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of this engine, and those without one."""
        others = {"sqlite", "postgres", "remote"} - {self._engine}
        items[:] = [item for item in items if not others & _parameters(item)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests once, then those of each mutant."""
        users = self._users(session.items)
        self._run_all(self._mutants, users)
        self._run_together(users)
        return True

    def _run_all(self, mutants: Sequence[Mutant], users: Mapping[str, list[pytest.Item]]) -> None:
        for mutant in mutants:
            if len(self._running) >= self._processes:
                self._wait_for_one()
            self._start(mutant, users.get(mutant.original.text, [])[: self._most_tests])
        while self._running:
            self._wait_for_one()

    def _run_together(self, users: Mapping[str, list[pytest.Item]]) -> None:
        """Remove the surviving guards of a statement together: they may cover for each other."""
        alone, killed = self.survivors, len(self.killed)
        by_text: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in alone:
            by_text[mutant.original.text].append(mutant)
        several = [each for each in by_text.values() if len(each) > 1]
        self.survivors = []
        self._run_all([together(each) for each in several], users)
        dead = {mutant.original.text for mutant in self.killed[killed:]}
        del self.killed[killed:]
        self.survivors = [each for each in alone if each.original.text not in dead]
        self.covered = [each for each in alone if each.original.text in dead]

    def _users(self, items: Sequence[pytest.Item]) -> Mapping[str, list[pytest.Item]]:
        """Run every test; returns those that use a statement, by its text.

        Tests of guards come first, then the quickest.
        """
        took: list[tuple[float, pytest.Item, set[str]]] = []
        for at, item in enumerate(items):
            self._handed.texts.clear()
            began = time.monotonic()
            following = items[at + 1] if at + 1 < len(items) else None
            if _fails(item, following):
                self.failed.append(item.nodeid)
                continue
            took.append((time.monotonic() - began, item, set(self._handed.texts)))
        users: dict[str, list[pytest.Item]] = defaultdict(list)
        took.sort(key=lambda each: ("guards" not in each[1].nodeid, each[0]))
        for seconds, item, texts in took:
            for text in texts if seconds < LONGEST else ():
                users[text].append(item)
        self._show(f"{len(took)} tests pass as they are, {len(self.failed)} do not")
        return users

    def _start(self, mutant: Mutant, tests: Sequence[pytest.Item]) -> None:
        """Run a mutant's tests in a fork."""
        child = os.fork()
        if child == 0:
            self._run(mutant, tests)
        self._running[child] = mutant, len(tests)

    def _wait_for_one(self) -> None:
        """Wait for the end of a fork, and note what became of its mutant."""
        child, status = os.wait()
        mutant, tests = self._running.pop(child)
        if os.waitstatus_to_exitcode(status):
            self.killed.append(mutant)
        else:
            self.survivors.append(mutant)
            self._show(f"survived {tests} tests: {mutant.name}")
        done = len(self.killed) + len(self.survivors)
        if done % 25 == 0:
            self._show(f"{done} of {len(self._mutants)} mutants")

    def _run(self, mutant: Mutant, tests: Sequence[pytest.Item]) -> None:
        """Be the child: run the tests until one fails, and end."""
        code = 1
        try:
            signal.alarm(SECONDS)
            self._handed.instead[mutant.original.text] = mutant.changed
            code = int(any(_fails(test, None) for test in tests))
        finally:
            sys.stdout.flush()
            os._exit(code)


def _fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    reports = runtestprotocol(item, log=False, nextitem=following)
    return any(report.failed for report in reports)


def _parameters(item: pytest.Item) -> set[object]:
    callspec = getattr(item, "callspec", None)
    values = () if callspec is None else callspec.params.values()
    return {value for value in values if isinstance(value, str)}
