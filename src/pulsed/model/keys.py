"""Keys: at most one job of a topic holds a key."""

from __future__ import annotations

from enum import StrEnum

UNTIL_START, UNTIL_END = "start", "end"
"""How long a job holds its key: until its first run starts, or until it ends. The third choice is a
number of seconds from its submission, as text."""


class OnDuplicate(StrEnum):
    """What an enqueue does if another job holds the key."""

    RETURN = "return"
    """Returns that job, and stores nothing."""
    RAISE = "raise"
    """Raises ``DuplicateKey``, and stores nothing."""
    REPLACE = "replace"
    """Replaces payload, options and time of that job, if it has not started; else it raises."""


def held_for(key_for: str | None, on_duplicate: str | None) -> str:
    """Return how long a job holds its key if that was not said.

    A job whose arguments may still be replaced holds its key until it starts: one that is enqueued
    while it runs is a new job, and nothing is lost.
    """
    if key_for is not None:
        return key_for
    return UNTIL_START if on_duplicate == OnDuplicate.REPLACE else UNTIL_END
