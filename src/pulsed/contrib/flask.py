"""pulsed in Flask: an extension whose jobs run inside of the application's context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask, current_app, has_app_context

from pulsed.app import Pulse
from pulsed.errors import ConfigError

EXTENSION = "pulsed"
"""Its name in ``flask_app.extensions``."""
URL_SETTING = "PULSED_URL"


class FlaskPulse(Pulse):
    """A ``Pulse`` for Flask. Make it in a module, and give it the application later.

    ``init_app`` takes the database's URL from ``PULSED_URL`` of the configuration, unless you have
    given one. The application's context is pushed around each run: ``current_app``, ``g`` and
    extensions such as Flask-SQLAlchemy work as in a request, and are torn down after it.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._flask: Flask | None = None
        self.around(self._inside_of_the_application)

    def init_app(self, flask_app: Flask) -> None:
        """Belong to an application: to its configuration, and to its context."""
        if self._flask not in (None, flask_app):
            raise ConfigError(
                "This FlaskPulse belongs to another application already. Make one for each "
                "application, or one application for each process."
            )
        url = flask_app.config.get(URL_SETTING)
        if self._url is None and url is not None:
            self.url = url
        self._flask = flask_app
        flask_app.extensions[EXTENSION] = self

    @contextmanager
    def _inside_of_the_application(self, _: Any) -> Iterator[None]:
        if self._flask is None:
            raise ConfigError(
                "This FlaskPulse has no application, so its jobs have no context: call "
                "init_app(flask_app) in the module that the worker imports."
            )
        with self._flask.app_context():
            yield


def current_pulse() -> FlaskPulse:
    """Return the extension of the application that answers the current request."""
    found = current_app.extensions.get(EXTENSION) if has_app_context() else None
    if isinstance(found, FlaskPulse):
        return found
    raise ConfigError(
        "There is no FlaskPulse here. Call init_app(flask_app) first, and use it inside of a "
        "request or of `with flask_app.app_context():`."
    )
