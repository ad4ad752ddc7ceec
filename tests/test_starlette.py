"""pulsed inside of a Starlette or FastAPI application, behind a real HTTP server."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.routing import Route

from pulsed import Context, Job, Pulse
from pulsed.contrib.fastapi import CurrentPulse
from pulsed.contrib.starlette import event_stream, job_events, lifespan, pulse_of, running
from pulsed.contrib.starlette.job_watch import JobWatch, version_of
from pulsed.errors import ConfigError, TransientStorageError
from tests.support.apps import working
from tests.support.jobs import claim_one, row, submitted
from tests.support.waiting import until
from tests.support.web_server import WebServer
from tests.support.workers import until as until_async


@pytest.fixture
def serve():
    servers: list[WebServer] = []

    def start(app):
        servers.append(WebServer(app))
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


def shop(pulse: Pulse, **options) -> FastAPI:
    """An application with a job, its events, and perhaps a worker."""
    app = FastAPI(lifespan=lifespan(pulse, **options))

    @pulse.job
    async def pack(ctx: Context, order: int) -> int:
        await ctx.aprogress({"packed": order})
        await ctx.aemit("packed")
        return order

    @app.post("/orders/{order}")
    async def place(order: int, current: CurrentPulse) -> UUID:
        assert current is pulse
        return (await pack.aenqueue(order)).id

    @app.get("/jobs/{job_id}/events")
    async def events(request: Request, job_id: str, items: bool = False):
        return await job_events(request, job_id, items=items)

    return app


async def read_events(response) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a stream, by name, until its end."""
    found, name = [], ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((name, json.loads(line.removeprefix("data: "))))
    return found


async def test_an_embedded_worker_runs_what_requests_enqueue(url, serve, monkeypatch):
    monkeypatch.setattr(event_stream, "TICK", 0.02)
    pulse = Pulse(url)
    host = serve(shop(pulse, worker={"concurrency": 2}))
    async with httpx2.AsyncClient(base_url=host, trust_env=False) as client:
        job_id = (await client.post("/orders/7")).json()
        async with client.stream("GET", f"/jobs/{job_id}/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = await read_events(response)
        assert [name for name, _ in events][-1] == "end"
        last = events[-1][1]
        assert (last["status"], last["progress"], last["id"]) == (
            "SUCCEEDED",
            {"packed": 7},
            job_id,
        )
        async with client.stream("GET", f"/jobs/{job_id}/events?items=1") as response:
            (item, data), (end, _) = await read_events(response)
        assert (item, data["value"], end) == ("item", "packed", "end")
        # A browser would connect again, and is told to stop.
        again = await client.get(f"/jobs/{job_id}/events", headers={"last-event-id": "end"})
        assert again.status_code == 204
        assert (await client.get(f"/jobs/{uuid4()}/events")).status_code == 404
        assert (await client.get("/jobs/nonsense/events")).status_code == 404


async def test_the_worker_ends_with_the_application(tmp_path):
    pulse = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")
    app = shop(pulse, worker=True)
    async with app.router.lifespan_context(app):
        await (await pulse.aenqueue("pack", {"order": 1})).aresult(60)
    async with Pulse(pulse.url) as other:
        assert await other.store.workers() == []


async def test_a_failed_worker_is_logged_and_fails_the_end_of_the_application(tmp_path, caplog):
    pulse = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")  # without handlers
    with pytest.raises(ConfigError, match="no handlers"):
        async with running(pulse, worker=True):
            await until(lambda: "the embedded worker has failed" in caplog.text)


async def test_an_application_starts_while_the_database_is_away(monkeypatch, tmp_path, caplog):
    pulse = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def away():
        raise TransientStorageError("connection refused")

    monkeypatch.setattr(pulse.store, "now", away)
    with caplog.at_level(logging.WARNING):
        async with running(pulse) as state:
            assert state == {"pulse": pulse}
    assert "the database is not there yet (connection refused)" in caplog.text


async def test_an_application_creates_the_tables_when_it_starts(tmp_path):
    pulse = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with running(pulse):
        await Pulse(pulse.url, migrate=False).store.check_ready()


async def test_the_app_is_in_the_state_of_requests(tmp_path, serve):
    pulse = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")

    @asynccontextmanager
    async def own_lifespan(_):
        async with running(pulse) as state:
            yield {**state, "more": 1}

    async def answer(request):
        return JSONResponse([pulse_of(request) is pulse, request.state.more])

    host = serve(Starlette(routes=[Route("/", answer)], lifespan=own_lifespan))
    async with httpx2.AsyncClient(base_url=host, trust_env=False) as client:
        assert (await client.get("/")).json() == [True, 1]


def test_a_request_without_an_app_says_what_is_missing():
    request = Request({"type": "http", "headers": [], "state": {}})
    with pytest.raises(ConfigError, match=r"lifespan=lifespan\(app\)"):
        pulse_of(request)


# -- event streams --------------------------------------------------------------------------------


async def test_a_stream_tells_each_state_once_and_ends_with_the_job(app):
    job = await a_stored_job(app)
    stream, watch = open_stream(app, job)
    assert await anext(stream) == b"retry: 1000\n\n"
    assert b'"status":"PENDING"' in await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await watch.tick()
    await asyncio.sleep(0)
    assert not waiting.done()  # nothing has changed
    await app.jobs.acancel(job.id)
    await watch.tick()
    last = await waiting
    assert last.startswith(b"event: end\nid: end\n")
    assert b'"status":"CANCELLED"' in last
    assert [rest async for rest in stream] == []
    assert watch.streams == 0


async def a_stored_job(app):
    async def pack() -> None: ...

    return await (await app.job(pack).aenqueue()).arefresh()


async def is_done(job: Job[Any]) -> bool:
    return (await job.arefresh()).is_done


def open_stream(app, job, seen=""):
    """A stream as an answer has it, whose watch is ticked by the test."""
    watch = JobWatch(app.store.get, tick=3600)
    stream = event_stream._Stream(app, watch, event_stream.describe).events(job.row, seen)
    return stream, watch


async def test_a_browser_that_has_the_state_is_not_told_again(app, monkeypatch):
    job = await a_stored_job(app)
    stream, _ = open_stream(app, job, seen=version_of(job.row))
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.001)
    assert [await anext(stream), await anext(stream)] == [b"retry: 1000\n\n", b": heartbeat\n\n"]
    await stream.aclose()


