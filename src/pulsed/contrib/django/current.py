"""The project's app, for modules that are imported before the settings can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsed.contrib.django.project import ProjectPulse


def project_app() -> ProjectPulse:
    """Return the app of this project; the first call makes it from the settings."""
    from pulsed.contrib.django.project import app  # noqa: PLC0415 - reads the settings

    return app
