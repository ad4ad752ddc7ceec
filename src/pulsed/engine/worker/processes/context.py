"""The context of a run in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn, TypeAlias

from pulsed.engine.context import Context
from pulsed.engine.worker.processes.messages import Emit, ReportProgress
from pulsed.engine.workflow.flow import Workflow
from pulsed.errors import LeaseLost
from pulsed.model.job import Assignment
from pulsed.store.blocking import is_blocking

Ask: TypeAlias = Callable[[type[ReportProgress | Emit], str], Future[bool]]
"""Has the worker store a text; the future tells whether the run holds its lease."""


class ProcessContext(Context):
    """What a handler gets as ``ctx``: its worker stores for it, and there is no workflow."""

    _store: NoReturn  # there is none: the worker has it

    def __init__(self, assignment: Assignment, ask: Ask) -> None:
        super().__init__(assignment, None)  # type: ignore[arg-type]
        self._ask = ask

    async def _store_progress(self, text: str) -> bool:
        return await self._stored(ReportProgress, text)

    async def _emit(self, text: str) -> None:
        if not await self._stored(Emit, text):
            raise LeaseLost.of(self.job_id, self.topic)

    async def _stored(self, message: type[ReportProgress | Emit], text: str) -> bool:
        stored = self._ask(message, text)
        return stored.result() if is_blocking() else await asyncio.wrap_future(stored)

    def _workflow(self, method: str, *, in_step: bool = False) -> Workflow:
        del in_step
        self._check_run(method)
        raise self._cannot(
            f'{method}() is for workflows, and a handler with executor="process" cannot be one. '
            "Make a workflow that waits for this job: `await ctx.wait_for(...)` or `ctx.fan_out`."
        )
