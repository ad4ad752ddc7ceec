"""Controls over any SQL engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pulsed.model.audit import Operator
from pulsed.model.control import Control, ControlKey, ControlScope, Numbers, described
from pulsed.model.limit import LimitUse
from pulsed.store.blocking import pause
from pulsed.store.controls import CONTROL_PAGE, ControlStore
from pulsed.store.verbs import controls, limit_use, reads
from pulsed.store.verbs.audit import ActResult
from pulsed.store.verbs.controls import Changed
from pulsed.store.verbs.script import Verb

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore


log = logging.getLogger("pulsed.store")

CHECK_EVERY = 0.003
"""Seconds between two checks whether claims are still in flight; most take less."""
LONGEST_CLAIM = 10.0
"""Seconds after which a claim in flight is not waited for any more: its session is stuck."""


class SqlControls(ControlStore):
    """The controls of a store made of verbs."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def get(self, scope: ControlScope, name: str) -> Control:
        return await self._store.run(controls.get(self._store.engine, scope, name))

    async def list_page(
        self,
        scope: ControlScope | None = None,
        *,
        limit: int = CONTROL_PAGE,
        after: ControlKey | None = None,
    ) -> list[Control]:
        return await self._store.run(
            controls.list_controls(self._store.engine, scope, limit, after)
        )

    async def pause(self, scope: ControlScope, name: str, *, by: Operator | None = None) -> Control:
        key = ControlKey(scope, name)
        return await self._act(controls.pause(self._store.engine, key, by), key, by, "pause")

    async def resume(
        self, scope: ControlScope, name: str, *, by: Operator | None = None
    ) -> Control:
        key = ControlKey(scope, name)
        return await self._act(controls.resume(self._store.engine, key), key, by, "resume")

    async def override(
        self,
        scope: ControlScope,
        name: str,
        numbers: Numbers,
        *,
        fields: Collection[str] | None = None,
        by: Operator | None = None,
    ) -> Control:
        key = ControlKey(scope, name)
        verb = controls.override(self._store.engine, key, numbers, fields)
        return await self._act(verb, key, by, "limit")

    async def clear(self, scope: ControlScope, name: str, *, by: Operator | None = None) -> Control:
        key = ControlKey(scope, name)
        return await self._act(controls.clear(self._store.engine, key), key, by, "clear")

    async def declare(self, scope: ControlScope, declared: Mapping[str, Numbers]) -> dict[str, str]:
        if not declared:
            return {}
        effects = await self._store.run(controls.declare(self._store.engine, scope, declared))
        for name, effect in effects.items():
            if effect == "changed":
                await self._wake(ControlKey(scope, name))
        if "changed" in effects.values():
            await self._outlast_claims()
        return effects

    async def limit_use(self, name: str, *, keys: int = 0) -> LimitUse:
        return await self._store.run(limit_use.limit_use(self._store.engine, name, keys))

    async def rates(self, scope: ControlScope, keys: Sequence[str]) -> dict[str, datetime]:
        return await self._store.run(controls.rates(self._store.engine, scope, keys))

    async def _act(
        self, verb: Verb[Changed], key: ControlKey, by: Operator | None, act: str
    ) -> Control:
        def done(changed: Changed) -> ActResult:
            numbers = described(changed.control.numbers)
            detail = f"{key.name}: {numbers}" if act in ("limit", "clear") else key.name
            return ActResult(int(changed.is_new), detail)

        changed = await self._store.act(verb, by, f"{act} {key.scope}", done)
        if not changed.control.is_neutral:  # also if another process has just done the same
            await self._outlast_claims()
        await self._wake(key)
        return changed.control

    async def _outlast_claims(self) -> None:
        """Wait until the claims have ended that may not have seen what was just stored."""
        left = await self._store.run(controls.claims_in_flight(self._store.engine))
        give_up_at = time.monotonic() + LONGEST_CLAIM
        while left and time.monotonic() < give_up_at:
            await pause(CHECK_EVERY)
            found = await self._store.run(controls.claims_in_flight(self._store.engine))
            left &= found
        if left:
            log.warning(
                "a claim has been in flight for %g s: it may still start jobs that it found before",
                LONGEST_CLAIM,
            )

    async def _wake(self, key: ControlKey) -> None:
        """Notify the workers of what was changed: they may start jobs now, or have to learn of it.

        Which queues have jobs of a topic or a limit is not known, so all with jobs are notified.
        """
        if key.scope is ControlScope.QUEUE:
            await self._store.hint_some({key.name})
        else:
            queues = await self._store.run(reads.busy_queues(self._store.engine))
            await self._store.hint_some(queues)
