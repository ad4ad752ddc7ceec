"""Workers of every kind on a PostgreSQL that fails over."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.chaos import faults
from tests.chaos.cluster import STUCK_AFTER, TTL, Cluster, Node, missing
from tests.chaos.faults import Course, Fault
from tests.chaos.fleet import run_module
from tests.chaos.load import POOLED, QUEUES, TX
from tests.chaos.sites import SERVERS, ServedSite
from tests.support.scratch_postgres import free_port

WORKERS = 4
"""One of each kind: through HAProxy, with several hosts, through PgBouncer, through servers."""


class PatroniSite(ServedSite):
    """Three nodes under Patroni; a worker and a server for every way to reach them."""

    engine = "patroni"
    title = "PostgreSQL under Patroni"
    has_small_disk = False
    calm = (8.0, 15.0)
    patience = 300.0

    @classmethod
    def lacking(cls) -> str:
        packages = " ".join(missing())
        return packages and f"these packages are not installed; apt-get install {packages}"

    @property
    def option(self) -> str:
        return "--patroni"

    def __init__(self, workers: int, rng: random.Random) -> None:
        super().__init__(max(workers, WORKERS), rng)

    def open(self, stack: ExitStack) -> None:
        self.cluster = stack.enter_context(Cluster(self.disk))
        self.addresses = [("127.0.0.1", free_port()) for _ in range(SERVERS)]

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def app_url(self) -> str:
        return self.cluster.hosts_url

    def replace_the_dead(self) -> None:
        super().replace_the_dead()
        self.cluster.replace_the_dead()

    def recover(self) -> None:
        self.cluster.wait_until_whole()

    def start_worker(self, place: int) -> subprocess.Popen[bytes]:
        servers = "pulse://" + ",".join(f"{host}:{port}" for host, port in self.addresses)
        url, told = [
            (self.cluster.url, {}),
            (self.cluster.hosts_url, {}),
            (self.cluster.pooled_url, {POOLED: "1"}),
            # A server offers no transaction for steps: orders are left to the others.
            (servers, {TX: "0", QUEUES: "default"}),
        ][place % WORKERS]
        return run_module(["tests.chaos.load", "work", url], **self.environment() | told)

    def start_server(self, place: int) -> subprocess.Popen[bytes]:
        url = [self.cluster.url, self.cluster.hosts_url][place % 2]
        host, port = self.addresses[place]
        return self.serve(url, "--listen", f"{host}:{port}")

    def faults(self) -> list[Fault]:
        return [*super().faults(), *of_cluster(self.cluster, self.rng)]


def of_cluster(cluster: Cluster, rng: random.Random) -> list[Fault]:
    """The primary dies, hangs and hands over; a standby dies. Each is waited out."""

    def on(find: Callable[[], Node | None], act: Callable[[Node], Course]) -> faults.Strike:
        def strike() -> Course:
            if (node := find()) is not None:
                yield from act(node)
            yield from _whole(cluster)

        return strike

    def kill_database(node: Node) -> Course:
        cluster.kill_database(node)
        yield 1.0

    def kill_machine(node: Node) -> Course:
        cluster.kill_machine(node)
        try:
            yield rng.uniform(0.5, 1.5) * TTL
        finally:
            cluster.revive(node)

    def freeze(node: Node) -> Course:
        cluster.freeze(node)
        try:
            yield TTL + 10.0
        finally:
            cluster.thaw(node)

    def switch_over(_: Node) -> Course:
        cluster.switch_over()
        yield 1.0

    primary, replica = cluster.primary, cluster.replica
    return [
        Fault("primary killed", on(primary, kill_database), 3, is_outage=True),
        Fault("primary's machine lost", on(primary, kill_machine), 2, is_outage=True),
        Fault("primary frozen and thawed", on(primary, freeze), 2, is_outage=True),
        Fault("switchover", on(primary, switch_over), 3, is_outage=True),
        Fault("standby killed", on(replica, kill_database), 1, is_outage=True),
        Fault("standby's machine lost", on(replica, kill_machine), 1, is_outage=True),
    ]


def _whole(cluster: Cluster) -> Course:
    """Wait until there is a primary with a standby again."""
    again = time.monotonic() + STUCK_AFTER
    while not cluster.is_whole():
        if time.monotonic() > again:
            cluster.restart_patroni()
            again += STUCK_AFTER
        yield 0.3
