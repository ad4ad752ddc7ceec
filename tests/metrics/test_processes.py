"""``--metrics`` and ``--health`` of real processes, and what metrics cost a worker."""

import asyncio
import json
import re
import signal
import time
from pathlib import Path

import pytest

from pulsed.listen_address import ListenAddress
from pulsed.metrics.counts import ProcessCounts
from pulsed.model.events import RunCount
from pulsed.store.sqlite.store import SqliteStore
from tests.support.commands import Command, run, until
from tests.support.scrapes import Reply, get, scrape
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.workers import all_finished, submit_many, working

APP = """
import asyncio, pathlib
from pulsed import Pulse

app = Pulse("sqlite:///jobs.db")
here = pathlib.Path(__file__).parent

@app.job
async def wait() -> None:
    (here / "started").touch()
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def address_of(command: Command, what: str = "metrics", number: int = 0) -> ListenAddress:
    """Where a process says that it serves."""
    command.said(f"{what} on http://", number + 1)
    found = re.findall(rf"{what} on http://([\d.]+:\d+)", command.log)
    return ListenAddress.parse(found[number])


def ask(address: ListenAddress, path: str) -> Reply:
    return asyncio.run(get(address, path))


def test_a_worker_is_scraped_and_probed_until_it_has_drained(folder: Path):
    args = ("worker", "shop:app", "--metrics", "127.0.0.1:0", "--health", ":0", "--poll", "50ms")
    with Command(folder, *args) as worker:
        at, health = address_of(worker), address_of(worker, "health")
        until(lambda: ask(health, "/readyz").status == 200)
        assert ask(health, "/metrics").status == 404
        assert run("enqueue", "wait", "--url", f"sqlite:///{folder}/jobs.db").exit_code == 0
        until((folder / "started").exists)
        assert asyncio.run(scrape(at)).value("pulsed_worker_slots_used") == 1
        worker.signal(signal.SIGTERM)
        until(lambda: ask(at, "/readyz").status == 503)
        assert ask(at, "/readyz").text.startswith("state: draining")
        assert ask(at, "/healthz").status == 200
        (folder / "go").touch()
        assert worker.ended() == 0


def test_a_worker_whose_database_is_away_is_scraped_alive_and_not_ready(
    folder: Path, postgres_server: ScratchPostgres
):
    retry = "attempts=2,initial=20ms,max=100ms"
    args = ("--url", postgres_server.url, "--retry", retry, "--dequeue-retry", retry)
    serve = ("--metrics", "127.0.0.1:0", "--health", ":0")
    with Command(folder, "worker", "shop:app", *args, *serve) as worker:
        at, health = address_of(worker), address_of(worker, "health")
        until(lambda: ask(health, "/readyz").status == 200)
        postgres_server.kill()
        until(lambda: ask(health, "/readyz").status == 503)
        assert ask(health, "/readyz").text.endswith("\ndatabase: down\n")
        assert ask(health, "/healthz").status == 200
        away = asyncio.run(scrape(at))
        assert away.value("pulsed_database_up") == 0  # so what the database knows is missing…
        assert not away.labels_of("pulsed_queue_due_jobs")
        assert "pulsed_database_read_age_seconds" not in away.families
        assert away.value("pulsed_worker_slots") == 100  # …and what the process knows is not
        assert away.value("pulsed_storage_retries_total", operation="claiming jobs") is not None
        postgres_server.start()
        until(lambda: ask(health, "/readyz").text == "state: running\ndatabase: up\n")
        until(lambda: asyncio.run(scrape(at)).value("pulsed_database_up") == 1)
        back = asyncio.run(scrape(at))
        assert back.value("pulsed_queue_due_jobs", queue="default", topic="wait") == 0
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


def test_each_of_several_processes_is_scraped_by_itself(folder: Path):
    args = ("worker", "shop:app", "--processes", "2", "--metrics", "127.0.0.1:0")
    with Command(folder, *args) as supervisor:
        for number in range(2):
            at = address_of(supervisor, number=number)
            until(lambda at=at: ask(at, "/readyz").status == 200)  # type: ignore[misc]
            assert asyncio.run(scrape(at)).value("pulsed_worker_slots") == 100
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_a_server_is_scraped_and_ready(tmp_path: Path):
    assert run("migrate", "up", "--url", f"sqlite:///{tmp_path}/jobs.db").exit_code == 0
    args = ("--url", "sqlite:///jobs.db", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    with Command(tmp_path, "server", *args) as server:
        at = address_of(server)
        until(lambda: ask(at, "/readyz").text == "state: serving\ndatabase: up\n")
        seen = asyncio.run(scrape(at))
        assert seen.value("pulsed_server_streams") == 0
        assert seen.value("pulsed_database_up") == 1
        assert "pulsed_worker_slots" not in seen.families
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


def test_an_address_that_is_none_is_wrong_usage(folder: Path):
    for option in ("--metrics", "--health"):
        told = run("worker", "shop:app", option, "nowhere")
        assert told.exit_code == 2
        assert "is not an address to listen on" in told.stderr


async def test_counting_takes_less_than_a_twentieth_of_a_run(tmp_path: Path):
    """Processor time, the least of several rounds: the machine may be busy."""

    async def work(n: int) -> None: ...

    store, heard = SqliteStore(tmp_path / "jobs.db"), list[list[RunCount]]()
    store.events.subscribe(lambda events: heard.append(list(events)), {RunCount})
    whole = []
    for _ in range(3):
        ids = await submit_many(store, "work", 1_000)
        began = time.process_time()
        async with working(store, work, concurrency=100, job_log="failures"):
            await all_finished(store, ids)
        whole.append(time.process_time() - began)
    await store.aclose()
    events = [events for events in heard if events]
    assert sum(each.count for batch in events for each in batch) == 2 * 3_000
    counting = []
    for _ in range(5):
        counts = ProcessCounts()
        began = time.process_time()
        for batch in events:
            counts.add(batch)
        counting.append((time.process_time() - began) / 3)
    assert min(counting) < min(whole) / 20, json.dumps([counting, whole])
