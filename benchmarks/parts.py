"""A run, part by part: a failure in one affects neither the others nor the saved results."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime

from benchmarks import machine
from benchmarks.databases import Server, serving
from benchmarks.results import Results
from benchmarks.saved import Machine, Part, Saved
from benchmarks.scale import Scale
from benchmarks.workloads import WORKLOADS


def measure(
    kept: Saved,
    engines: tuple[str, ...],
    workloads: tuple[str, ...],
    scale: Scale,
    here: Machine,
    *,
    missing_only: bool,
    after_each: Callable[[Saved], None],
) -> list[str]:
    """Measure each workload on each engine; returns those that failed."""
    failed: list[str] = []
    for engine in engines:
        parts = [planned(name, engine, scale, here) for name in workloads]
        parts = [part for part in parts if part.engine in WORKLOADS[part.workload].engines]
        parts = [part for part in parts if not (missing_only and kept.has(part))]
        if not parts:
            continue
        with serving(engine) as server:
            for part in parts:
                if take(part, server, kept, scale):
                    after_each(kept)
                else:
                    failed.append(f"{part.workload} on {engine}")
    return failed


def planned(workload: str, engine: str, scale: Scale, here: Machine) -> Part:
    """Describe a part as it would be saved."""
    if not WORKLOADS[workload].beside_peers:
        scale = dataclasses.replace(scale, peers=())
    sizes = json.loads(json.dumps(dataclasses.asdict(scale)))  # as it is read again
    return Part(workload, engine, "", 0, machine.code(), sizes, here)


def take(part: Part, server: Server, kept: Saved, scale: Scale) -> bool:
    """Measure a part and add it to the saved results; an error leaves those unchanged."""
    results = Results(datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    began = time.monotonic()
    try:
        WORKLOADS[part.workload].measure(server, results, scale)
    except Exception:  # noqa: BLE001 - shown, and the others may work
        traceback.print_exc()
        return False
    seconds = round(time.monotonic() - began, 1)
    print(f"  {part.workload} on {part.engine} took {seconds:g} s", file=sys.stderr, flush=True)
    if any(results):
        kept.put(dataclasses.replace(part, taken=results.run, seconds=seconds), results)
    return True
