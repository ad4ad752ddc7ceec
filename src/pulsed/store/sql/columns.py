"""The columns of a job as statements name them, derived from the table of its fields."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any
from uuid import UUID

from pulsed.model.fields import CLAIM, NEW, POLICY, ROW, Kind, columns_of, fields_of
from pulsed.store.sql.statement import Row


def _selected(columns: dict[str, str]) -> dict[str, str]:
    """Return how columns are read. JSON comes as text, or some drivers would decode it."""
    return {name: f"{name}::text" if sql == "json" else name for name, sql in columns.items()}


# -- reading --------------------------------------------------------------------------------------

_READ = _selected(columns_of(ROW)) | {
    "updated_at": "coalesce(updated_at, submitted_at)",
    "crashes": "coalesce(crashes, 0)",
    "key_held": "key_held IS NOT NULL",
    "wait_job": "wait_job",
}
JOB_COLUMNS = ", ".join(_READ.values())

# -- inserting ------------------------------------------------------------------------------------

NEW_JOB = {name: "text" if sql == "json" else sql for name, sql in columns_of(NEW).items()}
"""The columns that a producer sets, and the types of their parameters. JSON goes in as text: a
caller's own connection may have a codec that would encode it again."""

NEW_JSON = tuple(name for name, sql in columns_of(NEW).items() if sql == "json")

NOT_STORED = tuple(field.name for field in fields_of(NEW) if not field.is_stored)
"""Fields without a column of their own."""

START = ("delay", "at")
"""Those of them that decide when the job may start."""

EXPIRY = ("expires", "expires_at")
"""What decides from when on it is not started any more."""

# -- claiming -------------------------------------------------------------------------------------

ASSIGNED = _selected(columns_of(CLAIM))
"""The columns of a claim's answer, and how each is selected."""

ASSIGNED_PLACES = {name: place for place, name in enumerate(ASSIGNED)}


def assigned_columns(*names: str) -> Callable[[Row], Any]:
    """Return a getter of columns of a claimed row, as the driver has decoded them."""
    return itemgetter(*(ASSIGNED_PLACES[name] for name in names))


ASSIGNED_IDS = tuple(name for name, sql in columns_of(CLAIM).items() if sql == "uuid")

LONG_COLUMNS = tuple(name for name, sql in columns_of(CLAIM).items() if sql == "json")
"""The columns of a claim's answer that may be large."""

_ENCODED_AS: dict[Kind, Any] = {
    Kind.UUID: UUID, Kind.INTEGER: int, Kind.INSTANT: int, Kind.SECONDS: int, Kind.FLAG: int
}  # fmt: skip
ASSIGNED_TYPES = tuple(_ENCODED_AS.get(field.kind, str) | None for field in fields_of(CLAIM))
"""The types of the columns ASSIGNED when encoded as JSON, in which an instant is a number."""

TOPIC = ", ".join(
    ["t_topic text", *(f"t_{name} {sql}" for name, sql in columns_of(POLICY).items())]
)
"""A topic, and the policy that a worker's handler declares for it."""


def filled_policy(topic: str) -> dict[str, str]:
    """Return the policy columns of a job, filled from its topic where the producer set none.

    ``topic`` is the prefix of the topic's columns. The columns of one field are filled together.
    """
    filled = {}
    for field in fields_of(POLICY):
        first, *others = field.columns
        filled[first] = f"coalesce({first}, {topic}_{first})"
        for name in others:
            filled[name] = f"CASE WHEN {first} IS NULL THEN {topic}_{name} ELSE {name} END"
    return filled


FILLED_PLACES = {
    f"t_{name}": ASSIGNED_PLACES[name]
    for field in fields_of(POLICY)
    if CLAIM in field.use
    for name in field.columns
}
"""The columns of a topic's policy, each with its position in a claim's answer."""
