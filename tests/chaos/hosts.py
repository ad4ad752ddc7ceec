"""Workers and servers on hosts of their own, between which the network is cut.

A host is a network namespace: the storm and the database are in one, each worker and server has
another, and a bridge joins them. All of it is gone with its processes. A link is cut by pointing a
neighbour's address at a machine that does not exist, so packets vanish silently, in one direction
or in both.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import faults
from tests.chaos.faults import Course, Fault
from tests.chaos.fleet import run_module
from tests.chaos.load import LEASE, QUEUES, TX
from tests.chaos.sites import SERVERS, ServedSite
from tests.chaos.tables import reading
from tests.support.scratch_postgres import ScratchPostgres

CLONE_NEWNET = 0x40000000
"""From the kernel's headers."""
NETWORK = "10.77.0"
DATABASE = f"{NETWORK}.1"
PORT = 50051
NOBODY = "02:00:00:00:de:ad"
"""The address of a network card that does not exist."""


def ip(*arguments: str, inside: int | None = None) -> None:
    """Run ``ip``, perhaps in the namespace of another process."""
    subprocess.run([*_enter(inside), "ip", *arguments], check=True, capture_output=True)


def _enter(pid: int | None) -> list[str]:
    return [] if pid is None else ["nsenter", "-t", str(pid), "-n"]


@dataclass
class Host:
    """A namespace with one address."""

    name: str
    address: str
    pid: int | None
    """A process that keeps it; None is the host of the database and the storm."""

    def cannot_reach(self, other: Host) -> None:
        """Lose everything from here to there."""
        ip("neigh", "replace", other.address, *self._lost, inside=self.pid)

    def reaches(self, other: Host) -> None:
        """Lose no more."""
        ip("neigh", "replace", other.address, "dev", self._card, "nud", "failed", inside=self.pid)
        ip("neigh", "flush", "to", other.address, "nud", "all", inside=self.pid)

    @property
    def _lost(self) -> tuple[str, ...]:
        return ("lladdr", NOBODY, "dev", self._card, "nud", "permanent")

    @property
    def _card(self) -> str:
        return "bridge" if self.pid is None else "eth0"


