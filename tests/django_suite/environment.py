"""A Python with one version of Django, and Django's tests of that version: kept in ``.django/``."""

import glob
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from dev import ROOT, wanted_stamp

HOME = ROOT / ".django"
OLDEST = (3, 12)
NAMES = ("python3.13", "python3.12", "python3.14", "python3")
ELSEWHERE = "~/.pyenv/versions/3.1[2-9]*/bin/python"


class NotPossible(Exception):
    """Django's tests cannot be run here; the message says why."""


class Environment(NamedTuple):
    """Where the Python is, and the folder that has Django's ``tasks``."""

    python: Path
    tests: Path


def find_python() -> str:
    """The path of a Python that Django 6 runs on."""
    if sys.version_info >= OLDEST:
        return sys.executable
    known = (shutil.which(name) for name in NAMES)
    others = sorted(glob.glob(str(Path(ELSEWHERE).expanduser())))  # noqa: PTH207
    for path in (*known, *others):
        if path and is_new_enough(path):
            return path
    raise NotPossible("Django 6 needs Python 3.12 or newer, and there is none; see --python")


def is_new_enough(python: str) -> bool:
    """Whether a Python starts, and Django 6 runs on it."""
    code = f"import sys; sys.exit(sys.version_info < {OLDEST})"
    return not subprocess.run([python, "-c", code], capture_output=True, check=False).returncode


def prepared(version: str, python: str) -> Environment:
    """The environment for a version of Django, made anew if dependencies have changed."""
    home = HOME / version
    stamp, wanted = home / "stamp", wanted_stamp()["needs"]
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        print(f"getting Django {version} and its tests into .django…", file=sys.stderr)  # noqa: T201
        install(home, version, python)
        stamp.write_text(wanted, "utf-8")
    return Environment(home / "venv/bin/python", home / "tests")


def install(home: Path, version: str, python: str) -> None:
    """Install pulsed and Django, and unpack Django's tests of tasks."""
    call("make an environment", python, "-m", "venv", str(home / "venv"))
    pip = (str(home / "venv/bin/python"), "-m", "pip", "-q", "--disable-pip-version-check")
    wanted = f"django=={version}.*"
    call("install Django", *pip, "install", "-e", f"{ROOT}[postgres]", wanted)
    with tempfile.TemporaryDirectory() as folder:
        source = ("--no-deps", "--no-binary", "django", "-d", folder)
        call("get Django's source", *pip, "download", *source, wanted)
        unpack(Path(folder), home / "tests")


def call(purpose: str, *command: str) -> None:
    """Run a command that may need a package index."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPossible(f"cannot {purpose}: {done.stderr.strip()[-600:]}")


def unpack(folder: Path, tests: Path) -> None:
    """Take the tests of tasks out of the source distribution."""
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, path = member.name.partition("/tests/tasks/")
            if path.endswith(".py"):
                member.name = path
                tar.extract(member, tests / "tasks", filter="data")
