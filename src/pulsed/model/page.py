"""Pages and counts of jobs, and how far their scan went: no scan covers a whole table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

from pulsed.model.job import JobFilter, Status

SEARCHED = 50_000
"""Jobs that one list or count scans, if no index covers its filter."""
AUDITED = 20_000
"""Of the newest jobs, how many the doctor checks for broken invariants."""

PARSED = 6_000
"""Jobs that it scans if it has to parse their payloads."""

T = TypeVar("T")


def bound_of(where: JobFilter, most: int = SEARCHED) -> int:
    """Return how many jobs a list or count with this filter scans, of ``most`` without payloads."""
    return min(PARSED, most) if where.payload else most


GROUPED_BY = ("topic", "queue", "status", "error")
"""What jobs can be counted by. Of an error, the part before the first colon."""
MOST_GROUPS = 1_000
LONGEST_ERROR_NAME = 100
"""Characters of an error that tell groups apart."""


class GroupedCounts(list[tuple[tuple[str | None, ...], int]]):
    """Numbers of jobs by some of their fields, the largest first."""

    def __init__(
        self,
        counted: Iterable[tuple[tuple[str | None, ...], int]] = (),
        *,
        by: Iterable[str] = (),
        is_cut: bool = False,
        is_short: bool = False,
    ) -> None:
        super().__init__(counted)
        self.by = tuple(by)
        """The fields that the values of each group are of."""
        self.is_cut = is_cut
        """Counting reached its limit: each number is a lower bound."""
        self.is_short = is_short
        """There are more groups than these."""


class Page(list[T]):
    """Some jobs, newest first."""

    def __init__(
        self,
        jobs: Iterable[T] = (),
        *,
        next: UUID | None = None,  # noqa: A002 - the name of the attribute
        is_cut: bool = False,
    ) -> None:
        super().__init__(jobs)
        self.next = next
        """The ``before`` of the next page; None if this is the last."""
        self.is_cut = is_cut
        """The scan reached its limit before the page was full: continue at ``next``."""


class Counts(dict[Status, int]):
    """Numbers of jobs by status; every status is a key."""

    def __init__(
        self,
        counted: Iterable[tuple[Status, int]] = (),
        at_least: Iterable[Status] = (),
        *,
        due: int = 0,
    ) -> None:
        super().__init__(counted)
        self.at_least = frozenset(at_least)
        """Statuses that may have more jobs: counting reached its limit."""
        self.due = due
        """Of the PENDING ones, those that are due. A lower bound if their number is one."""
