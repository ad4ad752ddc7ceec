"""The settings of a server session: its name, its timeouts, and planner settings for stable plans.

A queue's table changes faster than its statistics, so for the hot statements the planner is left
one choice: the index. Without this, a batch of settles was planned as a hash join over a sequential
scan.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from pulsed.errors import TooManyConnections
from pulsed.store.log_throttle import Throttle
from pulsed.store.postgres.address import PostgresOptions
from pulsed.store.postgres.confirm import COMMIT, COMMIT_WRITTEN
from pulsed.store.postgres.errors import is_crowded
from pulsed.store.verbs.script import Verb, VerbKind

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
ROLLBACK = "ROLLBACK"

MIGRATION_TIMEOUT = 86_400.0
"""Seconds that a migration may wait for another one."""

URGENT_WITHIN = 5.0
"""Timeout in seconds of one attempt of an urgent verb: a dead connection must not cost a lease."""

LOCK_WITHIN = 2.0
"""Lock timeout in seconds for ``short_lock_wait``: far longer than pulsed's own transactions."""

URGENT_CONNECTIONS = 4
"""For one event loop. Only a server runs several urgent verbs at once, and each is short."""

TRIES_IN_TIME = 3
"""Attempts of an urgent verb that must fit into its caller's time limit."""
SHORTEST_TRY = 0.5
"""Least seconds of one attempt: less could not tell a slow server from a dead one."""

KEEP_IDLE = 30.0
"""Seconds that a pool keeps more than one idle connection, for the next burst."""

REFUSALS_QUIET = 60.0
"""Seconds between two log lines about refused connections, in one process."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Backoff in seconds after the server had no connection left, doubled each time."""

IDLE_FOR_TOO_LONG = 300.0
"""Seconds after which a firewall may have forgotten a quiet connection."""

_ONE_PLAN = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
}

_ADVICE = "Raise its max_connections, or lower --max-connections of pulsed's processes."


class Lane(Enum):
    """The kind of work a connection is reserved for, so that no kind waits for another's."""

    __hash__ = object.__hash__  # an enum's own is written in Python

    WORK = "work"
    CLAIM = "claim"
    SETTLE = "settle"
    """Has a short lock timeout: one locked row must not delay the reports of all other jobs."""
    URGENT = "urgent"
    """For heartbeats, which must not queue behind work that waits for a lock."""
    SYNC = "sync"
    LISTEN = "listen"
    STEP = "step"
    """For the statements of a user's own steps."""
    CHECK = "check"
    """Checks whether a host accepts connections."""


def lane_of(verb: Verb[Any]) -> Lane:
    """Return an async verb's lane."""
    if verb.urgent:
        return Lane.URGENT
    if verb.short_lock_wait:
        return Lane.SETTLE
    return Lane.CLAIM if verb.claim_lane else Lane.WORK


log = logging.getLogger("pulsed.store")

_refusals = Throttle(REFUSALS_QUIET)


