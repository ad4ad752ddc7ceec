"""What is measured of a soak at one moment, and over an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.tables import Query

TABLES = "relname LIKE 'pulse\\_%'"


def percentile(values: Iterable[float], percent: float) -> float:
    """Return a percentile by rank; not a number of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return math.nan


def descriptors(pid: int) -> float:
    """Return how many files and sockets a process has open."""
    return float(len(list(Path(f"/proc/{pid}/fd").iterdir())))


class Postgres:
    """PostgreSQL's own figures."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def log_bytes(self) -> float:
        """Return how much WAL was ever written."""
        return float(self._query("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])

    def state(self) -> dict[str, float]:
        (dead, size), *_ = self._query(
            "SELECT sum(n_dead_tup), sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables "
            f"WHERE {TABLES}"
        )
        return {"dead tuples": float(dead), "tables, MB": float(size) / 1e6}


class Sqlite:
    """What can be seen of a file."""

    def __init__(self, query: Query, path: Path) -> None:
        self._query = query
        self._path = path

    def log_bytes(self) -> float:
        """A log that is used again and again says nothing of what was written."""
        return math.nan

    def state(self) -> dict[str, float]:
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._query(f"PRAGMA {name}")[0][0] for name in names)
        log = self._path.with_name(self._path.name + "-wal")
        return {
            "tables, MB": (pages - free) * size / 1e6,
            "log, MB": log.stat().st_size / 1e6 if log.exists() else 0.0,
        }
