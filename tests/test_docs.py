"""The documentation is run, followed and counted: what it shows works, what it names exists.

A page's Python blocks run in order, in one namespace and an empty directory. A block that begins
with ``# name.py`` is that file, and is imported. In a ``console`` block, ``python`` commands are
run and their output compared, workers for an app of the page are started, other ``pulsed`` commands
are parsed. Comments before a block direct it:

``<!-- worker: module:app -->``  run a worker for this app (or ``app`` of the page) from here on
``<!-- output -->``              what the Python block before it printed
``<!-- run: tests/x.py::test -->``  this test runs it, in a process of its own
``<!-- skip: reason -->``        it is not run
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import importlib
import inspect
import io
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pulsed
from pulsed import Pulse
from pulsed.cli.root import COMMANDS, root
from pulsed.engine.worker.worker import Worker
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from tests.support.pages import BLOCK, FILE, PLACEHOLDER, ROOT, Block, blocks

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r'(?:src|srcset)="([^"]+)"')
TEST = re.compile(r"tests/([\w/]+\.py)::((?:\w+::)?test_\w+)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its blocks."""
    return BLOCK.sub("", page.read_text("utf-8"))


# -- code -----------------------------------------------------------------------------------------


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
            for app in names.values():
                if isinstance(app, Pulse) and app._store is not None:
                    app.close()


@pytest.fixture
def page_run(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PageRun]:
    page: Path = request.param
    opened: list[SqliteStore] = []
    open_store = SqliteStore.__init__

    def remember(store: SqliteStore, *args: Any, **kwargs: Any) -> None:
        opened.append(store)  # a page may drop an app that it has not closed
        open_store(store, *args, **kwargs)

    monkeypatch.setattr(SqliteStore, "__init__", remember)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    needs_postgres = PLACEHOLDER in page.read_text("utf-8")
    run = PageRun(page, request.getfixturevalue("postgres_url") if needs_postgres else None)
    yield run
    run.close()
    for store in opened:
        run_blocking(store.aclose())


TYPED = ROOT / "docs/quickstart.md"
"""Run by ``test_quickstart.py``, as a reader would."""
WITH_CODE = [
    page
    for page in GUIDES
    if page != TYPED and any(block.language == "python" for block in blocks(page))
]


@pytest.mark.parametrize("page_run", WITH_CODE, ids=name_of, indirect=True)
def test_the_code_on_a_page_runs(page_run: PageRun):
    page_run.run()


def test_few_blocks_are_skipped():
    reasons = [
        b.directives["skip"] for page in GUIDES for b in blocks(page) if "skip" in b.directives
    ]
    assert len([reason for reason in reasons if not reason.startswith("tests/")]) <= 3


# -- commands -------------------------------------------------------------------------------------


def commands(page: Path) -> list[str]:
    """The ``pulsed`` commands in a page's shell blocks, without prompt, output and pipes."""
    found = []
    for block in blocks(page):
        assert block.language not in ("sh", "bash", "shell"), "call it console, and use $"
        if block.language == "console":
            for line in re.findall(r"^\$ (.+)$", block.code.replace("\\\n", " "), re.MULTILINE):
                parts = (part.strip() for part in line.split(" | "))
                found += [part for part in parts if part.startswith("pulsed ")]
    return found


ALL_COMMANDS = [(page, command) for page in GUIDES for command in commands(page)]


@pytest.mark.parametrize(
    "page, command", ALL_COMMANDS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_command_on_a_page_parses(page: Path, command: str):
    arguments = shlex.split(command, comments=True)[1:]
    ends = [arguments.index(sign) for sign in ("&", ">") if sign in arguments]
    arguments = arguments[: min(ends, default=None)]
    parse(root, "pulsed", arguments)


def parse(command: click.Command, name: str, arguments: list[str]) -> None:
    """Parse a command line as far as the command that would run, without running it."""
    if not isinstance(command, click.Group) or not arguments or arguments[0].startswith("-"):
        with contextlib.suppress(click.exceptions.Exit), contextlib.redirect_stdout(io.StringIO()):
            command.make_context(name, arguments)
        return
    context = click.Context(command, info_name=name)
    child = command.get_command(context, arguments[0])
    assert child is not None, f"{name} has no command {arguments[0]!r}"
    parse(child, f"{name} {arguments[0]}", arguments[1:])


def subcommands(command: click.Command, name: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield name
        return
    context = click.Context(command, info_name=name)
    for each in command.list_commands(context):
        child = command.get_command(context, each)
        assert child is not None
        yield from subcommands(child, f"{name} {each}")


def test_every_command_is_documented():
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    assert [name for name in subcommands(root, "pulsed") if name not in text] == []
    assert [name for name in COMMANDS if f"\n## pulsed {name}" not in text] == []


def test_every_option_of_every_command_is_documented():
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    missing = []
    for name in subcommands(root, "pulsed"):
        command: Any = root
        for part in name.split()[1:]:
            command = command.get_command(click.Context(command), part)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                longest = max(parameter.opts, key=len)
                missing += [] if longest in text else [f"{name} {longest}"]
    assert missing == []


def test_every_variable_of_the_environment_is_documented():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"\bPULSED_[A-Z_]+\b", source))
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    assert {name for name in names if name not in text} == set()


