"""Limits: what they allow, what they have in use, and changing that at run time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from starlette.responses import Response

from pulsed.engine.limits import KeyState, LimitState
from pulsed.model.control import ControlScope, described
from pulsed.model.control_text import texts_of
from pulsed.web.control_form import OF_LIMITS, whose
from pulsed.web.pages.control_acts import ControlActs
from pulsed.web.render import term
from pulsed.web.site import PageCall

KEYS = 50
"""Keys that a limit's page shows, the busiest first."""

KEPT = 2.0
"""Seconds for which the list is shared by all tabs."""


class LimitLine(NamedTuple):
    """A limit as the page shows it."""

    limit: LimitState
    numbers: str
    most: int | None
    """The most jobs of each of its keys that run at the same time."""


async def show(call: PageCall) -> Response:
    """Show all limits."""
    found, _ = await asyncio.gather(
        call.site.shared.get("limits", call.app.limits.alist, seconds=KEPT), call.site.summary()
    )
    return await call.page(
        "limits.html",
        lines=[_line(limit) for limit in found],
        link=lambda name: call.url(acts.address(name)),
    )


async def show_one(call: PageCall) -> Response:
    """Show a limit: who holds its keys, how many wait, and when the next may start."""
    name = acts.name(call)
    controls = call.app.store.controls
    limit, control, now, _ = await asyncio.gather(
        call.site.shared.get(("limit", name), lambda: call.app.limits.aget(name, keys=KEYS)),
        call.site.shared.get(
            ("control of limit", name), lambda: controls.get(ControlScope.LIMIT, name)
        ),
        call.site.now(),
        call.site.summary(),
    )
    return await call.page(
        "limit.html",
        line=_line(limit),
        limit=limit,
        control=control,
        whose=whose(control),
        keys=limit.keys,
        sees=call.visitor.may_see_payloads,
        label=_labels(limit.keys, sees=call.visitor.may_see_payloads).__getitem__,
        is_cut=len(limit.keys) == KEYS,
        wait=lambda key: _wait(key, now),
        jobs_of=lambda key: call.url("/jobs", q=term("limit", _key(name, key))),
        fields=OF_LIMITS,
        values=texts_of(control.numbers),
        base=acts.address(name),
        now=now,
    )


def _labels(keys: Sequence[KeyState], *, sees: bool) -> dict[KeyState, str]:
    """Return what keys are called: values are from payloads, which not every visitor may see."""
    return {key: key.value or "" if sees else f"key {n}" for n, key in enumerate(keys, 1)}


def _line(limit: LimitState) -> LimitLine:
    most = 1 if limit.numbers.sequential else limit.numbers.running
    return LimitLine(limit, described(limit.numbers), most)


def _key(name: str, key: KeyState) -> str:
    return name if key.value is None else f"{name},{key.value}"


def _wait(key: KeyState, now: datetime) -> float | None:
    """Return the whole seconds until a key's rate permits the next start."""
    if key.next_start is None:
        return None
    return float(math.ceil(max(0.0, (key.next_start - now).total_seconds())))


acts = ControlActs(
    "limit",
    lambda app: app.limits,
    lambda app, name, **numbers: app.limits.aoverride(name, **numbers),
    OF_LIMITS,
)
