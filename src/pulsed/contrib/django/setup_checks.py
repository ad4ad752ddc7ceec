"""System checks: what is wrong with the settings, before a job is lost to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Warning  # noqa: A004 - Django's name for it
from django.db import connections

from pulsed.contrib.django.current import project_app
from pulsed.contrib.django.database_url import SQLITE, is_in_memory


def check_setup(**_given: Any) -> Sequence[CheckMessage]:
    """Return what is wrong with the database of the project's jobs."""
    app = project_app()
    if (alias := app.database) is None:
        return []
    connection = connections[alias]
    if connection.vendor != SQLITE or is_in_memory(connection.settings_dict):
        return []
    return _check_sqlite(alias, connection.settings_dict.get("OPTIONS", {}))


def _check_sqlite(alias: str, options: dict[str, Any]) -> list[CheckMessage]:
    if str(options.get("transaction_mode", "")).upper() in ("IMMEDIATE", "EXCLUSIVE"):
        return []
    return [
        Warning(
            f"Transactions of the SQLite database {alias!r} are deferred. One that reads before it "
            "writes fails with 'database is locked' as soon as a worker writes meanwhile.",
            hint=f"DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}",
            id="pulsed.W001",
        )
    ]
