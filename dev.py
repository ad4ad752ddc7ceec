#!/usr/bin/env python3
"""The one command a contributor needs: `python3 dev.py --help`.

Standard library only. Every command first makes sure that `.venv` holds what `pyproject.toml` and
`constraints.txt` ask for, so a fresh clone needs nothing but Python. The file must go on parsing on
Python 3.6, so that an old interpreter gets a sentence and not a SyntaxError: no `match`, no `:=`,
no `from __future__ import annotations`.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (the point is to be run by an old Python)
    sys.exit("pulsed needs Python 3.11 or newer, this is %d.%d" % sys.version_info[:2])

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "pulsed-stamp.json"

USAGE = """\
usage: python3 dev.py COMMAND [ARGUMENTS]

commands:
{commands}

The first command sets up .venv by itself; nothing is installed outside this directory.

examples:
  python3 dev.py demo                     see jobs survive a killed worker
  python3 dev.py test                     the whole suite, on SQLite and PostgreSQL
  python3 dev.py test -k lease -x         arguments go to pytest
  python3 dev.py test -n 0 --pdb          one process, with a debugger
  python3 dev.py lowest -n 2              the suite with the oldest dependencies allowed
  python3 dev.py check                    lint, formatting, types, import layers
  python3 dev.py build                    the distributions of a release, checked
  python3 dev.py docs                     the documentation as a site: site/index.html
  python3 dev.py django                   Django's own tests of task backends, against ours
  python3 dev.py bench --quick            how fast it is here, within a minute
  python3 dev.py chaos --seconds 60       break everything under a mixed load, and check
  python3 dev.py chaos --patroni          the same on a PostgreSQL that fails over
  python3 dev.py chaos --hosts            the same with cuts in the network between hosts
  python3 dev.py chaos --crashes          let jobs kill their workers under a supervisor
  python3 dev.py chaos --workflows        kill a workflow at each of its storage calls
  python3 dev.py soak --minutes 10        a steady load: does anything grow or slow down?
  python3 dev.py recovery                 how soon a killed worker's job runs again
  python3 dev.py limits                   kill workers that race for limits
  python3 dev.py simulate --seeds 1000    whole fleets in one thread: a seed is a run
  python3 dev.py flood --seconds 20       attack a server: its memory, and others' claims
  python3 dev.py mutate --only keys.      guards removed one at a time: a test must fail
  python3 dev.py fuzz --minutes 10        hostile input for the server, the dashboard, parsers
  python3 dev.py models limits            check the model of limits; without a name, all
  python3 dev.py postgres                 a scratch PostgreSQL until Ctrl-C
  python3 dev.py record                   type the quickstart, and keep what it shows
  python3 dev.py screenshots overview     take pictures of the dashboard; without a name, all

environment:
  PULSED_TEST_POSTGRES      URL of a PostgreSQL to test against, instead of a scratch one
  PULSED_TEST_POSTGRES_BIN  directory of PostgreSQL binaries for the scratch server, or `wheel`
  PULSED_CHROMIUM           a Chromium to test the dashboard with, or `npm` for a fetched one
"""


# Setting up .venv


def wanted_stamp() -> dict[str, str]:
    """What .venv depends on: when one of these changes it is brought up to date."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needs = json.dumps([project["build-system"], project["project"]], sort_keys=True).encode()
    pins = (ROOT / "constraints.txt").read_bytes()
    return {
        "python": "%s %d.%d" % (sys.implementation.name, *sys.version_info[:2]),
        "root": str(ROOT),  # an editable install points here; a moved clone is a new one
        "needs": hashlib.sha256(needs + pins).hexdigest(),
    }


def found_stamp() -> dict[str, str]:
    """What .venv was last completed for; empty if it never was, or no longer runs."""
    if not PYTHON.exists():
        return {}
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def ensure_venv() -> None:
    """Bring .venv up to date; two invocations at once are safe."""
    wanted = wanted_stamp()
    if found_stamp() == wanted:
        return
    with file_lock(ROOT / ".venv.lock"):
        found = found_stamp()
        if found != wanted:
            build_venv(wanted, found)


def build_venv(wanted: dict[str, str], found: dict[str, str]) -> None:
    """Create or update .venv and stamp it; the stamp comes last, so a broken run is redone."""
    same_home = all(found.get(key) == wanted[key] for key in ("python", "root"))
    if same_home:
        say("updating .venv (its dependencies changed)…")
        STAMP.unlink()
    else:
        say("setting up .venv (first run, about a minute)…")
        create_venv(with_pip=False)
    install()
    STAMP.write_text(json.dumps(wanted), encoding="utf-8")


