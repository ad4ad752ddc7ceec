"""The context of a run in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn

from pulsed.engine.context import Context
from pulsed.engine.workflow.flow import Workflow
from pulsed.model.job import Assignment
from pulsed.store.blocking import is_blocking


class ProcessContext(Context):
    """What a handler gets as ``ctx``: its worker stores the progress, and there is no workflow."""

    _store: NoReturn  # there is none: the worker has it

    def __init__(self, assignment: Assignment, tell: Callable[[str], Future[bool]]) -> None:
        super().__init__(assignment, None)  # type: ignore[arg-type]
        self._tell = tell

    async def _store_progress(self, text: str) -> bool:
        stored = self._tell(text)
        return stored.result() if is_blocking() else await asyncio.wrap_future(stored)

    def _workflow(self, method: str, *, in_step: bool = False) -> Workflow:
        del in_step
        self._check_run(method)
        raise self._cannot(
            f'{method}() is for workflows, and a handler with executor="process" cannot be one. '
            "Make a workflow that waits for this job: `await ctx.wait_for(...)` or `ctx.fan_out`."
        )
