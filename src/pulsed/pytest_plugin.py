"""Fixtures for pytest: your app in a sandbox of each test's own.

pytest loads this module wherever pulsed is installed, so it imports nothing else of pulsed before a
test asks for a fixture. The fixtures build on one another; override one in your ``conftest.py`` to
change what the others get.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pulsed.app import Pulse
    from pulsed.testing import Clock, Sandbox


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of pytest's configuration file."""
    parser.addini("pulsed_app", "your app as module:name, for the fixture pulsed_sandbox")
    parser.addini("pulsed_url", "the database of pulsed_sandbox", default="sqlite://")


@pytest.fixture
def pulsed_app(pytestconfig: pytest.Config) -> Pulse:
    """Your app: the one that ``pulsed_app`` in pytest's configuration names."""
    from pulsed.app import Pulse  # noqa: PLC0415 - only if a test asks for it

    module, _, name = str(pytestconfig.getini("pulsed_app")).partition(":")
    if not module or not name:
        raise pytest.UsageError(
            'Name your app in the configuration of pytest, as in pulsed_app = "shop.jobs:app", or '
            "override the fixture pulsed_app in conftest.py."
        )
    app = getattr(importlib.import_module(module), name, None)
    if not isinstance(app, Pulse):
        raise pytest.UsageError(f"pulsed_app: {module}:{name} is {app!r:.100}, not a Pulse app.")
    return app


@pytest.fixture
def pulsed_url(pytestconfig: pytest.Config) -> str:
    """The database of ``pulsed_sandbox``: SQLite in memory, unless the configuration says so."""
    return str(pytestconfig.getini("pulsed_url"))


@pytest.fixture
def pulsed_clock() -> Clock:
    """The clock of ``pulsed_sandbox``, which stands still until the test moves it."""
    from pulsed.testing import Clock  # noqa: PLC0415 - as above

    return Clock()


@pytest.fixture
def pulsed_sandbox(pulsed_app: Pulse, pulsed_url: str, pulsed_clock: Clock) -> Iterator[Sandbox]:
    """Your app on an empty database of this test's own, with a clock that the test moves."""
    from pulsed.testing import override  # noqa: PLC0415 - as above

    with override(pulsed_app, pulsed_url, clock=pulsed_clock) as sandbox:
        yield sandbox
