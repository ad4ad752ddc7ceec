"""The dashboard: an ASGI application that shows and steers the jobs of an app.

``pulsed ui``, ``pulsed dev`` and ``pulsed server --ui`` serve it; ``dashboard(app)`` mounts it into
an application of yours.
"""

from __future__ import annotations

from pulsed.errors import MissingDriver
from pulsed.extras import install_command

try:
    import jinja2  # noqa: F401 - only whether it is there
    import starlette  # noqa: F401
except ImportError as error:
    raise MissingDriver(
        f"The dashboard needs {error.name}, which is not installed: {install_command('ui')}"
    ) from error

from pulsed.web.access import Basic, Delegated, Local, Role, Tokens, Visitor
from pulsed.web.dashboard import dashboard
from pulsed.web.redaction import Redaction

__all__ = [
    "Basic",
    "Delegated",
    "Local",
    "Redaction",
    "Role",
    "Tokens",
    "Visitor",
    "dashboard",
]
