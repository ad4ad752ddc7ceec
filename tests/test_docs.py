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
import contextlib
import functools
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pulsed
from pulsed.cli.root import COMMANDS, root
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from tests.support.other_libraries import LIBRARIES
from tests.support.page_run import TEST, PageRun, name_of
from tests.support.pages import BLOCK, PLACEHOLDER, ROOT, blocks

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r'(?:src|srcset)="([^"]+)"')


def prose(page: Path) -> str:
    """A page without its blocks."""
    return BLOCK.sub("", page.read_text("utf-8"))


# -- code -----------------------------------------------------------------------------------------


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


ELSEWHERE = {
    ROOT / "docs/quickstart.md",  # typed by ``test_quickstart.py``, as a reader would
    # run by ``test_from_others.py``, both of their columns
    *(ROOT / "docs" / name for name in LIBRARIES),
}
WITH_CODE = [
    page
    for page in GUIDES
    if page not in ELSEWHERE and any(block.language == "python" for block in blocks(page))
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


@pytest.mark.parametrize("name", ["states", "lease", "fence"])
def test_a_drawing_is_the_same_in_light_and_dark(name: str):
    light, dark = (ROOT / f"docs/images/{name}-{each}.svg" for each in ("light", "dark"))
    shapes = [re.sub("#[0-9a-f]{6}", "#", each.read_text("utf-8")) for each in (light, dark)]
    assert shapes[0] == shapes[1]
    assert light.read_text("utf-8") != dark.read_text("utf-8")


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
    [("On PostgreSQL", 45), ("The walk of a workflow", 11), ("The walk of a schedule", 12)],
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
    assert (len(shared), len(sqlite), len(shared | sqlite)) == (32, 8, 40)
    assert (len(clients), len(between)) == (18, 24)
    behind = [len((engine | shared) - clients) for engine in (sqlite, postgres)]
    assert behind == [22, 27]
    assert [18 + 24 + each for each in behind] == [64, 69]


INLINE = re.compile(r"`(pulsed [^`]+)`")


@pytest.mark.parametrize("name", ["troubleshooting.md", *LIBRARIES])
def test_commands_within_a_sentence_parse(name: str):
    for command in INLINE.findall((ROOT / "docs" / name).read_text("utf-8")):
        parse(root, "pulsed", shlex.split(command)[1:])


def test_the_messages_on_the_page_of_troubles_are_those_of_pulsed():
    """Of each message, the parts between what varies are in the source."""
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    texts = re.sub(r'"\s*f?"|"\s*%\s*\(', "", source)  # a text goes on in the next literal
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    tables = re.findall(r"^\| (?:it|its log) says \|.*\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    messages = re.findall(r"^\| (.+?) \|", "".join(tables), re.MULTILINE)
    parts = [part.strip() for message in messages for part in message.split("…")]
    assert len(parts) > 40
    assert [part for part in parts if part not in texts] == []
