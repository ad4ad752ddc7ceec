"""``manage.py flush``, which also empties pulsed's tables.

They belong to no model. Without this, the jobs of one ``TransactionTestCase`` would still be there
in the next, and ``flush`` would leave what it says it removes.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush

from pulsed.contrib.django.tables import empty_tables


class Command(flush.Command):
    """Django's own command, and then the jobs."""

    def handle(self, **options: Any) -> None:
        """Empty all tables."""
        from pulsed.contrib.django import app  # noqa: PLC0415 - reads the settings

        super().handle(**options)
        empty_tables(app, options["database"])
