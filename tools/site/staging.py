"""Lays out the pages for zensical: in the tree of the repository, as this site shows them."""

import os
import re
import shutil
from pathlib import Path

from tools.site import navigation, reference, sources
from tools.site.pages import ROOT, files, links, resolved

HERE = Path(__file__).parent
ASSETS = ("site.css", "vendor/iframe-worker.js", "vendor/iframe-worker.LICENSE")
DIRECTIVE = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)"(?P<more>[^>]*)>\s*</picture>'
)

SIDE_BY_SIDE = re.compile(
    r"<table>\n<tr><th>(?P<left_title>[^<]*)</th><th>(?P<right_title>[^<]*)</th></tr>\n"
    r"<tr><td>\n(?P<left>.*?)\n</td><td>\n(?P<right>.*?)\n</td></tr>\n</table>\n",
    re.DOTALL,
)
COLUMNS = """\
<div class="side-by-side" markdown>
<div markdown>

**{left_title}**
{left}
</div>
<div markdown>

**{right_title}**
{right}
</div>
</div>
"""
WIDE = "---\nhide:\n  - toc\n---\n"
"""Before a page that has two columns of code: they need the room."""


def stage(folder: Path) -> None:
    """Write the pages, the files that they refer to, and the settings into an empty folder."""
    pages = folder / "pages"
    for path in files():
        stage_file(path, pages)
    for path, text in reference.pages():
        write(pages / path, text)
    for asset in ASSETS:
        shutil.copyfile(HERE / asset, pages / Path(asset).name)
    settings = (HERE / "zensical.toml").read_text("utf-8")
    nav = navigation.toml()
    (folder / "zensical.toml").write_text(settings.replace("nav = []\n", nav), "utf-8")


def stage_file(path: Path, pages: Path) -> None:
    """Write a page, the page of a file or folder, or a copy of a picture."""
    if path.suffix == ".md":
        write(pages / path, as_shown(path, (ROOT / path).read_text("utf-8")))
    elif sources.is_source(path):
        write(pages / sources.page_name(path), sources.page(path))
    else:
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, pages / path)


def write(path: Path, text: str) -> None:
    """Write a file, in a folder that may not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def as_shown(path: Path, text: str) -> str:
    """Return a page without what directs its tests, its pictures following the site's switch."""
    text = PICTURE.sub(both_schemes, DIRECTIVE.sub("", text))
    text, tables = SIDE_BY_SIDE.subn(lambda found: COLUMNS.format(**found.groupdict()), text)
    text = WIDE + text if tables else text
    for link in links(path):
        target = resolved(path, link)
        if sources.is_source(target):
            page = os.path.relpath(sources.page_name(target), path.parent)
            text = text.replace(f"]({link})", f"]({page})")
    return text


def both_schemes(picture: re.Match[str]) -> str:
    """Return two images, of which the theme shows the one for its scheme."""
    images = (
        f'<img alt="{picture["alt"]}" src="{picture[scheme]}#only-{scheme}"{picture["more"]}>'
        for scheme in ("light", "dark")
    )
    return "\n".join(images)
