"""A highly available PostgreSQL: three nodes under Patroni with etcd, HAProxy and PgBouncer.

All of it from Debian's packages, on the loopback address, in a folder that is removed. The nodes
replicate synchronously and strictly, as docs/high-availability.md recommends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.support.scratch_postgres import children, free_port, send_signal

PROGRAMS = {
    "patroni": "patroni",
    "etcd": "etcd-server",
    "haproxy": "haproxy",
    "pgbouncer": "pgbouncer",
    "setpriv": "util-linux",
}
"""What is needed, and the package of Debian that has it."""
TTL = 20
"""Seconds without a word after which a leader is replaced; Patroni allows no fewer."""
NODES = 3
START_SECONDS = 180.0
STUCK_AFTER = 45.0
"""Seconds after which an operator would restart Patroni."""
SYSTEM_PATHS = "/usr/local/sbin:/usr/sbin:/sbin"


def missing() -> list[str]:
    """Return the packages that this machine lacks."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATHS}"
    packages = [
        package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)
    ]
    return packages if _binaries() else [*packages, "postgresql"]


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))
    return found[-1].parent if found else None


@dataclass
class Node:
    """One PostgreSQL with its Patroni."""

    name: str
    port: int
    rest: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def postmaster(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        return None

    @property
    def processes(self) -> list[int]:
        """The database's, the postmaster first."""
        postmaster = self.postmaster
        return [] if postmaster is None else [postmaster, *children(postmaster)]

    @property
    def is_primary(self) -> bool:
        return self.asked("/primary")

    @property
    def is_replica(self) -> bool:
        return self.asked("/replica")

    def asked(self, path: str) -> bool:
        url = f"http://127.0.0.1:{self.rest}{path}"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
        return False


@dataclass
class Cluster:
    """All of it."""

    folder: Path
    nodes: list[Node] = field(default_factory=list)
    _others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _down: set[str] = field(default_factory=set)
    """Nodes whose Patroni is to stay away for now."""

    def __enter__(self) -> Self:
        self._own(self.folder)
        self.etcd, self.haproxy, self.bouncer = free_port(), free_port(), free_port()
        try:
            self._start_etcd()
            for number in range(1, NODES + 1):
                self._add(f"node{number}")
            self._start_haproxy()
            self._start_bouncer()
            self.wait_until_whole()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        running = [node.process for node in self.nodes if node.process]
        for node in self.nodes:
            self.thaw(node)
        for process in [*running, *self._others]:
            process.terminate()
        for process in [*running, *self._others]:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in self.nodes:
            self._kill(node.processes)

    # -- addresses ------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Through HAProxy to the primary."""
        return f"postgresql://postgres@127.0.0.1:{self.haproxy}/postgres"

    @property
    def hosts_url(self) -> str:
        """All nodes, of which the client finds the primary."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres"

    @property
    def pooled_url(self) -> str:
        """Through PgBouncer, in transaction mode, and HAProxy."""
        return f"postgresql://postgres@127.0.0.1:{self.bouncer}/postgres"

    # -- what happens to nodes ------------------------------------------------------------------

    def primary(self) -> Node | None:
        return next((node for node in self.nodes if node.is_primary), None)

    def replica(self) -> Node | None:
        return next((node for node in self.nodes if node.is_replica), None)

    def kill_database(self, node: Node) -> None:
        """SIGKILL all of its processes; its Patroni goes on, and starts it again as a standby."""
        self._kill(node.processes)

    def kill_machine(self, node: Node) -> None:
        """SIGKILL Patroni as well; it stays away until `revive`."""
        self._down.add(node.name)
        if node.process is not None:
            node.process.kill()
            node.process.wait()
        self._kill(node.processes)

    def revive(self, node: Node) -> None:
        self._down.discard(node.name)
        self._start(node)

    def freeze(self, node: Node) -> None:
        """SIGSTOP everything of it, as a machine that hangs."""
        for pid in self._all(node):
            send_signal(pid, signal.SIGSTOP)

    def thaw(self, node: Node) -> None:
        for pid in self._all(node):
            send_signal(pid, signal.SIGCONT)

    def switch_over(self) -> None:
        """Ask the leader to give its role away."""
        node = self.primary()
        if node is None:
            return
        body = json.dumps({"leader": node.name}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{node.rest}/switchover", body)
        with contextlib.suppress(OSError):
            urllib.request.urlopen(request, timeout=60).close()

    def replace_the_dead(self) -> None:
        """Start a Patroni that has ended, as a service manager does."""
        for node in self.nodes:
            if node.name not in self._down and node.process and node.process.poll() is not None:
                self._start(node)

    def restart_patroni(self) -> None:
        """Kill the leader's Patroni, not its database, and start it again."""
        node = self.primary()
        if node is not None and node.process is not None:
            node.process.kill()
            node.process.wait()
            self._start(node)

    def is_whole(self) -> bool:
        """Whether there is a primary with a synchronous standby."""
        return bool(self.primary()) and any(node.asked("/synchronous") for node in self.nodes)

    def wait_until_whole(self) -> None:
        """Wait for a primary and a synchronous standby."""
        began = time.monotonic()
        again = began + STUCK_AFTER
        while not self.is_whole():
            if time.monotonic() > began + START_SECONDS:
                raise TimeoutError(f"no primary with a standby:\n{self._last_words()}")
            if time.monotonic() > again:  # whatever it waits for
                self.restart_patroni()
                again += STUCK_AFTER
            self.replace_the_dead()
            time.sleep(0.2)

    def _all(self, node: Node) -> list[int]:
        patroni = [node.process.pid] if node.process and node.process.poll() is None else []
        return [*patroni, *node.processes]

    @staticmethod
    def _kill(pids: list[int]) -> None:
        for pid in pids[:1]:
            send_signal(pid, signal.SIGSTOP)  # so that it cannot fork another one
        for pid in pids:
            send_signal(pid, signal.SIGKILL)

    # -- starting -------------------------------------------------------------------------------

    def _start_etcd(self) -> None:
        peers = free_port()
        self._others.append(
            self._run(
                "etcd",
                *("etcd", "--data-dir", str(self.folder / "etcd-data"), "--enable-v2"),
                *("--listen-client-urls", f"http://127.0.0.1:{self.etcd}"),
                *("--advertise-client-urls", f"http://127.0.0.1:{self.etcd}"),
                *("--listen-peer-urls", f"http://127.0.0.1:{peers}"),
            )
        )

    def _add(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        self._own(folder)
        node = Node(name, free_port(), free_port(), folder)
        self.nodes.append(node)
        config = folder / "patroni.json"  # JSON is YAML
        config.write_text(json.dumps(self._config(node)), encoding="utf-8")
        self._start(node)
        if len(self.nodes) == 1:
            deadline = time.monotonic() + START_SECONDS
            while not node.is_primary:
                assert time.monotonic() < deadline, self._last_words()
                time.sleep(0.2)

    def _start(self, node: Node) -> None:
        node.process = self._run(node.name, "patroni", str(node.folder / "patroni.json"))

    def _config(self, node: Node) -> dict[str, Any]:
        user = {"username": "postgres"}
        return {
            "scope": "chaos",
            "name": node.name,
            "restapi": {
                "listen": f"127.0.0.1:{node.rest}",
                "connect_address": f"127.0.0.1:{node.rest}",
            },
            # Not etcd3: after a freeze, Patroni 3.0 kept an outdated copy of the key that names the
            # synchronous standby, and could not change it any more.
            "etcd": {"hosts": f"127.0.0.1:{self.etcd}"},
            "watchdog": {"mode": "off"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": 1,
                    "retry_timeout": 5,
                    "master_start_timeout": 0,
                    "synchronous_mode": True,
                    "synchronous_mode_strict": True,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "use_slots": True,
                        "parameters": {
                            "max_connections": 300,
                            "fsync": "off",
                            "wal_log_hints": "on",
                            "dynamic_shared_memory_type": "mmap",
                            "shared_buffers": "32MB",
                        },
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "no-locale", "no-sync"],
                "pg_hba": [
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.folder / "data"),
                "bin_dir": str(_binaries()),
                "pgpass": str(node.folder / "pgpass"),
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                "parameters": {"unix_socket_directories": str(node.folder)},
            },
        }

    def _start_haproxy(self) -> None:
        servers = "\n".join(
            f"    server {node.name} 127.0.0.1:{node.port} check port {node.rest}"
            for node in self.nodes
        )
        config = self.folder / "haproxy.cfg"
        config.write_text(
            f"""
defaults
    mode tcp
    timeout connect 3s
    timeout client 1h
    timeout server 1h
    timeout check 2s
listen postgres
    bind 127.0.0.1:{self.haproxy}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 1s fall 3 rise 2 on-marked-down shutdown-sessions
{servers}
""",
            encoding="utf-8",
        )
        self._others.append(self._run("haproxy", "haproxy", "-db", "-f", str(config)))

    def _start_bouncer(self) -> None:
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            f"""
[databases]
* = host=127.0.0.1 port={self.haproxy} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.bouncer}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
server_connect_timeout = 3
server_login_retry = 1
""",
            encoding="utf-8",
        )
        self._others.append(self._run("pgbouncer", "pgbouncer", str(config)))

    def _run(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a program that ends with us, as a user that PostgreSQL accepts, with a log."""
        who = ["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"] if _is_root() else []
        path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATHS}"
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *who, *command],
                cwd=self.folder,
                env={"PATH": path, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _own(self, folder: Path) -> None:
        folder.chmod(0o755)
        if _is_root():
            shutil.chown(folder, "nobody", "nogroup")

    def _last_words(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-800:]}" for log in logs)


def _is_root() -> bool:
    return os.geteuid() == 0