async def test_a_stream_ends_after_a_while_for_the_browser_to_come_back(app, monkeypatch):
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.001)
    monkeypatch.setattr(event_stream, "LONGEST_STREAM", 0.01)
    job = await a_stored_job(app)
    stream, watch = open_stream(app, job)
    parts = [part async for part in stream]
    assert set(parts[2:]) <= {b": heartbeat\n\n"}  # none if it was over at once
    assert not any(part.startswith(b"event: end") for part in parts)
    assert watch.streams == 0


async def test_a_job_that_is_removed_ends_its_stream(app):
    job = await a_stored_job(app)
    stream, watch = open_stream(app, job)
    await anext(stream)
    await anext(stream)
    await app.jobs.acancel(job.id)
    await app.jobs.adelete(job.id)
    await watch.tick()
    assert b'"status":"REMOVED"' in await anext(stream)


async def test_streams_share_their_reads_and_survive_a_failed_one(app, caplog):
    job = await a_stored_job(app)
    reads: list[list[UUID]] = []
    fail = True

    async def read(ids):
        reads.append(list(ids))
        if fail:
            raise TransientStorageError("gone")
        return await app.store.get(ids)

    watch = JobWatch(read, tick=3600)
    with watch.following(job.row), watch.following(job.row):
        assert watch.streams == 2
        waiting = asyncio.ensure_future(watch.change(job.row))
        await watch.tick()
        assert "cannot read the database: gone" in caplog.text
        fail = False
        await app.jobs.acancel(job.id)
        await watch.tick()
        changed = await waiting
        assert changed is not None
        assert changed.status == "CANCELLED"
    assert reads == [[job.id], [job.id]]
    await watch.tick()
    assert len(reads) == 2  # no streams, no reads


