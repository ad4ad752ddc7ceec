"""``manage.py flush``, which also empties pulsed's tables.

They belong to no model. Without this, the jobs of one ``TransactionTestCase`` would still be there
in the next, and ``flush`` would leave what it says it removes.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush
from django.db import connections

from pulsed.contrib.django.current import project_app
from pulsed.contrib.django.tables import empty_tables

QUESTION = """This removes all data of the database {!r}: every row of your models, and every job,
schedule and token of pulsed. The tables stay.

Type 'yes' to continue, or 'no' to cancel: """


class Command(flush.Command):
    """Django's own command, and then the jobs."""

    def handle(self, **options: Any) -> None:
        """Empty all tables, once that is confirmed: Django's own handle does not tell."""
        alias = options["database"]
        if options["interactive"] and not self._is_confirmed(alias):
            self.stdout.write("Flush cancelled.")
            return
        super().handle(**{**options, "interactive": False})
        empty_tables(project_app(), alias)

    def _is_confirmed(self, alias: str) -> bool:
        name = connections[alias].settings_dict["NAME"]
        return input(QUESTION.format(name)).strip() == "yes"
