"""The navigation of the site, read from the sections of the index."""

import json
import re
from pathlib import Path
from typing import TypeAlias

from tools.site import reference
from tools.site.pages import HOME, INDEX, ROOT, resolved

SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"\[([^\]]+)\]\(([^)\s#]+\.md)\)")

REFERENCE = "Reference"
"""The section that has the generated pages."""

Entry: TypeAlias = "str | dict[str, Entry] | list[Entry]"
"""A page, a title with its page, or what is below a title; the first page there is its own."""


def entries() -> list[Entry]:
    """Return what the index lists, below the titles of its sections."""
    index = (ROOT / INDEX).read_text("utf-8")
    found: list[Entry] = [{"Home": [HOME.as_posix(), {"All pages": INDEX.as_posix()}]}]
    found += [{title: below(title, body)} for title, body in SECTION.findall(index)]
    return found


def below(title: str, body: str) -> list[Entry]:
    """Return the entries of a section; the generated pages come first in theirs."""
    generated: list[Entry] = [
        {title: path.as_posix()} for path, title in reference.titles().items()
    ]
    return [*(generated if title == REFERENCE else []), *listed(INDEX, body)]


def listed(page: Path, text: str) -> list[Entry]:
    """Return an entry for each link to a page in a text of a page."""
    return [{title: entry(resolved(page, link))} for title, link in ENTRY.findall(text)]


def entry(page: Path) -> Entry:
    """Return a page; if it is about a folder, with the pages in there that it links to."""
    if page.name != "README.md":
        return page.as_posix()
    text = (ROOT / page).read_text("utf-8")
    inside: list[Entry] = [
        {title: resolved(page, link).as_posix()}
        for title, link in ENTRY.findall(text)
        if resolved(page, link).is_relative_to(page.parent)
    ]
    return [page.as_posix(), *inside] if inside else page.as_posix()


def pages(entry: Entry) -> set[str]:
    """Return the pages of an entry."""
    match entry:
        case str():
            return {entry}
        case dict():
            return set().union(*map(pages, entry.values()))
        case list():
            return set().union(*map(pages, entry))


def toml() -> str:
    """Return the navigation as a setting of zensical."""
    return f"nav = {literal(entries())}\n"


def literal(entry: Entry) -> str:
    """Return an entry as TOML, which has JSON's strings and lists, and tables of its own."""
    match entry:
        case str():
            return json.dumps(entry)
        case dict():
            pairs = (f"{json.dumps(key)} = {literal(each)}" for key, each in entry.items())
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(literal, entry))}]"
