"""The system: the database, its size and settings, and what the doctor found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from starlette.responses import Response

from pulsed.engine.doctor.examine import examine
from pulsed.engine.doctor.finding import Finding, Severity
from pulsed.engine.overview import FINDINGS_KEPT
from pulsed.version import __version__
from pulsed.web.site import PageCall, Site

LABELS = {
    "engine": "engine",
    "database": "database",
    "server": "through",
    "schema": "schema version",
    "size": "size",
    "connections": "connections",
    "max_connections": "connections at most",
    "wake_up": "wake-up",
    "role": "user",
    "search_path_schema": "schema",
    "isolation": "isolation",
    "synchronous_commit": "synchronous commit",
    "autovacuum": "autovacuum",
    "synchronous": "synchronous",
    "journal": "journal",
    "file_system": "file system",
    "file_mode": "file mode",
}
"""Facts of ``store.check()`` that are shown, in this order."""
TABLE = "table:"
"""The beginning of the name of a fact about a table."""

SHAPES = {Severity.FAIL: "▲", Severity.WARN: "◔", Severity.OK: "●"}


class Examined(NamedTuple):
    """What was found, and when."""

    facts: Mapping[str, str]
    findings: list[Finding]
    at: datetime


async def examined(call: PageCall) -> Examined:
    """Return the findings of the doctor, at most half a minute old, for all tabs."""
    return await call.site.shared.get("doctor", lambda: _examine(call.site), seconds=FINDINGS_KEPT)


async def _examine(site: Site) -> Examined:
    store = site.app.store
    facts = await store.check()
    findings = await examine(store, site.app.retention, facts=facts, reads=site.reads)
    return Examined(facts, findings, await site.now())


async def show(call: PageCall) -> Response:
    """Show the database and the doctor's findings, the worst first."""
    found, _ = await asyncio.gather(examined(call), call.site.summary())
    levels = [(level, [one for one in found.findings if one.level is level]) for level in SHAPES]
    facts = found.facts
    tables = {name.removeprefix(TABLE): facts[name] for name in facts if name.startswith(TABLE)}
    return await call.page(
        "system.html",
        levels=[(level, findings) for level, findings in levels if findings],
        shapes=SHAPES,
        titles={
            Severity.FAIL: "Broken",
            Severity.WARN: "Needs a look",
            Severity.OK: "Well",
        },
        facts=[(label, facts[name]) for name, label in LABELS.items() if facts.get(name)],
        tables=tables,
        version=__version__,
        retention=call.app.retention,
        at=found.at,
    )