async def test_a_stream_with_items_goes_on_where_the_browser_was(app, monkeypatch):
    monkeypatch.setattr(event_stream, "TICK", 0.0)

    async def count(ctx: Context) -> None:
        for n in range(3):
            await ctx.aemit({"n": n})

    job = await app.job(count).aenqueue()
    async with working(app):
        await until_async(lambda: is_done(job))
    watch = JobWatch(app.store.get, tick=3600)

    async def parts(seen: str) -> list[bytes]:
        stream = event_stream._Stream(app, watch, event_stream.describe)
        return [part async for part in stream.with_items(job.row, seen)][1:]

    found = await parts("")
    assert [part.split(b"\n")[0] for part in found] == [b"event: item"] * 3 + [b"event: end"]
    assert b'data: {"position":2,"value":{"n":1},"run":1}' in found[1]
    last_id = found[1].split(b"id: ")[1].split(b"\n")[0].decode()
    assert await parts(last_id) == found[2:]
    assert await parts("x/" + "9" * 30) == found  # no such position


async def test_a_stream_with_items_tells_the_state_and_keeps_the_connection(app, monkeypatch):
    monkeypatch.setattr(event_stream, "TICK", 0.0)
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.0)
    job = await a_stored_job(app)
    watch = JobWatch(app.store.get, tick=3600)
    stream = event_stream._Stream(app, watch, event_stream.describe).with_items(job.row, "")
    assert await anext(stream) == b"retry: 1000\n\n"
    assert b'"status":"PENDING"' in await anext(stream)
    assert await anext(stream) == b": heartbeat\n\n"
    await app.jobs.acancel(job.id)
    rest = [part async for part in stream if part != b": heartbeat\n\n"]
    assert [part.split(b"\n")[:2] for part in rest] == [[b"event: end", b"id: end"]]


async def test_heartbeats_of_a_run_are_no_changes(store):
    await submitted(store)
    run = await claim_one(store)
    before = await row(store, run.job_id)
    await store.beat([run.lease])
    assert version_of(await row(store, run.job_id)) == version_of(before)


async def test_the_number_of_streams_is_bounded(tmp_path, serve, monkeypatch):
    monkeypatch.setattr(event_stream, "MOST_STREAMS", 0)
    pulse = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")
    host = serve(shop(pulse))
    async with httpx2.AsyncClient(base_url=host, trust_env=False) as client:
        job_id = (await client.post("/orders/7")).json()
        refused = await client.get(f"/jobs/{job_id}/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("items", [False, True], ids=["states", "items"])
async def test_a_burst_does_not_exceed_the_number_of_streams(app, monkeypatch, items):
    """All are let in at once, before any of them has begun."""
    monkeypatch.setattr(event_stream, "MOST_STREAMS", 2)
    monkeypatch.setattr(event_stream, "MOST_WITH_ITEMS", 2)
    job = await a_stored_job(app)
    request = HTTPConnection({"type": "http", "headers": []})
    answers = [
        await event_stream.job_events(request, job.id, app=app, items=items) for _ in range(4)
    ]
    burst: list[Any] = [getattr(each, "body_iterator") for each in answers]  # noqa: B009
    first = [await anext(each) for each in burst]
    assert first == [b"retry: 1000\n\n"] * 2 + [event_stream.FULL] * 2
    assert event_stream.watch_of(app).streams == 2
    for each in burst:
        await each.aclose()
    assert event_stream.watch_of(app).streams == 0


async def test_a_stream_ends_when_its_client_goes_away(tmp_path, serve, monkeypatch):
    pulse = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")
    watches: list[JobWatch] = []
    known = event_stream.watch_of

    def noted(app):
        watches.append(known(app))
        return watches[-1]

    monkeypatch.setattr(event_stream, "watch_of", noted)
    host = serve(shop(pulse))
    async with httpx2.AsyncClient(base_url=host, trust_env=False) as client:
        job_id = (await client.post("/orders/7")).json()
        async with client.stream("GET", f"/jobs/{job_id}/events") as response:
            await anext(response.aiter_lines())
            await until(lambda: watches[0].streams == 1)
        await until(lambda: watches[0].streams == 0)
