"""Run the tests with the oldest dependencies that pyproject.toml allows; run by ``dev.py lowest``.

They go into ``.venv-lowest``, which is kept. The tools that tests need have their usual versions.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-lowest"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")

# Starlette's test client, not the dashboard, uses an old name of the newest anyio.
OLD_TEST_CLIENT = "ignore:The anyio.abc.BlockingPortal alias:DeprecationWarning"


def lower_bounds(requirements: list[str]) -> list[str]:
    """Return the requirements as pip's constraints, each at the lowest version it allows."""
    found = (re.match(r"([\w.-]+)(?:\[.*?\])?>=([\w.]+)", each) for each in requirements)
    return [f"{match[1]}=={match[2]}" for match in found if match]


def usual_versions(besides: list[str]) -> list[str]:
    """Return the constraints of ``constraints.txt``, without those of packages in ``besides``.

    Else pip would lift these again, where a tool depends on them too.
    """
    left_out = {each.partition("==")[0].lower() for each in besides}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.partition("==")[0].lower() not in left_out]


def install(constraints: list[str], *wanted: str) -> None:
    """Install into the environment; a dependency that is there already stays if it may."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text("\n".join(constraints), encoding="utf-8")
        command = [str(PYTHON), "-m", "pip", "install", "-q", "-c", str(file), *wanted]
        subprocess.run(command, cwd=ROOT, check=True)


def main(arguments: list[str]) -> int:
    """Bring the environment up to date, then run pytest in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    # Starlette's test client sends with httpx2 in later versions, with httpx in the oldest.
    tools = [*extras.pop("dev"), "httpx>=0.28"]
    bounds = lower_bounds(sum(extras.values(), start=project["dependencies"]))
    if not PYTHON.exists():
        venv.EnvBuilder(with_pip=True).create(VENV)
    install(bounds, "-e", ".[all]")
    install(usual_versions(besides=bounds), *tools)
    command = [str(PYTHON), "-m", "pytest", "-W", OLD_TEST_CLIENT, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
