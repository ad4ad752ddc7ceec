"""Other processes of the project."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SETTINGS = "tests.contrib_django.project.settings"
MANAGE = str(Path(__file__).parent / "project" / "manage.py")

PLACES: dict[str, str] = {}
"""The file of SQLite and the URL of PostgreSQL, by alias."""


def environment(alias: str, **more: str) -> dict[str, str]:
    """The environment of a project whose only database is the one of this alias."""
    own = {"SHOP_DATABASE": PLACES[alias], "DJANGO_SETTINGS_MODULE": SETTINGS}
    return {**os.environ, "PYTHONPATH": str(ROOT), **own, **more}


def python(alias: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start Python in the project."""
    options.setdefault("env", environment(alias))
    return subprocess.Popen([sys.executable, *arguments], text=True, cwd=ROOT, **options)


def manage(alias: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``manage.py`` to its end; returns what it wrote, both streams in one."""
    return subprocess.run(
        [sys.executable, MANAGE, *arguments],
        check=False,
        text=True,
        cwd=ROOT,
        env=environment(alias, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
