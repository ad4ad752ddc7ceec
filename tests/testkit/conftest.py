"""An app whose own database must stay untouched, and a sandbox of each kind for it."""

from collections.abc import Iterator

import pytest

from pulsed import Pulse, testing
from pulsed.testing import Clock, Sandbox
from tests.support.sandboxes import START


@pytest.fixture
def app() -> Pulse:
    return Pulse("sqlite:////no/such/folder/jobs.db")


@pytest.fixture(params=["sqlite", "postgres"])
def sandbox_url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "sqlite://"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def sandbox(app: Pulse, sandbox_url: str) -> Iterator[Sandbox]:
    with testing.override(app, sandbox_url, clock=Clock(START)) as sandbox:
        yield sandbox
