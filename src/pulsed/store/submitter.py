"""Where new jobs go: a store, or the caller's own transaction, and why that one is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pulsed.errors import ConfigError
from pulsed.model.job import NewJob
from pulsed.store.results import Submitted


class Submitter(ABC):
    """Where new jobs go."""

    @abstractmethod
    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        """Insert jobs, skipping ids that already exist; says which of them are new."""


def outside_transaction(begin: str) -> ConfigError:
    """Return the error for a caller's connection outside of a transaction."""
    return ConfigError(
        "using(conn=...) needs a connection that is in a transaction. This one commits every "
        f"statement by itself, so the job would survive your rollback. Begin one first: {begin}. "
        "Nothing was stored."
    )


def another_database(theirs: str, ours: str) -> ConfigError:
    """Return the error for a caller's connection to another database than the app's."""
    return ConfigError(
        f"using(conn=...) needs a connection to the app's database. This one is {theirs}, and the "
        f"app has {ours}: its workers would never see the job. Pass a connection to the app's "
        "database, or enqueue after your commit, without conn=. Nothing was stored."
    )