def create_venv(*, with_pip: bool) -> None:
    """Make an empty .venv, replacing one made by another Python or elsewhere."""
    try:
        import venv
    except ImportError:
        sys.exit("this Python has no `venv` module; on Debian or Ubuntu: apt install python3-venv")
    builder = venv.EnvBuilder(clear=True, symlinks=os.name != "nt", with_pip=with_pip)
    builder.create(VENV)


def install() -> None:
    """Install pulsed (editable), its extras and the tools; pip is heard only when it fails."""
    wanted = ["-c", "constraints.txt", "-e", ".[all,dev]"]
    # PIP_USER: a user's configuration must not send packages to ~/.local.
    env = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [*installer(), *wanted]
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        say(done.stdout.decode(errors="replace"))
        sys.exit("could not set up .venv; this failed: " + " ".join(command))


def installer() -> list[str]:
    """The start of a command that installs into .venv, by whatever this machine has."""
    # An outer pip is quickest. It is asked of the running Python, then of the one below its venv.
    for python in dict.fromkeys([sys.executable, getattr(sys, "_base_executable", "")]):
        if python and pip_version(python) >= (22, 3):  # the first with --python
            return [python, "-m", "pip", "--python", str(PYTHON), "install"]
    if pip_version(str(PYTHON)) > (0, 0):
        return [str(PYTHON), "-m", "pip", "install"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--python", str(PYTHON)]
    return bundled_pip()


def bundled_pip() -> list[str]:
    """Give .venv the pip that Python carries inside; some distributions take it out."""
    try:
        create_venv(with_pip=True)
    except (subprocess.CalledProcessError, ImportError):
        sys.exit(
            "this Python has neither pip (22.3 or newer) nor ensurepip, nor is there uv;\n"
            "on Debian or Ubuntu: apt install python3-pip (or python3-venv), then try again"
        )
    return [str(PYTHON), "-m", "pip", "install"]


def pip_version(python: str) -> tuple[int, int]:
    """The (major, minor) of a Python's pip; (0, 0) if it has none."""
    asked = subprocess.run(
        [python, "-m", "pip", "--version"], capture_output=True, text=True, check=False
    )
    found = re.match(r"pip (\d+)\.(\d+)", asked.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; it goes with the process, however that ends."""
    with path.open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Commands


def demo(arguments: list[str]) -> NoReturn:
    """Run the demonstration."""
    become("examples/demo.py", *arguments)


def test(arguments: list[str]) -> NoReturn:
    """Run the test suite; arguments go to pytest."""
    keep_bytecode()
    # More than there are processors, because tests wait for other processes most of the time.
    # Eight: beyond that the workers wait for the one database server, not for a processor.
    processes = min((os.cpu_count() or 2) + 3, 8)
    # Each gets a part of the files and takes from others when it is done, so that the tests of a
    # file share what is made for the file.
    become("-m", "pytest", "-n", str(processes), "--dist", "worksteal", *arguments)


def check(arguments: list[str]) -> NoReturn:
    """Check lint, formatting, types and import layers."""
    if arguments:
        sys.exit("check takes no arguments")
    steps = [
        ["-m", "ruff", "check", "."],
        ["-m", "ruff", "format", "--check", "."],
        ["-m", "mypy"],
        ["tools/layers.py"],
    ]
    # All of them, also after one failed: whoever fixes things wants the whole list.
    failed = [step for step in steps if run(*step)]
    sys.exit("failed: " + ", ".join(" ".join(step) for step in failed) if failed else 0)


def build(arguments: list[str]) -> NoReturn:
    """Build the distributions into dist/, check them, and install the wheel once to try it."""
    become("tools/build.py", *arguments)


def bench(arguments: list[str]) -> NoReturn:
    """Measure speed beside the raw drivers and other queues; see `bench --help`."""
    become("-m", "benchmarks", *arguments)


def fuzz(arguments: list[str]) -> NoReturn:
    """Send hostile input to the server, the dashboard and every parser; see `fuzz --help`."""
    become("-m", "tests.fuzz", *arguments)


def limits(arguments: list[str]) -> NoReturn:
    """Kill workers that race for limits; see `limits --help`."""
    become("-m", "tests.limit_races", *arguments)


def chaos(arguments: list[str]) -> NoReturn:
    """Break workers, servers, databases and networks under load; see `chaos --help`."""
    become("-m", "tests.chaos", *arguments)


def soak(arguments: list[str]) -> NoReturn:
    """Load a database evenly for a long time; nothing may grow or slow down; see `soak --help`."""
    become("-m", "tests.soak", *arguments)


def recovery(arguments: list[str]) -> NoReturn:
    """Measure how soon a killed worker's job runs again, beside other queues."""
    become("-m", "benchmarks.recovery", *arguments)


def simulate(arguments: list[str]) -> NoReturn:
    """Run fleets in simulated time, with faults from seeds; see `simulate --help`."""
    become("-m", "tests.simulation", *arguments)


def flood(arguments: list[str]) -> NoReturn:
    """Send a server the worst there is; says what that does to memory and to others' claims."""
    become("-m", "tests.flood", *arguments)


def lowest(arguments: list[str]) -> NoReturn:
    """Run the test suite with the oldest dependencies allowed; arguments go to pytest."""
    keep_bytecode()
    become("tools/lowest.py", *arguments)


def django(arguments: list[str]) -> NoReturn:
    """Run Django's own tests of task backends against ours; see `django --help`."""
    become("-m", "tests.django_suite", *arguments)


def docs(arguments: list[str]) -> NoReturn:
    """Build the documentation as a site, in site/; a broken link fails."""
    become("-m", "tools.site", *arguments)


def proto(arguments: list[str]) -> NoReturn:
    """Make the generated code from proto/; needs a package index."""
    become("tools/proto.py", *arguments)


def setup(arguments: list[str]) -> NoReturn:
    """Only bring .venv up to date, and fetch a browser if the system has none."""
    if arguments:
        sys.exit("setup takes no arguments")
    say(".venv is ready: " + str(PYTHON))
    become("-m", "tools.browser")


def mutate(arguments: list[str]) -> NoReturn:
    """Remove guards from statements, one at a time: a test must fail; see `mutate --help`."""
    become("-m", "tests.mutation", *arguments)


def reliability(arguments: list[str]) -> NoReturn:
    """Write docs/reliability.md from docs/faults.md and the figures of the last runs."""
    if arguments:
        sys.exit("reliability takes no arguments")
    become("tools/reliability.py")


def models(arguments: list[str]) -> NoReturn:
    """Check the models of leases, fires, fan-outs and limits; needs Spin and a C compiler."""
    become("tools/models.py", *arguments)


def postgres(arguments: list[str]) -> NoReturn:
    """Start a scratch PostgreSQL, print its URL, run until Ctrl-C."""
    become("-m", "tests.support.scratch_postgres", *arguments)


def record(arguments: list[str]) -> NoReturn:
    """Record the first five minutes of a user: writes docs/first-session.txt."""
    if arguments:
        sys.exit("record takes no arguments")
    become("-m", "tools.record")


def screenshots(arguments: list[str]) -> NoReturn:
    """Take the pictures of the dashboard in docs/images, all or those that are named."""
    become("-m", "tools.screenshots", *arguments)


Command = Callable[[list[str]], NoReturn]
COMMANDS: dict[str, Command] = {
    command.__name__: command
    for command in (
        demo,
        test,
        lowest,
        check,
        build,
        docs,
        django,
        bench,
        chaos,
        soak,
        recovery,
        limits,
        flood,
        fuzz,
        simulate,
        mutate,
        models,
        reliability,
        postgres,
        proto,
        record,
        screenshots,
        setup,
    )
}


# Running


def run(*arguments: str) -> int:
    """Run .venv's Python and return its exit code."""
    return subprocess.run([str(PYTHON), *arguments], cwd=ROOT, check=False).returncode


def become(*arguments: str) -> NoReturn:
    """Turn into .venv's Python, so that signals and exit codes need no relay."""
    if os.name == "nt":  # exec there returns to the shell at once
        sys.exit(run(*arguments))
    os.chdir(ROOT)
    sys.stdout.flush()
    os.execv(PYTHON, [str(PYTHON), *arguments])


def keep_bytecode() -> None:
    """Compile each module once, not in every process that tests start, whatever the machine says.

    Where bytecode is unwanted it would otherwise cost 0.1 s a process; in .venv nobody sees it.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        bytecode = VENV / "bytecode"
        if not bytecode.exists() and os.name != "nt":
            link_bytecode(bytecode)
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(bytecode))


def link_bytecode(folder: Path) -> None:
    """Offer what packages were installed with, which Python does not read once this is set.

    Each process of the first run would otherwise compile it: 2 s of a processor, five times.
    """
    for compiled in VENV.glob("lib/**/__pycache__/*.pyc"):
        home = folder / compiled.parents[1].relative_to("/")
        home.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # no links here, or another run was first
            os.link(str(compiled), str(home / compiled.name))


def say(message: str) -> None:
    """Tell the user something; stdout belongs to the command's own output."""
    print(message, file=sys.stderr, flush=True)


def usage() -> str:
    """The help text."""
    width = max(map(len, COMMANDS))
    lines = ("  %s  %s" % (name.ljust(width), COMMANDS[name].__doc__) for name in COMMANDS)
    return USAGE.format(commands="\n".join(lines))


def main(arguments: list[str]) -> NoReturn:
    """Find the command, prepare .venv, run."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        sys.exit(0 if arguments else 2)
    command = COMMANDS.get(arguments[0])
    if command is None:
        sys.exit("dev.py has no command %r; see python3 dev.py --help" % arguments[0])
    ensure_venv()
    command(arguments[1:])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
