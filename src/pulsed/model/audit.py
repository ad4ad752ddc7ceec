"""The audit log: which operator did what to jobs, schedules and tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from pulsed.model.job import JobFilter, Status
from pulsed.wording import format_duration

LONGEST_NAME = 200
LONGEST_DETAIL = 500
LONGEST_LOG = 1_000
"""The most entries that one read returns."""
SHOWN_IDS = 5
"""Ids that an entry names; it counts the others."""
KEPT_SECONDS = 90 * 86_400.0
KEPT_ENTRIES = 100_000
"""Entries beyond this age or this number are removed, the oldest first."""


class Operator(msgspec.Struct, frozen=True):
    """Who acts on jobs or schedules from the outside."""

    actor: str
    """A user at a host; the name of a token when the act came through a server."""
    role: str = ""
    """The roles of that token; empty without a server."""
    claimed: str = ""
    """Who a server's caller claims to be, unverified."""
    detail: str = ""
    """What the act was about beyond the ids of its jobs, such as a filter."""


class AuditKey(NamedTuple):
    """The position of an entry in the log: several acts may have the same instant."""

    at: datetime
    id: UUID


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One act, as stored."""

    id: UUID
    at: datetime
    actor: str
    role: str
    claimed: str
    act: str
    """What was done: ``cancel jobs``, ``delete schedule``, ``revoke token`` and so on."""
    affected: int
    """How many jobs, schedules or tokens it changed."""
    detail: str

    @property
    def key(self) -> AuditKey:
        """Its position; pages continue before it."""
        return AuditKey(self.at, self.id)


def printable(text: str, most: int) -> str:
    """Return a text that can be stored and shown: one line of bounded length."""
    shown = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in shown)


def of_ids(ids: Collection[UUID]) -> str:
    """Return the ids of some of the jobs that an act was about, as text."""
    named = " ".join(map(str, islice(ids, SHOWN_IDS)))
    more = len(ids) - SHOWN_IDS
    return f"{named} and {more:,} more" if more > 0 else named


def of_filter(where: JobFilter) -> str:
    """Return the filter that selected the jobs of an act, as text."""
    given = {name: value for name, value in msgspec.structs.asdict(where).items() if value}
    return " ".join(f"{name}={_word(value)}" for name, value in given.items())


def of_ages(ages: Mapping[Status, float]) -> str:
    """Return the statuses and ages that a prune removed, as text."""
    return ", ".join(
        f"{status} older than {format_duration(seconds)}" for status, seconds in ages.items()
    )


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value.isoformat() if isinstance(value, datetime) else str(value)
