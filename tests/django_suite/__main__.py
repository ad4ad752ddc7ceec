"""Gets Django's tests and a Python for them, runs them on both engines, and judges the outcome."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from dev import ROOT
from tests.django_suite.differences import DIFFERENCES
from tests.django_suite.environment import Environment, NotPossible, find_python, prepared
from tests.support.scratch_postgres import ScratchPostgres

VERSIONS = ("6.0", "6.1")


def run(environment: Environment, database: str) -> Mapping[str, str | None]:
    """Run Django's tests on a database; returns why each of them failed, or None."""
    module = [str(environment.python), "-m", "tests.django_suite.run"]
    done = subprocess.run(
        [*module, str(environment.tests), database],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        sys.exit(f"Django's tests did not run to their end:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def surprises(outcomes: Mapping[str, str | None]) -> list[str]:
    """What is not as the table of differences says, in either direction."""
    failed = {name: reason for name, reason in outcomes.items() if reason is not None}
    return [
        *(f"{name} failed:\n{failed[name]}" for name in failed.keys() - DIFFERENCES.keys()),
        *(
            f"{name} passes now: remove it from differences.py"
            for name in (DIFFERENCES.keys() & outcomes.keys()) - failed.keys()
        ),
    ]


def judge(version: str, engine: str, outcomes: Mapping[str, str | None]) -> bool:
    """Print the outcome on one engine; returns whether it is as expected."""
    differing = outcomes.keys() & DIFFERENCES.keys()
    found = surprises(outcomes)
    print(  # noqa: T201
        f"Django {version} on {engine}: {len(outcomes)} tests, "
        f"{sum(reason is None for reason in outcomes.values())} passed, "
        f"{len(differing)} differ as explained in tests/django_suite/differences.py"
    )
    for each in found:
        print(f"  {each}")  # noqa: T201
    return not found


def run_version(version: str, python: str) -> bool:
    """Run the tests of one version of Django on both engines."""
    environment = prepared(version, python)
    with tempfile.TemporaryDirectory() as folder:
        on_sqlite = judge(version, "SQLite", run(environment, f"{folder}/tests.db"))
    with ScratchPostgres() as server:
        return judge(version, "PostgreSQL", run(environment, server.url)) and on_sqlite


def main() -> None:
    """Run what is asked for; the exit code is 0 if every outcome is as expected."""
    parser = argparse.ArgumentParser(prog="dev.py django", description=__doc__)
    parser.add_argument("--django", choices=VERSIONS, action="append", help="default: all")
    parser.add_argument("--python", help="a Python of 3.12 or newer, which Django 6 needs")
    given = parser.parse_args()
    try:
        python = given.python or find_python()
        good = [run_version(version, python) for version in given.django or VERSIONS]
    except NotPossible as error:
        sys.exit(f"Django's tests cannot be run here: {error}")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
