"""A module that declares and enqueues jobs is imported quickly."""

import json
import os
import statistics
import sys

from tests.support.programs import python

PARTS = "import asyncio, logging, msgspec, sqlite3"
"""What pulsed cannot be without."""
MOST_MODULES = 75
NOT_NEEDED = {
    # extras, and libraries of callers
    *("asyncpg", "psycopg", "grpc", "google", "uvloop", "pydantic", "starlette", "uvicorn"),
    *("jinja2", "prometheus_client", "opentelemetry", "sqlalchemy", "aiosqlite", "django", "flask"),
    *("fastapi",),
    # of the command line, of schedules, of tests
    *("click", "rich", "cronsim", "zoneinfo", "tzdata", "pytest", "hypothesis", "unittest"),
}


def test_an_app_loads_few_modules():
    loaded = json.loads(
        python(
            "-I",
            "-c",
            f"{PARTS}\n"
            "import json, sys; before = set(sys.modules)\n"
            "from pulsed import Pulse\n"
            "app = Pulse('sqlite:///jobs.db')\n"
            "@app.job\n"
            "async def pack(order: int) -> int: ...\n"
            "print(json.dumps(sorted(set(sys.modules) - before)))",
        ).stdout
    )
    assert not {name.partition(".")[0] for name in loaded} & NOT_NEEDED
    assert len(loaded) <= MOST_MODULES, loaded


def test_importing_pulsed_costs_little_more_than_its_parts():
    """As a ratio of processor times, each the median of several fresh interpreters, by turns."""
    codes = (PARTS, "import pulsed", "from pulsed import Pulse")
    taken = [[processor_time(code) for code in codes] for _ in range(5)]
    parts, package, app = map(statistics.median, zip(*taken, strict=True))
    assert package <= 1.3 * parts, taken
    assert app <= 2.2 * parts, taken  # 1.5 when measured alone


def processor_time(code: str) -> float:
    """Return the seconds that a new interpreter takes to run this."""
    process = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", code], os.environ)
    _, status, used = os.wait4(process, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime
