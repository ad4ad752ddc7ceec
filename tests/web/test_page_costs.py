"""What pages cost: the same whatever the number of jobs, and of open tabs."""

import asyncio
import gc
import html
from contextlib import closing
from typing import Any
from urllib.parse import quote
from uuid import UUID

import psycopg
import pytest

from pulsed import Pulse
from pulsed.store.postgres.session import Lane, Sessions
from pulsed.store.postgres.store import PostgresOptions
from pulsed.store.sqlite.connections import Connections
from pulsed.store.verbs import reads, retention, search
from pulsed.web import Local, Role, dashboard
from pulsed.web.live import Hub
from tests.support.backends import only_postgres, only_sqlite
from tests.support.jobs import a_job, submitted
from tests.support.performed import Performed
from tests.support.visits import HOST, Tab
from tests.test_postgres_plans import explain

sqlite, postgres = only_sqlite, only_postgres

SEARCHES = (
    *("", "status:dead", "status:done", "status:waiting", "status:due", "topic:none", "queue:none"),
    *("tag:none", "error:none", "payload.user:none", "since:2h", "until:2h", "id:abcdef123456"),
    *(f"worker:{UUID(int=1)}", f"parent:{UUID(int=1)}", f"schedule:{UUID(int=1)}"),
)
PAGES = (
    *("/", "/?span=24h", "/?span=7d", "/queues", "/queues/default", "/workers", "/workflows"),
    *(
        "/schedules",
        "/schedules/nightly",
        "/system",
        "/audit",
        "/operations",
        "/jobs/new",
        "/jobs/complete?q=t",
    ),
    *(f"/jobs?q={quote(each)}" for each in SEARCHES),
    f"/bulk?act=retry&q={quote('status:dead error:none')}",
    "/jobs/JOB",
)


def tab_on(store: Any, url: str = "sqlite:///:memory:") -> Tab:
    app = Pulse.over(store, url)
    return Tab(dashboard(app, access=Local(Role.ADMIN)))


def forget(tab: Tab) -> None:
    """Let the next page read everything."""
    tab.app.inner.state.site.shared.forget()


async def with_a_schedule(store: Any) -> str:
    """Store a schedule and a job; return the job's id."""
    app = Pulse.over(store, "sqlite:///:memory:")
    await app.schedules.aput("nightly", "t", every=3600)
    return str(await submitted(store))


# -- however many jobs ----------------------------------------------------------------------------


async def test_no_page_on_sqlite_costs_more_beside_more_jobs(sqlite, monkeypatch):
    """Counted in steps of SQLite's machine."""
    for module in (search, reads, retention):
        monkeypatch.setattr(module, "SEARCHED", 100)
    for bound in ("AUDITED", "MOST_WAITS"):
        monkeypatch.setattr(reads, bound, 100)
    taken = count_steps(monkeypatch)
    store = sqlite.open()
    tab = tab_on(store)
    job = await with_a_schedule(store)

    async def steps() -> dict[str, int]:
        found = {}
        for page in PAGES:
            forget(tab)
            taken.clear()
            answer = await tab.get(page.replace("JOB", job))
            assert answer.status == 200, (page, answer.text)
            found[page] = len(taken)
        return found

    crowd(sqlite, 500)
    few = await steps()
    crowd(sqlite, 4_000)
    many = await steps()
    await store.aclose()
    assert {page: (few[page], many[page]) for page in PAGES if many[page] > 1.5 * few[page]} == {}


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that has an element for every 100 steps of the machine, in any reader."""
    taken: list[None] = []
    opened = Connections.open_reader

    def counted(connections: Connections) -> Any:
        connection = opened(connections)
        connection.set_progress_handler(lambda: taken.append(None), 100)
        return connection

    monkeypatch.setattr(Connections, "open_reader", counted)
    return taken


def crowd(backend: Any, number: int) -> None:
    """Add jobs in every status but RUNNING."""
    with closing(backend.connect()) as connection:
        connection.execute(
            f"""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number})
            INSERT INTO pulse_jobs (id, queue, topic, status, payload, next_run_at, submitted_at,
                completed_at, last_error, tags, wait_kind, wait_key)
            SELECT randomblob(16), 'default', 't', status, '{{"user": 1}}', 0, 0,
                CASE WHEN status IN ('DEAD_LETTERED', 'SUCCEEDED', 'CANCELLED') THEN 1 END, 'boom',
                '["a"]', CASE status WHEN 'WAITING' THEN 'SIGNAL' END, 'go'
            FROM (SELECT CASE i % 6 WHEN 0 THEN 'DEAD_LETTERED' WHEN 1 THEN 'PENDING'
                WHEN 2 THEN 'RETRYING' WHEN 3 THEN 'WAITING' WHEN 4 THEN 'CANCELLED'
                ELSE 'SUCCEEDED' END AS status FROM n)"""
        )
        connection.commit()


LARGE = {"pulse_jobs", "pulse_failures", "pulse_checkpoints", "pulse_signals", "pulse_audit"}
LARGE |= {"pulse_rollups", "pulse_error_rollups"}


async def test_no_page_on_postgres_scans_a_table(postgres, monkeypatch):
    monkeypatch.setattr(search, "SEARCHED", 2)  # a smaller table may be scanned
    store = postgres.open()
    tab = tab_on(store)
    job = await with_a_schedule(store)
    await store.submit([a_job() for _ in range(5)])
    performed = Performed(store)
    for page in PAGES:
        assert (await tab.get(page.replace("JOB", job))).status == 200
    await store.aclose()
    texts = [sql for sql in performed.texts if any(table in sql.text for table in LARGE)]
    assert len(texts) > 30
    with closing(psycopg.connect(postgres.url, autocommit=True)) as connection:
        for name, value in Sessions(PostgresOptions()).at_connect(Lane.WORK).items():
            connection.execute(f"SET {name} = '{value}'")
        for sql in texts:
            scanned = {
                node["Relation Name"]
                for node in explain(connection, sql)
                if node["Node Type"] == "Seq Scan"
            }
            assert not scanned & LARGE, sql.text


# -- however many tabs ----------------------------------------------------------------------------

LIVE = (*(page for page in PAGES if "/new" not in page and "bulk" not in page), "OPEN LIST")
"""Pages that an open tab reads again after each tick."""
UNSHARED = {"/audit", "/jobs/complete?q=t"}
"""Pages that no tab reads again by itself."""


@pytest.mark.parametrize("page", [page for page in LIVE if page not in UNSHARED])
async def test_ten_tabs_on_a_page_read_as_much_as_one(sqlite, page):
    store = sqlite.open()
    tab = tab_on(store)
    job = await with_a_schedule(store)
    address = await open_list(tab) if page == "OPEN LIST" else page.replace("JOB", job)
    performed = Performed(store)

    async def reads_of(tabs: int) -> dict[str, int]:
        forget(tab)
        performed.verbs.clear()
        answers = await asyncio.gather(
            *(tab.get(address, **{"x-refresh": "1"}) for _ in range(tabs))
        )
        assert {answer.status for answer in answers} == {200}
        return dict(performed.verbs)

    assert await reads_of(10) == await reads_of(1)
    await store.aclose()


async def open_list(tab: Tab) -> str:
    """Return the address at which an open list of jobs reads itself again."""
    page = (await tab.get("/jobs")).body
    return html.unescape(page.partition('data-refresh="')[2].partition('"')[0])


async def test_all_streams_share_one_poll_per_tick():
    hub = Hub(an_answer, tick=3600)
    streams = [hub.stream() for _ in range(10)]
    first = await asyncio.gather(*(anext(stream) for stream in streams))
    nexts = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    await hub.tick()
    second = await asyncio.gather(*nexts)
    assert len({*first, *second}) == 1
    assert (hub.polls, hub.streams) == (2, 10)
    for stream in streams:
        await stream.aclose()
    assert hub.streams == 0
    await hub.close()


async def test_nothing_is_polled_once_the_last_stream_is_closed():
    hub = Hub(an_answer, tick=0)
    stream = hub.stream()
    await anext(stream)
    await stream.aclose()
    for _ in range(10):
        await asyncio.sleep(0)
    before = hub.polls
    for _ in range(10):
        await asyncio.sleep(0)
    assert hub.polls == before


async def an_answer() -> int:
    return 1


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
async def test_tabs_that_come_and_go_leave_nothing_behind(sqlite, spec):
    """Servers of either version of ASGI tell of a closed connection in their own way."""
    store = sqlite.open()
    tab = tab_on(store)
    hub = tab.app.inner.state.hub

    async def come_and_go(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            await visit_stream(tab, spec)
        gc.collect()  # closes a stream whose server only dropped it…
        for _ in range(5):  # …in a task of its own
            await asyncio.sleep(0)
        # The poll of the last stream ends at its next tick, whenever that is.
        tasks = asyncio.all_tasks() - {hub._polling}
        return hub.streams, len(tasks), len(gc.get_objects())

    await come_and_go(20)
    streams, tasks, objects = await come_and_go(20)
    later_streams, later_tasks, later_objects = await come_and_go(500)
    assert (streams, later_streams) == (0, 0)
    assert later_tasks == tasks
    assert later_objects - objects < 500
    await hub.close()
    await store.aclose()


async def visit_stream(tab: Tab, spec: str) -> None:
    """Open the event stream, read one event, and close the connection."""
    has_event = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await has_event.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            if has_event.is_set():
                raise OSError
            has_event.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": spec}, "http_version": "1.1",
        "scheme": "http", "method": "GET", "path": "/live", "raw_path": b"/live",
        "query_string": b"", "root_path": "", "client": ("127.0.0.1", 4711),
        "server": ("127.0.0.1", 8124), "headers": [(b"host", HOST.encode())],
    }  # fmt: skip
    visiting = asyncio.ensure_future(tab.app(scope, receive, send))
    await has_event.wait()
    if spec == "2.4":  # the next event finds the connection closed
        await tab.app.inner.state.hub.tick()
    await asyncio.wait([visiting])
    visiting.exception()
