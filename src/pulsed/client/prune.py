"""Which finished jobs a manual prune removes."""

from __future__ import annotations

from datetime import timedelta

from pulsed.client.filter import StatusFilter, checked_filter
from pulsed.errors import InvalidOption
from pulsed.model.job import Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.retention import Retention, checked_age

UNLESS_NAMED = (Status.SUCCEEDED, Status.CANCELLED)
"""The statuses that an age alone selects: you have to name dead letters to remove them."""


def ages_for(
    retention: Retention,
    *,
    older_than: timedelta | float | None = None,
    status: StatusFilter | None = None,
) -> dict[Status, float]:
    """Return the seconds after which jobs of a status are too old; others are left alone."""
    named = checked_filter({"status": status}).status
    if wrong := [each for each in named if each not in TERMINAL]:
        raise InvalidOption(
            f"Jobs that are {', '.join(wrong)} have not ended and cannot be pruned; only "
            f"{', '.join(TERMINAL)} can."
        )
    age = checked_age("older_than", older_than)
    if age is not None:
        return dict.fromkeys(named or UNLESS_NAMED, age)
    return {each: kept for each, kept in retention.ages.items() if not named or each in named}
