"""Runs the code of a page, as ``tests/test_docs.py`` explains."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from pulsed import Pulse
from pulsed.engine.worker.worker import Worker
from tests.support.pages import FILE, PLACEHOLDER, ROOT, Block, blocks

TEST = re.compile(r"tests/([\w/]+\.py)::((?:\w+::)?test_\w+)")


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


class PageRun:
    """Runs the Python blocks of one page."""

    def __init__(self, page: Path, postgres_url: str | None) -> None:
        self.page = page
        self.postgres_url = postgres_url
        self.namespace: dict[str, Any] = {"__name__": "__page__"}
        self.modules: list[str] = []
        self.workers: list[tuple[Worker, asyncio.AbstractEventLoop, threading.Thread]] = []
        self.printed = ""

    def run(self) -> None:
        for block in blocks(self.page):
            if "skip" in block.directives:
                assert block.directives["skip"], f"say why at line {block.line}"
            elif "run" in block.directives:
                assert TEST.fullmatch(block.directives["run"]), (
                    f"name the test at line {block.line}"
                )
            elif "output" in block.directives:
                assert self.printed == block.code, f"output shown at line {block.line}"
            elif block.language == "python":
                self.run_block(block)
            elif block.language == "console":
                self.run_console(block)

    def run_block(self, block: Block) -> None:
        if name := block.directives.get("worker"):
            self.start_worker(self.find_app(name))
        code = block.code.replace(PLACEHOLDER, self.postgres_url or PLACEHOLDER)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if file := FILE.match(code):
                self.import_file(file[1], code)
            else:
                self.execute(code, block.line)
        self.printed = printed.getvalue()

    def run_console(self, block: Block) -> None:
        """Run the ``python`` commands of a shell session, and the workers started in it."""
        for command, output in re.findall(
            r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block.code, re.MULTILINE
        ):
            words = shlex.split(command, comments=True)
            if words[0] == "pulsed" and words[1] in ("dev", "worker"):
                if words[2].partition(":")[0] in self.modules:
                    self.start_worker(self.find_app(words[2]))
            elif words[0] == "python":
                arguments = [sys.executable, *words[1:]]
                done = subprocess.run(arguments, capture_output=True, text=True, check=True)
                assert done.stdout == output, f"session at line {block.line}"

    def import_file(self, name: str, code: str) -> None:
        Path(f"{name}.py").write_text(code, "utf-8")
        self.modules.append(name)
        sys.modules.pop(name, None)  # another test may have had a module of that name
        importlib.invalidate_caches()
        importlib.import_module(name)

    def execute(self, code: str, line: int) -> None:
        """Run a block, in an event loop if it awaits something outside of a function."""
        where = f"{name_of(self.page)} (from line {line})"
        compiled = compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        awaitable = eval(compiled, self.namespace)
        if inspect.iscoroutine(awaitable):
            asyncio.run(awaitable)

    def find_app(self, name: str) -> Pulse:
        module, _, attribute = name.rpartition(":")
        found = vars(sys.modules[module]) if module else self.namespace
        app = found[attribute]
        assert isinstance(app, Pulse)
        return app

    def start_worker(self, app: Pulse) -> None:
        """Run a worker in a thread, as a second process would."""
        started = threading.Event()

        async def work() -> None:
            worker = app.worker(poll=0.05, queues=["default", "mail", "warehouse"])
            self.workers.append((worker, asyncio.get_running_loop(), threading.current_thread()))
            started.set()
            await worker.run()
            await app.aclose()

        threading.Thread(target=lambda: asyncio.run(work()), daemon=True).start()
        assert started.wait(60)

    def close(self) -> None:
        for worker, loop, thread in self.workers:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(worker.stop)
            thread.join(60)
        modules = [vars(sys.modules.pop(name)) for name in self.modules if name in sys.modules]
        for names in (self.namespace, *modules):
            for value in names.values():
                if isinstance(value, Pulse) and value._store is not None:
                    value.close()
                elif isinstance(value, Engine):
                    value.dispose()
