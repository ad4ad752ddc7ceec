"""Both type checkers see a user's mistakes, and nothing else."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "typing"
GOOD, BAD = FOLDER / "good.py", FOLDER / "bad.py"
ROOT = FOLDER.parent.parent


def mypy(file: Path, cache: Path) -> dict[int, str]:
    """Return the errors that ``mypy --strict`` finds, by line."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}",
         "--no-error-summary", "--hide-error-context", "--no-pretty", file],
        cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return _by_line(
        (match["file"], int(match["line"]), match["text"])
        for match in re.finditer(
            r"(?m)^(?P<file>.+?):(?P<line>\d+): error: (?P<text>.*)$", run.stdout
        )
    )


def pyright(file: Path, cache: Path) -> dict[int, str]:
    """Return the errors that pyright finds in standard mode, by line."""
    config = cache / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "typeCheckingMode": "standard",
                "include": [os.path.relpath(file, cache)],  # as pyright wants it
                "extraPaths": [str(ROOT / "src")],
                "enableTypeIgnoreComments": True,
            }
        )
    )
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--level", "error",
         "--project", str(config), "--pythonpath", sys.executable],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return _by_line(
        (found["file"], found["range"]["start"]["line"] + 1, found["message"])
        for found in report["generalDiagnostics"]
    )


Checker = Callable[[Path, Path], dict[int, str]]
CHECKERS: list[Checker] = [mypy, pyright]


@pytest.mark.parametrize("check", CHECKERS)
def test_good_calls_pass(check: Checker, tmp_path: Path) -> None:
    assert check(GOOD, tmp_path) == {}


@pytest.mark.parametrize("check", CHECKERS)
def test_each_bad_call_is_found_and_nothing_else(check: Checker, tmp_path: Path) -> None:
    lines = BAD.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if re.search(r"\S  # E: ", line)}
    found = check(BAD, tmp_path)
    missed = {number: lines[number - 1].strip() for number in marked - found.keys()}
    surplus = {number: text for number, text in found.items() if number not in marked}
    assert (missed, surplus) == ({}, {})
    assert len(marked) > 30


def _by_line(errors: Iterable[tuple[str, int, str]]) -> dict[int, str]:
    found = {}
    for file, line, text in errors:
        assert Path(file).name in (GOOD.name, BAD.name), f"{file}:{line}: {text}"
        found[line] = text
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "MYPYPATH": str(ROOT / "src")}
