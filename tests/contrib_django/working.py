"""Running the project's jobs in this process."""

import asyncio
from collections.abc import Callable
from typing import Any

from pulsed.contrib.django import app
from tests.contrib_django.project import routing
from tests.support.workers import Working, until


def use(alias: str) -> None:
    """Have the project's jobs and models in this database."""
    app._database = routing.current[0] = alias
    app.note_configured()


def work(*results: Any) -> None:
    """Run a worker until these tasks have ended, and refresh them."""

    async def all_ended() -> bool:
        for each in results:
            await each.arefresh()
        return all(each.is_finished for each in results)

    work_until(all_ended)


def work_until(condition: Callable[[], Any]) -> None:
    """Run a worker until a condition holds."""

    async def main() -> None:
        async with app:
            working = Working(app.worker(poll=0.02, tick=3600))
            await until(condition)
            await working.stop()

    asyncio.run(main())
