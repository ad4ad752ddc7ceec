"""Where a storm takes place: a database, what is between it and the workers, and what can break."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.chaos import disk, faults
from tests.chaos.faults import Fault
from tests.chaos.fleet import Fleet, run_module
from tests.chaos.load import LEDGER, POLL, TICK, TX
from tests.chaos.proxy import FaultyProxy
from tests.chaos.scans import keep_scans
from tests.chaos.tables import reading
from tests.support.scratch_postgres import ScratchPostgres, free_port

SERVERS = 2
SERVER_POLL = 1.0
SKEWS = ("0", "3600", "-3600")


class Site:
    """One place. Its processes are started by the storm, its faults are picked by it."""

    engine = ""
    title = ""
    poll = POLL
    """Seconds between two polls of what looks for jobs."""
    tx = True
    """Whether steps may have a transaction."""
    has_small_disk = True
    size_of_disk = 256
    calm = (1.0, 4.0)
    """Seconds between two outages."""
    patience = 120.0
    """Seconds in which the rest must drain."""

    def __init__(self, workers: int, rng: random.Random) -> None:
        self.rng = rng
        self.left_out: list[str] = []
        """Faults that this machine does not permit, and why."""
        self.workers = Fleet(self.start_worker, workers, rng)
        self.deaf = False
        """Whether processes that start from now on hear no notification."""

    @classmethod
    def lacking(cls) -> str:
        """Return what this machine lacks for it, and what to do; empty if nothing."""
        return ""

    @property
    def option(self) -> str:
        """How a user chooses it."""
        return f"--engine {self.engine}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsed-chaos-"))
            )
            self.folder.chmod(0o755)
            self.disk = self.folder / "disk"
            self.disk.mkdir()
            self._mount(stack)
            self.open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _mount(self, stack: ExitStack) -> None:
        if not self.has_small_disk:
            return
        if disk.mount(self.disk, self.size_of_disk):
            stack.callback(disk.unmount, self.disk)
        else:
            self.left_out.append("disk full: mounting a small disk is not permitted here")
            self.has_small_disk = False

    def open(self, stack: ExitStack) -> None:
        """Start what the workers need."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where the tables are read, past everything that breaks on purpose."""
        raise NotImplementedError

    @property
    def app_url(self) -> str:
        """What workers and producers are given."""
        return self.url

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def fleets(self) -> list[Fleet]:
        return [self.workers]

    def faults(self) -> list[Fault]:
        return faults.of_workers(self.workers)

    def environment(self) -> dict[str, str]:
        """Return what every worker is told."""
        deaf = {"PULSED_CHAOS_DEAF": "1"} if self.deaf else {}
        return {LEDGER: str(self.ledger), TX: "1" if self.tx else "0"} | deaf

    def start_worker(self, place: int) -> subprocess.Popen[bytes]:
        return run_module(["tests.chaos.load", "work", self.app_url], **self.environment())

    def launch(self) -> None:
        """Start all processes."""
        self.workers.launch()

    def replace_the_dead(self) -> None:
        for fleet in self.fleets:
            fleet.replace_the_dead()

    def recover(self) -> None:
        """Wait until what was healed works again."""

    def lose_notifications(self) -> None:
        """Replace all processes by such as only poll."""
        self.deaf = True
        self.end()
        self.launch()

    def end(self) -> None:
        for fleet in self.fleets:
            fleet.end()


class SqliteSite(Site):
    """Workers on one file."""

    engine = "sqlite"
    title = "SQLite"

    def open(self, stack: ExitStack) -> None:
        """A file needs nothing."""

    @property
    def url(self) -> str:
        return f"sqlite:///{self.disk}/jobs.db"

    def faults(self) -> list[Fault]:
        found = [*super().faults(), faults.of_file(self.url)]
        return [*found, faults.of_disk(self.disk)] if self.has_small_disk else found


