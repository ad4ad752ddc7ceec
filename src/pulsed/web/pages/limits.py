"""Limits: what they allow, what they have in use, and changing that at run time."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from typing import NamedTuple

from starlette.responses import Response

from pulsed.engine.limits import KeyState, LimitState
from pulsed.handler.options import checked_name
from pulsed.model.control import Control, ControlScope, described
from pulsed.model.control_text import texts_of
from pulsed.web.control_form import OF_LIMITS, typed_in, whose
from pulsed.web.render import path, term
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
        link=lambda name: call.url(_address(name)),
    )


async def show_one(call: PageCall) -> Response:
    """Show a limit: who holds its keys, how many wait, and when the next may start."""
    name = _name(call)
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
        is_cut=len(limit.keys) == KEYS,
        wait=lambda key: _wait(key, now),
        jobs_of=lambda key: call.url("/jobs", q=term("limit", _key(name, key))),
        fields=OF_LIMITS,
        values=texts_of(control.numbers),
        base=_address(name),
        now=now,
    )


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


# -- acts -----------------------------------------------------------------------------------------


async def pause(call: PageCall) -> Response:
    """Start no more of its jobs."""
    name = _name(call)
    await call.app.limits.apause(name)
    return _done(call, f"The limit {name} is paused: what runs goes on, and nothing else starts.")


async def resume(call: PageCall) -> Response:
    """Start its jobs again."""
    name = _name(call)
    await call.app.limits.aresume(name)
    return _done(call, f"The limit {name} starts jobs again.")


async def override(call: PageCall) -> Response:
    """Use an operator's numbers instead of the declared ones."""
    control = await call.app.limits.aoverride(_name(call), **typed_in(call, OF_LIMITS))
    return _done(call, _changed(control))


async def clear(call: PageCall) -> Response:
    """Use the declared numbers again."""
    return _done(call, _changed(await call.app.limits.aclear(_name(call))))


def _changed(control: Control) -> str:
    return f"The limit {control.name} has {described(control.numbers)} now."


def _done(call: PageCall, text: str) -> Response:
    return call.done(text, call.back(_address(_name(call))))


def _name(call: PageCall) -> str:
    return checked_name("name of the limit", call.path("name"))


def _address(name: str) -> str:
    return f"/limits/{path(name)}"
