"""A stranger and a limited token each send a server the worst there is; a worker goes on claiming.

``python3 dev.py flood --seconds 20`` says what became of the server's memory and of the worker's
claims. Everything stays on the loopback address, and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import grpc
from grpc import aio

from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import METHODS
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from tests.support.raw_streams import RawClient, raw_client

MEGABYTE = 1_000_000
RATE = 10 * MEGABYTE
"""Bytes a second of each attacker."""
AT_ONCE = 8
BEGUN = b"begun\n"
"""What an attacker says when it begins."""
FEWEST = 10
"""Claims that are measured, at least."""
PATIENCE = 60.0
"""Seconds more than it was to take after which a flood has kept others from going on."""
TOPIC = "flooded"
ROOM = 100 * 1024 * 1024
"""How much more memory than when idle a server may use."""


class Outcome(NamedTuple):
    """What a flood did."""

    rest: int
    peak: int
    calm: list[float]
    flooded: list[float]

    @property
    def grown(self) -> int:
        """Bytes by which the server's memory grew."""
        return self.peak - self.rest

    def lines(self) -> list[str]:
        def row(name: str, seconds: list[float]) -> str:
            p50, p99 = statistics.median(seconds), quantile(seconds, 0.99)
            return (
                f"{name:8} {len(seconds):6} claims, p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"
            )

        mebibytes = [f"{size / 2**20:.0f} MiB" for size in (self.rest, self.peak)]
        ratio = quantile(self.flooded, 0.99) / quantile(self.calm, 0.99)
        return [
            f"memory   {mebibytes[0]} at rest, {mebibytes[1]} at the most",
            row("calm", self.calm),
            row("flooded", self.flooded),
            f"p99      {ratio:.1f} times as long",
        ]


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


# -- the attackers --------------------------------------------------------------------------------


