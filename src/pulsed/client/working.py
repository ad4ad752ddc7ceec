"""Running workers of an app: their options, checked, and the loop of a process that is one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from pulsed.engine.process import event_loop
from pulsed.engine.worker.options import WorkerOptions, WorkerSettings
from pulsed.engine.worker.worker import Exit, Worker
from pulsed.handler.options import checked_name
from pulsed.model.retention import Retention, checked_retention

log = logging.getLogger("pulsed.app")


def worker_options(settings: WorkerSettings, retention: Retention, *, stats: bool) -> WorkerOptions:
    """Return the options of a worker: those given, else the app's, else the defaults."""
    if isinstance(queue := settings.get("queues"), str):
        settings["queues"] = [queue]
    for name in settings.get("queues") or ():
        checked_name("queue", name)
    settings["retention"] = checked_retention(settings.get("retention") or retention)
    settings.setdefault("stats", stats)
    return WorkerOptions(**settings)


def run_until_signal(
    app: AbstractAsyncContextManager[Any], make_worker: Callable[[], Worker]
) -> Exit:
    """Run a worker in an event loop of its own, and close the app after it."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread:
        log.info("this worker is not in the main thread, so signals do not stop it")

    async def main() -> Exit:
        async with app:
            return await make_worker().run(handle_signals=is_main_thread)

    return event_loop.run(main())
