"""The behaviour of running jobs once more, now with PostgreSQL behind a server.

The suite runs over a server with SQLite behind it. What a worker asks for is all that PostgreSQL
does in another way: claiming, beating, settling, fencing, recovering.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.backends import Backend, postgres_backend, served
from tests.support.clock import Clock
from tests.test_store_beat import *  # noqa: F403
from tests.test_store_claim import *  # noqa: F403
from tests.test_store_fencing import *  # noqa: F403
from tests.test_store_settle import *  # noqa: F403
from tests.test_store_watchdog import *  # noqa: F403


@pytest.fixture
def backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """An empty PostgreSQL behind a server."""
    embedded = request.node.get_closest_marker("embedded")
    if embedded is not None:
        pytest.skip(embedded.args[0])
    with postgres_backend(request, clock) as behind, served(behind) as backend:
        yield backend