class Crowding:
    """Jittered exponential backoff for connecting to a server that has no connection left.

    A fleet that retries without backoff keeps a full server busy with refusals. So after a refusal
    a process opens no connection for some seconds, longer each time and with jitter. Heartbeats
    are exempt: the backoff may be longer than a lease, and they need only one connection.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, refusals: Throttle = _refusals
    ) -> None:
        self._clock = clock
        self._refusals = refusals
        self._pause = 0.0
        self._until = -math.inf

    def check(self) -> None:
        """Raise TooManyConnections during the backoff."""
        left = self._until - self._clock()
        if left > 0:
            raise TooManyConnections(
                "The PostgreSQL server has no connection left: none is opened for another "
                f"{left:.1f} s. {_ADVICE}"
            )

    def note(self, error: BaseException | None) -> None:
        """Record how an attempt to connect ended; None: it succeeded."""
        if error is None:
            self._pause = 0.0
        elif is_crowded(error):
            self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
            pause = self._pause * random.uniform(0.5, 1.5)  # noqa: S311
            self._until = self._clock() + pause
            self._tell(pause)

    def _tell(self, pause: float) -> None:
        if (kept_back := self._refusals.add()) is None:
            return
        more = f" ({kept_back:,} more refusals since the last line)" if kept_back else ""
        log.warning(
            "the PostgreSQL server has no connection left; opening none for %.1f s. %s%s",
            pause,
            _ADVICE,
            more,
        )


class Sessions:
    """The settings of a store's sessions, and the statements that open and close transactions."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self.crowding = Crowding()
        self._openings: dict[tuple[Lane, VerbKind, bool, float | None], str | None] = {}
        self.answer_within = options.statement_timeout + 5
        """The client's timeout in seconds, for a server that does not even time out."""

    def sizes(self) -> dict[Lane, int]:
        """Return the connection limit of each lane of an event loop."""
        size = self._options.size
        return {
            Lane.WORK: size,
            Lane.SETTLE: size,
            Lane.CLAIM: 2,
            Lane.URGENT: URGENT_CONNECTIONS,
            Lane.STEP: size,
        }

    def at_connect(self, lane: Lane) -> dict[str, str]:
        """Return the settings of a new session; behind a transaction pooler, only its name."""
        name = {"application_name": f"{self._options.application_name}/{lane.value}"}
        if lane in (Lane.LISTEN, Lane.STEP, Lane.CHECK) or not self._options.prepared_statements:
            return name
        return name | {"default_transaction_isolation": "read committed"} | self._settings(lane)

    def driver_timeout(self, lane: Lane) -> float | None:
        """Return asyncpg's timeout of each statement; None where a pool has deadlines itself."""
        has_deadlines = lane in (Lane.WORK, Lane.CLAIM, Lane.SETTLE)
        return None if has_deadlines else self.answer_within

    def opening(self, verb: Verb[Any], session: Lane | None = None) -> str | None:
        """Return the SQL that begins the verb's transaction; None if each statement autocommits.

        ``session`` is the lane of the connection, if that is not the verb's own.
        """
        if verb.kind is not VerbKind.TRANSACTION and self._options.prepared_statements:
            return None
        migrating = verb.name == "migrate"
        hasty = verb.short_lock_wait and verb.kind is VerbKind.TRANSACTION and session is Lane.SYNC
        lock_wait = LOCK_WITHIN if hasty else verb.lock_wait
        key = (lane_of(verb), verb.kind, migrating, lock_wait)
        if key not in self._openings:
            self._openings[key] = self._make_opening(*key)
        return self._openings[key]

    def closing(self, verb: Verb[Any]) -> str:
        """Return the SQL that commits a verb's transaction."""
        acknowledges = verb.kind is VerbKind.TRANSACTION and not verb.looks_for_work
        return COMMIT_WRITTEN if acknowledges else COMMIT

    def client_timeout(self, verb: Verb[Any]) -> float:
        """Return the client's timeout for a verb in seconds."""
        if verb.name == "migrate":
            return MIGRATION_TIMEOUT
        most = self.answer_within
        if not verb.urgent:
            return most
        if verb.within is not None:
            most = min(most, max(SHORTEST_TRY, verb.within / TRIES_IN_TIME))
        return min(most, URGENT_WITHIN)

    def _make_opening(
        self,
        lane: Lane,
        kind: VerbKind,
        migrating: bool,  # noqa: FBT001
        lock_wait: float | None,
    ) -> str | None:
        local: dict[str, str] = {}
        if not self._options.prepared_statements:
            local |= self._settings(lane)
        if lock_wait is not None:
            local["lock_timeout"] = _milliseconds(lock_wait)
        if migrating:  # it may wait for another migration, without a limit
            local |= {"statement_timeout": "0", "lock_timeout": "0"}
        if not local and kind is not VerbKind.TRANSACTION:
            return None
        return "; ".join(
            [BEGIN, *(f"SET LOCAL {name} = '{value}'" for name, value in local.items())]
        )

    def _settings(self, lane: Lane) -> dict[str, str]:
        options = self._options
        settings = _ONE_PLAN | {
            "jit": "off",
            "timezone": "UTC",
            "statement_timeout": _milliseconds(options.statement_timeout),
            "idle_in_transaction_session_timeout": _milliseconds(
                options.idle_in_transaction_timeout
            ),
        }
        if lane is Lane.SETTLE:
            settings["lock_timeout"] = _milliseconds(LOCK_WITHIN)
        return settings


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