class PostgresSite(Site):
    """Workers on PostgreSQL, through a network that fails; some with a wrong clock."""

    engine = "postgres"
    title = "PostgreSQL"
    size_of_disk = 1024

    def open(self, stack: ExitStack) -> None:
        self.postgres = ScratchPostgres(
            directory=self.disk / "postgres", settings={"max_wal_size": "200MB"}
        )
        stack.enter_context(self.postgres)
        self.proxy = stack.enter_context(FaultyProxy("127.0.0.1", self.postgres.port))
        self.skew = self._shim()
        if self.skew is None:
            self.left_out.append("wrong clocks: there is no C compiler")

    def _shim(self) -> Path | None:
        """Compile what gives a worker a wrong clock."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        shim = self.folder / "skew.so"
        source = Path(__file__).with_name("skew.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O", "-o", shim, source, "-ldl"], check=True)
        return shim

    @property
    def url(self) -> str:
        return self.postgres.url

    @property
    def proxied_url(self) -> str:
        """Through a network that fails."""
        return f"postgresql://postgres@127.0.0.1:{self.proxy.port}/postgres"

    @property
    def app_url(self) -> str:
        return self.proxied_url

    def environment(self) -> dict[str, str]:
        told = super().environment()
        if self.skew is None:
            return told
        return told | {"LD_PRELOAD": str(self.skew), "PULSED_SKEW": self.rng.choice(SKEWS)}

    def faults(self) -> list[Fault]:
        found = [
            *super().faults(),
            *faults.of_postgres(self.postgres, self.rng),
            *faults.of_network(self.proxy, self.rng, "the database"),
        ]
        if self.has_small_disk:
            found.append(faults.of_disk(self.disk, self.postgres.start))
        return found


class ServedSite(Site):
    """A site with servers, which are killed and frozen too; where they are is up to the site."""

    poll = SERVER_POLL
    addresses: list[tuple[str, int]]
    """Where the servers listen."""

    def __init__(self, workers: int, rng: random.Random) -> None:
        super().__init__(workers, rng)
        self.servers = Fleet(self.start_server, SERVERS, rng)

    @property
    def fleets(self) -> list[Fleet]:
        return [self.workers, self.servers]

    def launch(self) -> None:
        self.servers.launch()
        for address in self.addresses:
            wait_for(*address)
        super().launch()

    def start_server(self, place: int) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def serve(self, url: str, *options: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a server on a database."""
        arguments = ["tests.chaos.load", "serve", "--url", url, "--tick", f"{TICK}s", *options]
        return run_module(arguments, before, **self.environment())

    def all_serve(self) -> bool:
        """Whether every server is up: the last that answers is left alone."""
        return not self.servers.asleep and all(is_up(*address) for address in self.addresses)

    def faults(self) -> list[Fault]:
        return [*super().faults(), *faults.of_workers(self.servers, "server", self.all_serve)]


class ServerSite(ServedSite, PostgresSite):
    """Workers and producers that reach PostgreSQL only through two servers."""

    engine = "server"
    title = "Two servers on PostgreSQL"
    tx = False

    def open(self, stack: ExitStack) -> None:
        super().open(stack)
        self.addresses = [("127.0.0.1", free_port()) for _ in range(SERVERS)]
        self.doors = [stack.enter_context(FaultyProxy(*address)) for address in self.addresses]
        self.left_out.append("wrong clocks: gRPC waits by the wall clock; see --engine postgres")
        self.skew = None

    @property
    def app_url(self) -> str:
        return "pulse://" + ",".join(f"127.0.0.1:{door.port}" for door in self.doors)

    def start_server(self, place: int) -> subprocess.Popen[bytes]:
        host, port = self.addresses[place]
        return self.serve(self.proxied_url, "--listen", f"{host}:{port}")

    def faults(self) -> list[Fault]:
        found = super().faults()
        for number, door in enumerate(self.doors, 1):
            found += faults.of_network(door, self.rng, f"server {number}")
        return found


def make_tables(site: Site) -> None:
    """Create pulsed's tables, and the one that steps write to."""
    from pulsed import Pulse  # noqa: PLC0415

    with Pulse(site.url) as app:
        app.jobs.counts()
    with reading(site.url) as query:
        query("CREATE TABLE chaos_effects (n BIGINT NOT NULL, step TEXT NOT NULL)")
        keep_scans(query, is_file=site.url.startswith("sqlite"))


def is_up(host: str, port: int) -> bool:
    """Whether anything listens there."""
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def wait_for(host: str, port: int, patience: float = 120.0) -> None:
    """Wait until something listens there."""
    give_up_at = time.monotonic() + patience
    while not is_up(host, port):
        assert time.monotonic() < give_up_at, f"nothing ever listened on {host}:{port}"
        time.sleep(0.05)
