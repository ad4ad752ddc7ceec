"""Detects changed source files of the modules in use, by their modification times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

SKIPPED = {"node_modules", "venv", "site-packages", "__pycache__"}
MOST_FILES = 5000


class SourceWatch:
    """Compares files with the previous scan; each ``tick`` is a scan."""

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._seen = self._stamps()
        self._changed: set[Path] = set()

    def tick(self) -> set[Path]:
        """Return the changed files, once a tick has passed without further changes (a debounce).

        An editor writes a file in several steps, and a branch switch many files.
        """
        now = self._stamps()
        fresh = {path for path in self._seen if now.get(path) != self._seen[path]}
        # A module that was imported since the last scan is new, not changed.
        self._seen = {**self._seen, **now} if not fresh else now
        self._changed |= fresh
        if fresh or not self._changed:
            return set()
        settled, self._changed = self._changed, set()
        return settled

    def _stamps(self) -> dict[Path, int]:
        return {path: stamp for path in self._files() if (stamp := _stamp(path)) is not None}


def imported_under(folder: Path) -> Iterator[Path]:
    """Yield the files of all imported modules that lie under ``folder``."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file:
            continue
        path = Path(file)
        if (
            path.is_relative_to(folder)
            and not SKIPPED.intersection(path.parts)
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ):
            yield path


def sources_under(folder: Path) -> Iterator[Path]:
    """Yield every Python file under ``folder``: what to watch when the app cannot be imported."""
    left = MOST_FILES
    folders = [folder]
    while folders and left:
        for path in sorted(_entries(folders.pop())):
            if path.name.startswith(".") or path.name in SKIPPED:
                continue
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
            elif path.suffix == ".py" and left:
                left -= 1
                yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
