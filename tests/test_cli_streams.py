"""The command where it is badly off: a full disk, closed streams, odd bytes, an early Ctrl-C."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pulsed
from tests.support.commands import CLEAN, run

BYTES = b"x\xff".decode(errors="surrogateescape")
"""What Python makes of an argument that is not UTF-8."""

INTERRUPTED = """
import runpy, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["pulsed", "jobs", "list"]
runpy.run_module("pulsed", run_name="__main__")
"""


def started(*args: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in os.environ.items() if name not in CLEAN}
    environment = kept | options.pop("env", {})  # type: ignore[operator]
    command = [sys.executable, *args]
    options = {"stderr": subprocess.PIPE, "env": environment, "timeout": 60} | options
    return subprocess.run(command, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert run("migrate", "up", "--url", url).exit_code == 0
    assert run("enqueue", "t", "name=é→😀", "--url", url).exit_code == 0
    return tmp_path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("args", [["jobs", "list"], ["jobs"]], ids=["data", "help"])
def test_a_full_disk_under_stdout_is_no_bug(folder, args):
    with Path("/dev/full").open("wb") as full:
        listed = started("-m", "pulsed", *args, cwd=folder, stdout=full, env=at(folder))
    assert listed.returncode == 1
    assert listed.stderr == b"pulsed: cannot write to stdout: No space left on device\n"


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_a_closed_stdout_is_no_bug(folder):
    command = f"{sys.executable} -m pulsed jobs list >&-"
    listed = started(
        "-c", f"import os; os.execv('/bin/sh', ['sh', '-c', {command!r}])", env=at(folder)
    )
    assert listed.returncode == 1
    assert listed.stderr == b"pulsed: cannot write to stdout: Bad file descriptor\n"


@pytest.mark.parametrize("encoding", ["ascii", "koi8-r"])
def test_json_is_json_in_every_locale(folder, encoding):
    wants = at(folder) | {"PYTHONIOENCODING": encoding}
    listed = started("-m", "pulsed", "jobs", "list", stdout=subprocess.PIPE, env=wants)
    assert (listed.returncode, listed.stderr) == (0, b"")
    written = listed.stdout.decode("utf-8" if encoding == "ascii" else encoding)
    assert json.loads(written)["payload"] == {"name": "é→😀"}


@pytest.mark.parametrize("name", ["click", "pulsed.store.blocking"])
def test_an_interrupt_while_it_starts_shows_no_traceback(name):
    ended = started("-c", INTERRUPTED.format(name=name))
    assert ended.returncode == 130
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["jobs", "list", "--error", BYTES],
        ["schedules", "add", BYTES, "t", "--every", "1h"],
        ["schedules", "show", BYTES],
        ["schedules", "list", "--app-name", BYTES],
        ["doctor", "--url", f"postgresql://{BYTES}/x"],
        ["enqueue", "t", f"a={BYTES}"],
    ],
    ids=" ".join,
)
def test_bytes_that_are_not_utf_8_are_a_usage_error(folder, args):
    result = run(*args, **at(folder))
    assert result.exit_code == 2, result.output
    assert "bug" not in result.stderr


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_the_first_and_the_last_year_are_no_bug(folder, year):
    for option in ("--since", "--until"):
        result = run("jobs", "list", option, f"{year}-01-01T00:00:00Z", **at(folder))
        assert result.exit_code in (0, 2), result.output
    for verb in (["enqueue", "t"], ["schedules", "add", "s", "t"]):
        result = run(*verb, "--at", f"{year}-01-01T00:00:00Z", **at(folder))
        assert result.exit_code in (0, 2), result.output


def test_every_exported_name_is_there():
    for name in pulsed.__all__:
        assert getattr(pulsed, name) is not None
    assert pulsed.errors.InvalidJob is pulsed.InvalidJob
    with pytest.raises(AttributeError, match="has no attribute 'Plus'"):
        pulsed.Plus  # noqa: B018


def at(folder: Path) -> dict[str, str]:
    return {"PULSED_URL": f"sqlite:///{folder}/jobs.db"}