class HostsSite(ServedSite):
    """Two workers on the database, two behind servers, two servers: each on a host of its own."""

    engine = "hosts"
    title = "Hosts apart, PostgreSQL"
    has_small_disk = False

    @classmethod
    def lacking(cls) -> str:
        if any(shutil.which(program) is None for program in ("ip", "nsenter", "unshare")):
            return "network namespaces need `ip` and `nsenter`; apt-get install iproute2 util-linux"
        tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
        return "network namespaces are not permitted here" if tried.returncode else ""

    @property
    def option(self) -> str:
        return "--hosts"

    def open(self, stack: ExitStack) -> None:
        if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
            raise OSError("this process may not leave its network")
        ip("link", "set", "lo", "up")
        ip("link", "add", "bridge", "type", "bridge")
        ip("address", "add", f"{DATABASE}/24", "dev", "bridge")
        ip("link", "set", "bridge", "up")
        self.database = Host("database", DATABASE, None)
        self.server_hosts = [self._host(stack, f"server{n}", 10 + n) for n in range(SERVERS)]
        self.addresses = [(host.address, PORT) for host in self.server_hosts]
        self.worker_hosts = [
            self._host(stack, f"worker{n}", 20 + n) for n in range(self.workers.size)
        ]
        self.postgres = stack.enter_context(ScratchPostgres(settings={"listen_addresses": "*"}))
        with (self.postgres.directory / "data" / "pg_hba.conf").open(
            "a", encoding="utf-8"
        ) as rules:
            rules.write(f"host all all {NETWORK}.0/24 trust\n")
        with reading(self.url) as query:
            query("SELECT pg_reload_conf()")

    def _host(self, stack: ExitStack, name: str, number: int) -> Host:
        keeper = subprocess.Popen(
            ["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL
        )
        stack.callback(keeper.wait)
        stack.callback(keeper.kill)
        _wait_for_namespace(keeper.pid)
        cable = f"cable{number}"
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
        ip("link", "set", cable, "master", "bridge", "up")
        host = Host(name, f"{NETWORK}.{number}", keeper.pid)
        ip("link", "set", "lo", "up", inside=host.pid)
        ip("address", "add", f"{host.address}/24", "dev", "eth0", inside=host.pid)
        ip("link", "set", "eth0", "up", inside=host.pid)
        return host

    @property
    def url(self) -> str:
        return self.postgres.url

    def start_worker(self, place: int) -> subprocess.Popen[bytes]:
        url, told = self._database_url, {}
        if place % 2:
            # A server offers no transaction for steps: orders are left to the others.
            url = "pulse://" + ",".join(f"{host.address}:{PORT}" for host in self.server_hosts)
            told = {TX: "0", QUEUES: "default"}
        arguments = ["tests.chaos.load", "work", url]
        environment = self.environment() | told
        return run_module(arguments, before=_enter(self.worker_hosts[place].pid), **environment)

    def start_server(self, place: int) -> subprocess.Popen[bytes]:
        host = self.server_hosts[place]
        listen = ("--listen", f"{host.address}:{PORT}", "--insecure", "--no-auth")
        return self.serve(self._database_url, *listen, before=_enter(host.pid))

    @property
    def _database_url(self) -> str:
        return f"postgresql://postgres@{DATABASE}:{self.postgres.port}/postgres"

    def faults(self) -> list[Fault]:
        return [*super().faults(), *self._partitions()]

    def _partitions(self) -> list[Fault]:
        """Links between two hosts, one way or both; and three at once, healed in every order."""
        rng, orders = self.rng, itertools.cycle(itertools.permutations(range(3)))

        def link(*, ways: int) -> faults.Strike:
            def strike() -> Course:
                one, other = self._some_link(rng)
                yield from _cut([(one, other), (other, one)][:ways], rng.uniform(0.5, 4 * LEASE))

            return strike

        def alone(host: Host) -> Course:
            others = [h for h in self._all() if h is not host]
            links = [pair for other in others for pair in ((host, other), (other, host))]
            yield from _cut(links, rng.uniform(0.5, 4 * LEASE))

        def three() -> Course:
            worker, server = rng.choice(self.worker_hosts), rng.choice(self.server_hosts)
            links = [(worker, self.database), (worker, server), (server, self.database)]
            cuts = [_cut([(a, b), (b, a)], 0.0) for a, b in links]
            try:
                for cut in cuts:
                    next(cut)
                yield 2 * LEASE
                for number in next(orders):
                    cuts[number].close()
                    yield LEASE
            finally:
                for cut in cuts:
                    cut.close()

        return [
            Fault("link cut one way", link(ways=1), 8),
            Fault("link cut both ways", link(ways=2), 8),
            Fault("a worker's host cut off", lambda: alone(rng.choice(self.worker_hosts)), 3),
            Fault("a server's host cut off", lambda: alone(rng.choice(self.server_hosts)), 3),
            Fault("the database's host cut off", lambda: alone(self.database), 1, is_outage=True),
            Fault("three links cut, healed in another order each time", three, 4),
        ]

    def _all(self) -> list[Host]:
        return [self.database, *self.server_hosts, *self.worker_hosts]

    def _some_link(self, rng: random.Random) -> tuple[Host, Host]:
        """Choose a link that is used, in either direction."""
        used = [(host, self.database) for host in self.server_hosts]
        for place, host in enumerate(self.worker_hosts):
            used += [(host, s) for s in self.server_hosts] if place % 2 else [(host, self.database)]
        one, other = rng.choice(used)
        return (one, other) if rng.random() < 0.5 else (other, one)


def _cut(links: list[tuple[Host, Host]], seconds: float) -> Course:
    for one, other in links:
        one.cannot_reach(other)
    try:
        yield seconds
    finally:
        for one, other in links:
            one.reaches(other)


def _wait_for_namespace(pid: int) -> None:
    """Wait until a process has left our network."""
    while Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
        os.sched_yield()
