"""What is wrong with a built site: links that lead nowhere, and requests to other hosts."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

REFERENCE = re.compile(r'<(\w+)\b[^>]*?\s(?:href|src|srcset)="?([^"\s>]*)')
ID = re.compile(r'\s(?:id|name)="?([^"\s>]+)')
CSS_URL = re.compile(r"url\(([^)]*)\)|@import\s+[\"']([^\"']*)")
HOST = re.compile(r"(?:[a-z]+:)?//")


def problems(site: Path) -> list[str]:
    """Return what is wrong with a site, in the words of a sentence for each."""
    pages = sorted(site.rglob("*.html"))
    return [
        *(problem for page in pages for problem in problems_of(page, site)),
        *(problem for style in sorted(site.rglob("*.css")) for problem in requests_of(style)),
    ]


def problems_of(page: Path, site: Path) -> Iterator[str]:
    """Yield the broken links of a page, and what it would load from another host."""
    for tag, link in REFERENCE.findall(page.read_text("utf-8")):
        if HOST.match(link):
            if tag != "a":
                yield f"{page.relative_to(site)} loads {link}"
        elif not re.match(r"[a-z]+:", link) and not leads_somewhere(page, link, site):
            yield f"{page.relative_to(site)} links to {link}, which is not there"


def leads_somewhere(page: Path, link: str, site: Path) -> bool:
    """Return whether a link leads to a file of the site and, in a page, to an anchor."""
    path, _, anchor = unquote(link).partition("#")
    start = site if path.startswith("/") else page.parent
    target = (start / path.partition("?")[0].lstrip("/")).resolve() if path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site) or not target.is_file():
        return False
    return not anchor or target.suffix != ".html" or anchor in anchors(target)


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page."""
    return frozenset(ID.findall(page.read_text("utf-8")))


def requests_of(style: Path) -> Iterator[str]:
    """Yield what a style sheet would load from another host."""
    for first, second in CSS_URL.findall(style.read_text("utf-8")):
        url = (first or second).strip("\"'")
        if HOST.match(url):
            yield f"{style.name} loads {url}"
