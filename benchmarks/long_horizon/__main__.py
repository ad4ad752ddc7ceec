"""``python -m benchmarks.long_horizon``: the process that the harness starts."""

from __future__ import annotations

import asyncio

from benchmarks.long_horizon.adapter import Adapter
from benchmarks.long_horizon.settings import Settings

if __name__ == "__main__":
    asyncio.run(Adapter(Settings.from_environment()).run())
