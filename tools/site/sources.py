"""Files and folders that pages link to, as pages: a browser would offer most files for download."""

from pathlib import Path

from tools.site.pages import ROOT, members

AS_THEY_ARE = {".md", ".png", ".svg", ".txt", ".webp"}
"""What a browser shows, and pages."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".service": "ini"}

SOURCE = """\
---
hide:
  - toc
search:
  exclude: true
---
# {path}

```{language}
{text}
```
"""


def is_source(path: Path) -> bool:
    """Return whether a path of the repository is shown as a page that is made for it."""
    return (ROOT / path).is_dir() or path.suffix not in AS_THEY_ARE


def page_name(path: Path) -> Path:
    """Return where the page of a file or a folder is."""
    return path / "README.md" if (ROOT / path).is_dir() else path.with_name(f"{path.name}.md")


def page(path: Path) -> str:
    """Return the page of a file, with its text, or that of a folder, with its files."""
    if (ROOT / path).is_dir():
        return folder_page(path)
    text = (ROOT / path).read_text("utf-8").rstrip()
    language = LANGUAGES.get(path.suffix, "text")
    return SOURCE.format(path=path.as_posix(), language=language, text=text)


def folder_page(path: Path) -> str:
    """Return the list of a folder's files."""
    items = (f"- [{each.name}]({target_name(each)})\n" for each in members(path))
    return f"# {path.as_posix()}\n\n{''.join(items)}"


def target_name(path: Path) -> str:
    """Return what a page beside a file links to."""
    return page_name(path).name if is_source(path) else path.name
