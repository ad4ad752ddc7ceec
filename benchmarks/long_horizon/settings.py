"""What the harness asks for, by environment variables of its own names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the adapter."""

    url: str
    mode: str = "fixed"
    """``fixed``: so many jobs a second; ``depth-target``: as many as keep the queue so long."""
    rate: float = 100.0
    depth: int = 1_000
    batch: int = 128
    """Jobs in one call of ``aenqueue_many`` at most."""
    pause: float = 0.025
    """Seconds between two calls."""
    workers: int = 32
    """Jobs that run at once."""
    payload_bytes: int = 256
    work: float = 0.001
    """Seconds that each job takes."""
    sample_every: float = 5.0

    @classmethod
    def from_environment(cls, given: Mapping[str, str] = os.environ) -> Self:
        """Read the settings; what is not given has the harness's default."""

        def number(name: str, default: float) -> float:
            return float(given.get(name, default))

        return cls(
            url=given["DATABASE_URL"].replace("postgres://", "postgresql://", 1),
            mode=given.get("PRODUCER_MODE", cls.mode),
            rate=number("PRODUCER_RATE", cls.rate),
            depth=int(number("TARGET_DEPTH", cls.depth)),
            batch=int(number("PRODUCER_BATCH_MAX", cls.batch)),
            pause=number("PRODUCER_BATCH_MS", cls.pause * 1000) / 1000,
            workers=int(number("WORKER_COUNT", cls.workers)),
            payload_bytes=int(number("JOB_PAYLOAD_BYTES", cls.payload_bytes)),
            work=number("JOB_WORK_MS", cls.work * 1000) / 1000,
            sample_every=number("SAMPLE_EVERY_S", cls.sample_every),
        )
