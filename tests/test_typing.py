"""Both type checkers see a user's mistakes, and nothing else."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.support.programs import ROOT

FOLDER = ROOT / "tests" / "typing"
GOOD, BAD = FOLDER / "good.py", FOLDER / "bad.py"

Errors = dict[str, dict[int, str]]
"""By file and line."""


def mypy(cache: Path) -> Errors:
    """Return the errors that ``mypy --strict`` finds."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}",
         "--no-error-summary", "--hide-error-context", "--no-pretty", GOOD, BAD],
        cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return _by_place(
        (match["file"], int(match["line"]), match["text"])
        for match in re.finditer(
            r"(?m)^(?P<file>.+?):(?P<line>\d+): error: (?P<text>.*)$", run.stdout
        )
    )


def pyright(cache: Path) -> Errors:
    """Return the errors that pyright finds in standard mode."""
    config = cache / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "typeCheckingMode": "standard",
                # Relative, as pyright wants it.
                "include": [os.path.relpath(file, cache) for file in (GOOD, BAD)],
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
    assert report["summary"]["filesAnalyzed"] == 2
    return _by_place(
        (found["file"], found["range"]["start"]["line"] + 1, found["message"])
        for found in report["generalDiagnostics"]
    )


@pytest.mark.parametrize("check", [mypy, pyright])
def test_good_calls_pass_and_each_bad_one_is_found(
    check: Callable[[Path], Errors], tmp_path: Path
) -> None:
    """In one run of the checker, which takes a second to read what we import."""
    lines = BAD.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if re.search(r"\S  # E: ", line)}
    found = check(tmp_path)
    missed = {number: lines[number - 1].strip() for number in marked - found[BAD.name].keys()}
    surplus = {n: text for n, text in found[BAD.name].items() if n not in marked}
    assert found[GOOD.name] == {}
    assert (missed, surplus) == ({}, {})
    assert len(marked) > 30


def _by_place(errors: Iterable[tuple[str, int, str]]) -> Errors:
    found: Errors = {GOOD.name: {}, BAD.name: {}}
    for file, line, text in errors:
        assert Path(file).name in found, f"{file}:{line}: {text}"
        found[Path(file).name][line] = text
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "MYPYPATH": str(ROOT / "src")}