# -- what pages refer to --------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path):
    broken = [link for link in LINK.findall(prose(page)) if not leads_somewhere(page, link)]
    assert broken == []


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_pictures_are_there_in_light_and_dark(page: Path):
    shown = [page.parent / each for each in PICTURE.findall(prose(page))]
    assert [each for each in shown if not each.is_file()] == []
    schemes = [each.stem.rpartition("-")[2] for each in shown]
    assert schemes.count("light") == schemes.count("dark") == len(shown) / 2


def test_pictures_come_in_pairs_and_are_small():
    """`python3 dev.py screenshots` takes them."""
    sizes = {each.stem: each.stat().st_size for each in (ROOT / "docs/images").iterdir()}
    names = {name.rpartition("-")[0] for name in sizes}
    assert sizes.keys() == {f"{name}-{scheme}" for name in names for scheme in ("light", "dark")}
    assert sum(sizes.values()) < 3_000_000


def leads_somewhere(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not anchor or anchor in anchors(target)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_every_test_that_a_page_names_exists():
    named = {found for page in PAGES for found in TEST.findall(page.read_text("utf-8"))}
    assert len(named) > 30
    assert sorted(f"{file}::{test}" for file, test in named if test not in functions_in(file)) == []


@functools.cache
def functions_in(file: str) -> set[str]:
    """The names of a file's tests, those of classes as ``Class::test``."""
    path = ROOT / "tests" / file
    if not path.exists():
        return set()
    tree = ast.parse(path.read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, functions)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}::{each.name}" for each in node.body if isinstance(each, functions)
            }
    return names


def test_every_guarantee_names_a_test():
    sections = re.split(
        r"^### ", (ROOT / "docs/guarantees.md").read_text("utf-8"), flags=re.MULTILINE
    )[1:]
    assert len(sections) >= 10
    assert [text.splitlines()[0] for text in sections if not TEST.search(text)] == []


def test_every_public_name_is_documented():
    text = "".join(page.read_text("utf-8") for page in GUIDES)
    names = [name for name in pulsed.__all__ if name != "__version__"]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_the_index_lists_every_page():
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(prose(index))}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page != index}
    assert sorted(map(name_of, pages - linked)) == []


def test_decisions_have_their_four_parts():
    parts = ["## Status", "## Context", "## Decision", "## Consequences"]
    for page in sorted((ROOT / "docs/adr").glob("*.md")):
        headings = re.findall(r"^## .+$", page.read_text("utf-8"), re.MULTILINE)
        assert [each for each in headings if each in parts] == parts, page.name
        assert page.read_text("utf-8").startswith(f"# {int(page.name[:4])}. "), page.name


def test_the_changelog_knows_this_version():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## \[(Unreleased|{re.escape(pulsed.__version__)})\]", text, re.MULTILINE)


def files_of_walk(heading: str) -> set[str]:
    """The files in the tables of a section of the architecture's page."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    sections = re.split(r"(?m)^##+ ", page)
    [section] = [part for part in sections if part.startswith(heading)]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    return set(re.findall(r"`([\w/]+\.py)`", rows))


@pytest.mark.parametrize(
    "heading, number",
    [("On PostgreSQL", 41), ("The walk of a workflow", 11), ("The walk of a schedule", 12)],
)
def test_a_walk_through_the_code_counts_its_files(heading: str, number: int):
    files = files_of_walk(heading)
    assert [name for name in files if not (ROOT / "src" / "pulsed" / name).is_file()] == []
    assert len(files) == number
    assert f"{number} files" in (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_the_walks_on_other_stores_count_their_files():
    postgres, sqlite = files_of_walk("On PostgreSQL"), files_of_walk("On SQLite")
    shared = {name for name in postgres if not name.startswith("store/postgres/")}
    clients = {name for name in postgres if not name.startswith("store/")}
    between = files_of_walk("Over gRPC") - clients
    assert (len(shared), len(sqlite), len(shared | sqlite)) == (31, 8, 39)
    assert (len(clients), len(between)) == (18, 24)
    behind = [len((engine | shared) - clients) for engine in (sqlite, postgres)]
    assert behind == [21, 23]
    assert [18 + 24 + each for each in behind] == [63, 65]
