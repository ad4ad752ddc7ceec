"""``pulsed init``: write a project to start from."""

from __future__ import annotations

import os
import re
import shlex
from importlib import resources
from pathlib import Path

import click

from pulsed.cli import starter
from pulsed.cli.exits import Code, CommandError, say

FILES = {
    "app.py": "app.py.txt",
    "test_app.py": "test_app.py.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""What is written, and from which file of the package."""

EXAMPLES = """\b
examples:
  pulsed init shop
  cd shop && pulsed dev app:app --reload"""


@click.command(epilog=EXAMPLES)
@click.argument(
    "folder",
    metavar="[DIR]",
    default=".",
    type=click.Path(file_okay=False, path_type=Path),
)
def init(folder: Path) -> None:
    """Write a project that runs: two jobs, a schedule and their tests. Overwrites nothing."""
    texts = {folder / name: _text(source, folder) for name, source in FILES.items()}
    if taken := [path.name for path in texts if os.path.lexists(path)]:
        raise CommandError(
            f"{folder} already has {', '.join(taken)}; nothing was written. Choose another "
            "directory, or remove them.",
            Code.USAGE,
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:  # "x" overwrites nothing
                file.write(text)
    except OSError as error:
        raise CommandError(f"the project could not be written: {error}") from error
    say(f"wrote {', '.join(FILES)} to {folder.resolve()}. Next:")
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    print(f"{enter}pulsed dev app:app --reload")
    print(
        f"{enter}pulsed enqueue send_email to=you@example.org subject=hi --wait --app app:app"
        "    # in a second terminal"
    )


def _text(source: str, folder: Path) -> str:
    text = (resources.files(starter) / source).read_text("utf-8")
    return text.replace("{name}", _project_name(folder))


def _project_name(folder: Path) -> str:
    """Return the directory's name as one that a project may have."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return name or "jobs"
