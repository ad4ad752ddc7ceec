"""The dashboard beside a week of jobs: every page's time, its memory, and what open tabs cost.

Pages are requested in this process, without a network: what is measured is the time from the
request to the whole answer. Each is requested cold, with nothing read before, and warm, right after
another tab has requested it. Tabs are opened on ``pulsed ui``, in its own process; each holds the
event stream and fetches its page again after every tick, as the dashboard's script does.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from urllib.parse import quote

from benchmarks import week
from benchmarks.databases import Database, Server, enqueue
from benchmarks.processes import DashboardProcess, WorkerProcess, drain, in_processes
from benchmarks.results import PULSED, Results, percentile
from benchmarks.scale import Scale
from benchmarks.week import Week
from benchmarks.workloads.latency import picked_up, submit_stamps, wait_until_ready
from pulsed import Pulse
from pulsed.web import Local, Role, dashboard
from pulsed.web.guard import Guard
from tests.support.visits import Tab

SHARE = {"postgres": 1, "sqlite": 5}
"""A file has so many times fewer jobs."""
PAGE = f"{PULSED}, "
COLD, WARM, PROCESSOR = "p95 ms", "p95 ms, warm", "ms of processor"
ALONE, WATCHED = f"{PULSED}, no tab open", f"{PULSED}, ten tabs open"
MEMORY, PICKUP = "MB resident", "pick-up, p50 ms"
TABS = (
    *("overview", "overview, 24 h", "jobs", "jobs, status:dead", "jobs, topic:mail*", "queues"),
    *("queue", "workflows", "workers", "job, a workflow with children"),
)
"""The pages of the open tabs."""
ROUNDS = 20
"""Times that every page is requested before the first look at the memory."""
MEMORY_BEFORE, MEMORY_AFTER = f"{PULSED}, after the first requests", f"{PULSED}, after all requests"


def jobs_of(engine: str, scale: Scale) -> int:
    """Return how many jobs the database has."""
    return scale.beside // SHARE[engine]


def measure_pages(server: Server, results: Results, scale: Scale) -> None:
    """Request every page; then see what a dashboard with ten tabs takes, and takes from workers."""
    database = server.database("pages")
    found = week.fill(database, jobs_of(server.engine, scale))
    asyncio.run(_measure_visits(database, results, scale, found))
    _measure_memory(database, results, scale, found)
    _measure_tabs(database, results, scale, found)
    server.drop("pages")


def addresses(found: Week) -> dict[str, str]:
    """Return every page, and searches of every kind, by the name that the figures have."""
    queue, topic = week.QUEUES[1], week.TOPICS[week.QUEUES[1]][0]
    searches = {
        **{f"status:{status}": "" for status in ("dead", "done", "waiting", "due", "running")},
        f"topic:{topic}": "",
        "topic:mail*": "",
        "topic:none": "",
        f"queue:{queue}": "",
        "tag:nightly": "",
        "error:timeout": "",
        "error:none": "",
        "payload.user:7": "",
        "payload.user:none": "",
        "since:2h": "",
        "until:3d": "",
        "id:abcdef123456": "",
        "worker:ID": f"worker:{found.worker}",
        "schedule:ID": f"schedule:{found.schedule}",
        "parent:ID": f"parent:{found.workflow}",
        "status:dead error:503 topic:mail*": "",
    }
    return {
        "overview": "/",
        "overview, 24 h": "/?span=24h",
        "overview, 7 d": "/?span=7d",
        "jobs": "/jobs",
        **{f"jobs, {name}": f"/jobs?q={quote(q or name)}" for name, q in searches.items()},
        "completion of a search": f"/jobs/complete?q={quote('topic:m')}",
        "all that match, preview": f"/bulk?act=retry&q={quote('status:dead error:503')}",
        "job, a dead letter": f"/jobs/{found.dead}",
        "job, a workflow with children": f"/jobs/{found.workflow}",
        "payload": f"/jobs/{found.dead}/payload",
        "new job": "/jobs/new",
        "queues": "/queues",
        "queue": f"/queues/{queue}",
        "queue, 7 d": f"/queues/{queue}?span=7d",
        "schedules": "/schedules",
        "schedule": f"/schedules/{quote('schedule 0')}",
        "workflows": "/workflows",
        "workers": "/workers",
        "system": "/system",
        "audit": "/audit",
    }


# -- time ---------------------------------------------------------------------------------------


async def _measure_visits(database: Database, results: Results, scale: Scale, found: Week) -> None:
    async with Pulse(database.url) as app:
        guard = dashboard(app, access=Local(Role.ADMIN))
        assert isinstance(guard, Guard)
        shared = guard.inner.state.site.shared
        tab = Tab(guard)
        pages = addresses(found)
        pages["jobs, an open list again"] = await _open_list(tab)
        for name, address in pages.items():
            await _visit(tab, address)  # compiles its template, connects
            cold, warm, processor = [], [], []
            for _ in range(scale.visits):
                shared.forget()
                used = time.process_time()
                cold.append(await _visit(tab, address))
                processor.append((time.process_time() - used) * 1000)
                warm.append(await _visit(tab, address))
            for metric, samples, percent in (
                ("p50 ms", cold, 50),
                (COLD, cold, 95),
                ("max ms", cold, 100),
                (WARM, warm, 95),
                (PROCESSOR, processor, 50),
            ):
                figure = percentile(samples, percent)
                results.add("pages", database.engine, f"{PAGE}{name}", metric, figure)


async def _visit(tab: Tab, address: str) -> float:
    began = time.perf_counter()
    answer = await tab.get(address)
    took = (time.perf_counter() - began) * 1000
    if answer.status != 200:
        raise RuntimeError(f"{address} answered {answer.status}: {answer.text}")
    return took


async def _open_list(tab: Tab) -> str:
    """Return the address at which an open list of jobs reads itself again."""
    page = (await tab.get("/jobs")).body
    return html.unescape(page.partition('data-refresh="')[2].partition('"')[0])


# -- memory -------------------------------------------------------------------------------------


def _measure_memory(database: Database, results: Results, scale: Scale, found: Week) -> None:
    """Request all pages again and again from one process, and compare its memory."""
    pages = list(addresses(found).values())
    with DashboardProcess(database) as serving:
        for _ in range(ROUNDS):
            _request_all(serving.port, pages)
        before = serving.memory()
        for _ in range(ROUNDS * scale.visits // 40):
            _request_all(serving.port, pages)
        after = serving.memory()
    results.add("pages", database.engine, MEMORY_BEFORE, MEMORY, before)
    results.add("pages", database.engine, MEMORY_AFTER, MEMORY, after)


def _request_all(port: int, pages: Sequence[str]) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for address in pages:
        connection.request("GET", address)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{address} answered {answer.status}")
    connection.close()


# -- tabs ---------------------------------------------------------------------------------------


def _measure_tabs(database: Database, results: Results, scale: Scale, found: Week) -> None:
    """Let a worker pick up single jobs and drain many, alternately with and without open tabs."""
    pages = addresses(found)
    watched = [pages[name] for name in TABS]
    for _ in range(scale.repeat):
        for subject, addresses_open in ((ALONE, []), (WATCHED, watched)):
            with contextlib.ExitStack() as stack:
                if addresses_open:
                    serving = stack.enter_context(DashboardProcess(database))
                    stack.enter_context(open_tabs(serving.port, addresses_open))
                    used, began = serving.cpu_seconds(), time.monotonic()
                waits = _pickups(database, scale.pickups // 8)
                batch = enqueue(database, scale.drain)
                rate = drain(database, batch, limit=scale.drain_limit).rate
                if addresses_open:
                    share = (serving.cpu_seconds() - used) / (time.monotonic() - began)
                    results.add("pages", database.engine, subject, "% of a core", 100 * share)
            for percent in (50, 95):
                figure = percentile(waits, percent)
                results.add("pages", database.engine, subject, f"pick-up, p{percent} ms", figure)
            results.add("pages", database.engine, subject, "jobs/s", rate)


def _pickups(database: Database, count: int) -> list[float]:
    database.rows("DELETE FROM pulse_jobs WHERE topic = 'stamp' RETURNING 1")
    with WorkerProcess(database.url):
        wait_until_ready(database.url)
        in_processes(submit_stamps, ((database.url,), count))
        return picked_up(database, count)


@contextlib.contextmanager
def open_tabs(port: int, pages: Sequence[str]) -> Iterator[None]:
    """Open a tab on each of these pages of a dashboard, and let them follow its ticks."""
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever, daemon=True)
    running.start()
    tabs = asyncio.run_coroutine_threadsafe(_open(port, pages), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_close(tabs), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        running.join()


async def _open(port: int, pages: Sequence[str]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(_follow(port, page)) for page in pages]


async def _close(tabs: Sequence[asyncio.Task[None]]) -> None:
    """Close tabs, and raise what one of them met."""
    for tab in tabs:
        tab.cancel()
    met = await asyncio.gather(*tabs, return_exceptions=True)
    problems = [each for each in met if isinstance(each, Exception)]
    if problems:
        raise problems[0]


async def _follow(port: int, page: str) -> None:
    """Hold the event stream, and fetch the page after each of its events."""
    reader, writer = await _request(port, "/live")
    try:
        await _get(port, page)
        while line := await reader.readline():
            if line.startswith(b"data:"):
                await _get(port, page)
        raise RuntimeError("the dashboard has closed the stream of a tab")
    finally:
        writer.close()


async def _get(port: int, page: str) -> None:
    reader, writer = await _request(port, page)
    status = (await reader.readline()).split()[1]
    await reader.read()
    writer.close()
    if status != b"200":
        raise RuntimeError(f"{page} answered {status.decode()}")


async def _request(port: int, page: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET {page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    return reader, writer
