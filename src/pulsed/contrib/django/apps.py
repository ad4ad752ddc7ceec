"""The Django app ``pulsed``: tables with ``migrate``, system checks, commands."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate

from pulsed.contrib.django.connection_source import DjangoConnections
from pulsed.contrib.django.current import project_app
from pulsed.contrib.django.setup_checks import check_setup
from pulsed.contrib.django.tables import make_tables
from pulsed.store.connections.sources import add_source


class PulsedConfig(AppConfig):
    """What ``"pulsed.contrib.django"`` in ``INSTALLED_APPS`` stands for."""

    name = "pulsed.contrib.django"
    label = "pulsed"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Make the project's app, and have ``migrate`` and ``check`` know it."""
        app = project_app()

        def after_migrate(*, using: str, verbosity: int = 0, **_: Any) -> None:
            make_tables(app, using, verbosity)

        # Strong, because nothing else keeps the function.
        post_migrate.connect(after_migrate, sender=self, weak=False, dispatch_uid="pulsed")
        add_source(DjangoConnections())
        checks.register(check_setup, checks.Tags.database)