def worst_messages() -> list[tuple[str, bytes, Any]]:
    """Return methods, requests and how they are compressed, each of about a megabyte."""
    job = pb.NewJob(id=str(uuid4()), topic=TOPIC, payload="{}")
    deep = pb.NewJob(id=str(uuid4()), topic=TOPIC, payload='{"a":' + "[[],[]]," * 120_000)
    open_string = pb.NewJob(id=str(uuid4()), topic=TOPIC, payload='{"' + '\\"' * 480_000)
    lists = pb.NewJob(id=str(uuid4()), topic=TOPIC, payload='{"a":[' + "[]," * 300_000 + "0]}")
    lease = pb.Lease(job_id=str(uuid4()), lease_token=1, worker_id=str(uuid4()))
    requests: list[tuple[str, Any]] = [
        ("SubmitJobs", pb.SubmitJobsRequest(jobs=[deep])),
        ("SubmitJobs", pb.SubmitJobsRequest(jobs=[open_string])),
        ("SubmitJobs", pb.SubmitJobsRequest(jobs=[lists, pb.NewJob(id="none")])),
        ("SubmitJobs", pb.SubmitJobsRequest(jobs=[*[job] * 15_000, pb.NewJob(id="none")])),
        ("Heartbeat", pb.HeartbeatRequest(leases=[lease] * 12_000)),
    ]
    empty = b"\n\0" * (MEGABYTE // 2)
    return [
        ("SubmitJobs", empty, None),
        ("SubmitJobs", empty * 30, grpc.Compression.Gzip),
        ("Heartbeat", empty, None),
        *((method, request.SerializeToString(), None) for method, request in requests),
    ]


async def attack(host: str, secret: str | None, seconds: float) -> None:
    """Send the worst there is, at a steady rate."""
    ends_at = time.monotonic() + seconds
    room = asyncio.Semaphore(AT_ONCE)
    async with raw_client(host, secret) as client:
        worst = worst_messages()
        sys.stdout.buffer.write(BEGUN)
        sys.stdout.buffer.flush()
        began, sent = time.monotonic(), 0
        calls: set[asyncio.Task[None]] = set()
        for method, data, compression in itertools.cycle(worst):
            if time.monotonic() > ends_at:
                break
            await room.acquire()
            call = asyncio.create_task(_send(client, method, data, compression, room))
            calls.add(call)
            call.add_done_callback(calls.discard)
            sent += MEGABYTE if compression else len(data)
            await asyncio.sleep(max(0.0, began + sent / RATE - time.monotonic()))
        await asyncio.gather(*calls)


async def _send(
    client: RawClient, method: str, data: bytes, compression: Any, room: asyncio.Semaphore
) -> None:
    call = client.channel.unary_unary(METHODS[method].path)
    with contextlib.suppress(aio.AioRpcError):
        await call(data, metadata=client._metadata, compression=compression, timeout=20)
    room.release()


# -- the others -----------------------------------------------------------------------------------


async def claims(host: str, secret: str, seconds: float) -> list[float]:
    """Submit and claim one job after the other; returns how long each claim took.

    Goes on until there are a few claims, however long they take.
    """
    took: list[float] = []
    ends_at = time.monotonic() + seconds
    async with raw_client(host, secret) as client:
        stream = client.stream()
        await stream.hello(topics=["claimed"], queues=["claimed"])
        for number in itertools.count(1):
            if time.monotonic() > ends_at and len(took) >= FEWEST:
                return took
            job = pb.NewJob(id=str(uuid4()), topic="claimed", queue="claimed", payload="{}")
            await client("SubmitJobs", pb.SubmitJobsRequest(jobs=[job]))
            began = time.perf_counter()
            await stream.grant(number, 1, wait=10)
            await stream.batch()
            took.append(time.perf_counter() - began)
    return took


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def watch_memory(pid: int, sizes: list[int]) -> None:
    while True:
        sizes.append(memory(pid))
        await asyncio.sleep(0.02)


def given(store: SqliteStore, name: str, *roles: str, topics: tuple[str, ...] | None) -> str:
    secret = tokens.new_secret()
    assert run_blocking(
        tokens.add(store, Token(name, tokens.digest_of(secret), roles, topics, None))
    )
    return secret


def flood(folder: Path, *, seconds: float) -> Outcome:
    """Let a server be flooded for so many seconds, after as many without."""
    path = folder / "jobs.db"
    store = SqliteStore(path)
    limited = given(store, "limited", "produce", "work", topics=(TOPIC,))
    worker = given(store, "worker", "produce", "work", topics=None)
    command = [sys.executable, "-m", "pulsed", "server", "--auth", "--listen", "127.0.0.1:0"]
    log = folder / "server.log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen([*command, "--url", f"sqlite:///{path}"], stderr=stderr) as server,
    ):
        attackers: list[subprocess.Popen[bytes]] = []
        try:
            host = _host(server, log)
            calm = asyncio.run(claims(host, worker, seconds))
            rest = memory(server.pid)
            for secret in ("", limited):
                module = [
                    sys.executable,
                    "-m",
                    "tests.flood",
                    "--attack",
                    host,
                    f"--secret={secret}",
                ]
                module.append(f"--seconds={seconds + PATIENCE}")
                attackers.append(subprocess.Popen(module, stdout=subprocess.PIPE))
            for attacker in attackers:
                assert attacker.stdout is not None
                assert attacker.stdout.readline() == BEGUN
            sizes, flooded = asyncio.run(_meanwhile(server.pid, host, worker, seconds))
            sizes.append(memory(server.pid))
        finally:
            processes: list[subprocess.Popen[Any]] = [*attackers, server]
            for process in processes:
                process.kill()
                process.communicate()
    return Outcome(rest, max(sizes), calm, flooded)


async def _meanwhile(
    pid: int, host: str, worker: str, seconds: float
) -> tuple[list[int], list[float]]:
    sizes: list[int] = []
    watching = asyncio.create_task(watch_memory(pid, sizes))
    async with asyncio.timeout(seconds + PATIENCE):
        flooded = await claims(host, worker, seconds)
    watching.cancel()
    return sizes, flooded


def _host(server: subprocess.Popen[bytes], log: Path) -> str:
    while server.poll() is None:
        if found := re.search(r" on (127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise AssertionError(f"the server did not start: {log.read_text()}")


def main() -> None:
    """Attack, or be attacked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--attack", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--secret", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.attack:
        asyncio.run(attack(asked.attack, asked.secret or None, asked.seconds))
        return
    with tempfile.TemporaryDirectory() as folder:
        outcome = flood(Path(folder), seconds=asked.seconds)
    sys.stdout.write("\n".join([*outcome.lines(), ""]))
    if outcome.grown > ROOM:
        sys.exit("the server's memory grew by more than 100 MiB")


if __name__ == "__main__":
    main()
