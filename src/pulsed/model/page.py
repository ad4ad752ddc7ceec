"""What a search through jobs came to, and how far it went: no search walks a whole table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

from pulsed.model.job import Status

SEARCHED = 50_000
"""Jobs that one list or count looks at, where no index has just those that match."""

T = TypeVar("T")


class Page(list[T]):
    """Some jobs, newest first."""

    def __init__(
        self,
        jobs: Iterable[T] = (),
        *,
        next: UUID | None = None,  # noqa: A002 - what it is called where it is read
        is_cut: bool = False,
    ) -> None:
        super().__init__(jobs)
        self.next = next
        """Where the next page begins: its ``before``. None: there is none."""
        self.is_cut = is_cut
        """The search ended at its bound, with fewer jobs than were asked for: go on at ``next``."""


class Counts(dict[Status, int]):
    """Numbers of jobs by status; every status is a key."""

    def __init__(
        self, counted: Iterable[tuple[Status, int]] = (), at_least: Iterable[Status] = ()
    ) -> None:
        super().__init__(counted)
        self.at_least = frozenset(at_least)
        """Of these there may be more: counting ended at its bound."""
