"""Runs Django's tests in this process, which has the Django in question: one engine, one report.

Usage: ``python -m tests.django_suite.run FOLDER DATABASE``: the folder that has Django's ``tasks``,
and a URL of PostgreSQL or the path of a file. Writes what became of each test, as JSON.
"""

import json
import sys
import unittest
from importlib import import_module
from typing import Any

import django
from django.conf import settings

from tests.contrib_django.project.databases import entry

MODULES = ("test_tasks", "test_dummy_backend", "test_immediate_backend")
"""Those about any backend; `test_custom_backend` is about Django's base class alone."""


class Outcomes(unittest.TestResult):
    """What became of each test: None, or why it failed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str | None] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self.found[name_of(test)] = None

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - as above
        super().addFailure(test, err)
        self.found[name_of(test)] = self.failures[-1][1]

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - as above
        super().addError(test, err)
        self.found[name_of(test)] = self.errors[-1][1]

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802 - as above
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.found[name_of(test)] = (self.failures + self.errors)[-1][1]


def name_of(test: Any) -> str:
    """The name of a test without its module: two parts of its id."""
    return ".".join(test.id().split(".")[-2:])


def configure(database: str) -> None:
    """Set Django up with one database, which has the jobs."""
    of_tests = {} if database.startswith("postgresql:") else {"TEST": {"NAME": database}}
    settings.configure(
        SECRET_KEY="only for tests",
        INSTALLED_APPS=["pulsed.contrib.django"],
        DATABASES={"default": {**entry(database), **of_tests}},
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()


def suite() -> unittest.TestSuite:
    """Django's tests, allowed to use the database: those of a dummy need none."""
    from django.test import SimpleTestCase  # noqa: PLC0415 - it needs Django to be set up

    from tests.django_suite.stand_ins import take_their_places  # noqa: PLC0415 - as above

    take_their_places()
    SimpleTestCase.databases = {"default"}
    load = unittest.defaultTestLoader.loadTestsFromModule
    return unittest.TestSuite(load(import_module(f"tasks.{name}")) for name in MODULES)


def run(database: str) -> dict[str, str | None]:
    """Run the tests with a test database of Django's making."""
    configure(database)
    from django.test.runner import DiscoverRunner  # noqa: PLC0415 - it needs Django to be set up

    runner = DiscoverRunner(verbosity=0, interactive=False)
    outcomes = Outcomes()
    tests = suite()
    runner.setup_test_environment()
    made = runner.setup_databases()
    try:
        tests.run(outcomes)
    finally:
        runner.teardown_databases(made)
    return outcomes.found


def main(folder: str, database: str) -> None:
    """Report about each test."""
    sys.path.insert(0, folder)
    print(json.dumps(run(database)))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
