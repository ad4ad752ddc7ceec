"""Which files make up the site: what the index links to, and what those pages link to and show."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
HOME = Path("README.md")
INDEX = Path("docs/README.md")

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SHOWN = re.compile(r'\b(?:src|srcset)="([^"]+)"')
ELSEWHERE = re.compile(r"[a-z]+:|#")


def files() -> list[Path]:
    """Return the files of the site, pages and others, as paths in the repository."""
    found = {HOME: None, INDEX: None}
    waiting = list(found)
    while waiting:
        page = waiting.pop()
        for target in linked(page):
            if not (ROOT / target).exists():
                raise FileNotFoundError(f"{page} links to {target}, which is not there")
            if target not in found:
                found[target] = None
                waiting.append(target)
    return sorted(found)


def linked(path: Path) -> Iterator[Path]:
    """Yield what a page links to and shows in the repository, or the files of a folder."""
    if (ROOT / path).is_dir():
        yield from members(path)
    elif path.suffix == ".md":
        yield from (resolved(path, link) for link in links(path))


def members(folder: Path) -> list[Path]:
    """Return the files in a folder."""
    return sorted(each.relative_to(ROOT) for each in (ROOT / folder).iterdir() if each.is_file())


def resolved(page: Path, link: str) -> Path:
    """Return the path in the repository that a link of a page leads to."""
    path = unquote(link.partition("#")[0])
    return Path(os.path.normpath(page.parent / path))


def links(page: Path) -> list[str]:
    """Return the links and pictures of a page as they are written, without those to other sites."""
    text = FENCED.sub("", (ROOT / page).read_text("utf-8"))
    found = [*LINK.findall(text), *SHOWN.findall(text)]
    return [link for link in found if not ELSEWHERE.match(link)]
