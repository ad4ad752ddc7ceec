"""``pulsed server`` as a process."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2

from pulsed import Pulse, Status
from pulsed.extras import install_command
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import METHODS
from pulsed.store.sqlite.store import SqliteStore
from tests.support.apps import declare_add, work_off
from tests.support.certificates import Authority
from tests.support.commands import Command, run
from tests.support.jobs import TOPIC
from tests.support.raw_streams import raw_client
from tests.support.servers import ServerThread


def serving(folder: Path, *args: str) -> Command:
    return Command(folder, "server", "--url", "sqlite:///jobs.db", "--listen", "127.0.0.1:0", *args)


def url_of(server: Command) -> str:
    server.said("serves")
    found = re.search(r"serves \S+ on (\S+)", server.log)
    assert found is not None
    return f"pulse://{found[1]}"


def test_it_serves_producers_workers_and_commands_and_drains(tmp_path):
    with serving(tmp_path) as server:
        url = url_of(server)
        with Pulse(url) as app:
            add = declare_add(app)
            job = add.enqueue(1, 2)
            work_off(app, job)
            assert job.result(60) == 3
        listed = run("jobs", "list", "--json", PULSED_URL=url)
        assert listed.exit_code == 0
        assert str(job.id) in listed.stdout
        checked = run("doctor", PULSED_URL=url)
        assert "sqlite" in checked.stdout.lower()
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    with Pulse(f"sqlite:///{tmp_path}/jobs.db") as app:
        assert app.jobs.counts()[Status.SUCCEEDED] == 1


async def services(url: str) -> set[str]:
    """Ask a server for what it has, as grpcurl does."""
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with raw_client(url.removeprefix("pulse://")) as client:
        # The call is of two streams. As one with a single request it goes out in one piece; a write
        # into a call that the server has already refused would fail in its own way.
        ask = client.channel.unary_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        (answer,) = [each async for each in ask(request)]
    return {service.name for service in answer.list_services_response.service}


async def test_it_tells_tools_what_can_be_called_if_asked_to(tmp_path):
    with serving(tmp_path, "--reflection") as server:
        contract = {f"pulse.v1.{method.service}" for method in METHODS.values()}
        assert await services(url_of(server)) > contract | {"grpc.health.v1.Health"}
    with ServerThread(lambda: SqliteStore(tmp_path / "jobs.db")) as closed:
        with pytest.raises(aio.AioRpcError) as unknown:
            await services(closed.url)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_that_is_not_installed_is_an_error_that_helps(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc_reflection", None)
    said = run("server", "--reflection", "--url", f"sqlite:///{tmp_path}/jobs.db")
    assert said.exit_code != 0
    assert install_command("reflection") in said.stderr


def test_it_fires_schedules_by_itself(tmp_path):
    with serving(tmp_path) as server, Pulse(url_of(server)) as app:
        add = declare_add(app)
        app.schedules.put("soon", add.bind(1), every=0.1)
        job = next(iter(wait_for_jobs(app)))
        assert job.topic == "add"
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


def wait_for_jobs(app):
    give_up_at = time.monotonic() + 60
    while not (jobs := app.jobs.list()):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    return jobs


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_a_thousand_idle_workers_cost_little_memory_and_no_claims(tmp_path):
    with serving(tmp_path) as server:
        host = url_of(server).removeprefix("pulse://")
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(raw_client(host)) for _ in range(5)]
            await clients[0]("GetTime", pb.GetTimeRequest())
            before = memory_of(server.process.pid)
            streams = [client.stream() for client in clients for _ in range(200)]
            for stream in streams:
                await stream.hello(wants_offers=True)
                await stream.grant(1, 10)
            for stream in streams:
                assert len((await stream.batch()).assignments) == 0
            grown = memory_of(server.process.pid) - before
            job = pb.NewJob(id=str(uuid4()), topic=TOPIC, payload="{}")
            await clients[1]("SubmitJobs", pb.SubmitJobsRequest(jobs=[job]))
            offered = [asyncio.create_task(stream.read()) for stream in streams]
            done, _ = await asyncio.wait(offered, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            for task in offered:
                task.cancel()
            await asyncio.wait(offered)
        assert 1 <= len(done) < 200  # of a thousand
        assert grown < 100 * 1024 * 1024


def memory_of(pid: int) -> int:
    """Return the bytes that a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:50051", "example.org:50051"])
def test_it_refuses_to_be_open_to_everybody(listen):
    refused = run("server", "--url", "sqlite://", "--listen", listen)
    assert refused.exit_code == 2
    assert "no TLS" in refused.stderr
    assert "--insecure" in refused.stderr


def test_it_is_loud_when_told_to_be(tmp_path):
    with serving(tmp_path, "--listen", "0.0.0.0:0", "--insecure") as server:
        server.said("reachable from other machines")
        url_of(server)


def test_a_server_before_a_server_is_refused():
    refused = run("server", "--url", "pulse://127.0.0.1:1")
    assert refused.exit_code == 2
    assert "needs a database" in refused.stderr


def test_a_port_that_is_taken_is_said(tmp_path):
    with serving(tmp_path) as first:
        taken = url_of(first).removeprefix("pulse://")
        with serving(tmp_path, "--listen", taken) as second:
            assert second.ended() == 4
            assert "is it taken" in second.log


def test_tokens_and_certificates_open_other_addresses(tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    made = run("token", "new", "me", "--role", "admin", "--url", f"sqlite:///{tmp_path}/jobs.db")
    secret = made.stdout.strip()
    files = ("--tls-cert", str(cert), "--tls-key", str(key))
    with serving(tmp_path, "--listen", "0.0.0.0:0", *files) as server:
        place = url_of(server).removeprefix("pulse://0.0.0.0:")
        url = f"pulses://me:{secret}@127.0.0.1:{place}?ca={authority.ca}"
        assert run("jobs", "list", PULSED_URL=url).exit_code == 0
        without = f"pulses://127.0.0.1:{place}?ca={authority.ca}"
        refused = run("jobs", "list", PULSED_URL=without)
        assert refused.exit_code != 0
        assert "requires a token" in refused.stderr


def test_half_of_tls_is_none(tmp_path):
    cert, _ = Authority(tmp_path).sign("server")
    refused = run("server", "--url", "sqlite://", "--tls-cert", str(cert))
    assert (refused.exit_code, "both --tls-cert and --tls-key" in refused.stderr) == (2, True)
