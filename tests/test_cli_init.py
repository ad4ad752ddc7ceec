"""``pulsed init`` writes a project that runs, and overwrites nothing."""

import os
import shlex
import subprocess
import sys
import tomllib

import pytest

from pulsed.cli.commands.init import FILES
from tests.support.commands import CLEAN, Command, run


def in_project(folder, *arguments: str) -> str:
    """Run Python in a project, as its user does; returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in CLEAN}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_project_runs_and_its_tests_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = run("init", "my shop")
    assert written.exit_code == 0, written.output
    worker, enqueue = written.stdout.splitlines()
    assert worker == "cd 'my shop' && pulsed dev app:app --reload"

    folder = tmp_path / "my shop"
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "my-shop"

    arguments = shlex.split(enqueue.partition("&& pulsed ")[2], comments=True)
    with Command(folder, "worker", "app:app", "--poll", "100ms"):
        assert "sent 'hi' to you@example.org" in in_project(folder, "-m", "pulsed", *arguments)
    assert "2 passed" in in_project(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_what_it_writes_is_well_formed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init").stdout.startswith("pulsed dev app:app")
    ruff = ["-m", "ruff", "check", "--isolated", "--select", "E,F,I,UP,B", "--line-length", "100"]
    in_project(tmp_path, *ruff, ".")
    in_project(tmp_path, "-m", "ruff", "format", "--isolated", "--check", "--line-length", "100")


@pytest.mark.parametrize("name", FILES)
def test_it_overwrites_nothing(tmp_path, name):
    (tmp_path / name).write_text("mine")
    refused = run("init", str(tmp_path))
    assert refused.exit_code == 2
    assert f"already has {name}; nothing was written" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_broken_link_is_not_followed(tmp_path):
    (tmp_path / "app.py").symlink_to(tmp_path / "elsewhere.py")
    assert run("init", str(tmp_path)).exit_code == 2
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_place_that_cannot_be_written_is_an_error_not_a_traceback(tmp_path):
    (tmp_path / "file").touch()
    refused = run("init", str(tmp_path / "file" / "below"))
    assert refused.exit_code == 1
    assert "the project could not be written" in refused.stderr
