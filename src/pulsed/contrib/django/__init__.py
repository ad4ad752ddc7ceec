"""pulsed in a Django project: jobs in the project's own database, on its own connections.

Add ``"pulsed.contrib.django"`` to ``INSTALLED_APPS``. ``app`` is the project's ``Pulse``, made from
the settings at first access, so this package can be imported before they are configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsed.contrib.django.project import ProjectPulse

    app: ProjectPulse

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pulsed.contrib.django.project import app  # noqa: PLC0415 - reads the settings

    globals()["app"] = app
    return app
