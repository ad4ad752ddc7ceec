"""``pulsed top``: the overview on a terminal, from a real database of each kind."""

from datetime import timedelta
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest

from pulsed import Pulse
from pulsed.cli.commands.top import Latest
from pulsed.cli.view.overview_report import Caption, FrameSize, frame
from pulsed.cli.view.sparkline import sparkline
from pulsed.engine.overview import OverviewReader
from pulsed.model.audit import Operator
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.rollup import MINUTE, Histogram, Rollup, Stats, floor
from pulsed.store import tokens
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.commands import a_dead_job, a_waiting_job, lines_of, present, run
from tests.support.jobs import claim
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.terminals import CONTROL_C, ENTER, PROMPT, Terminal

RUNS = Histogram.of([1.5] * 100)
OWN_SCREEN, SHELLS_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
CONTROL_Z = "\x1a"
HIDDEN_CURSOR, CURSOR = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def busy(live: Store) -> Store:
    """A database with a dead letter, a queue that no worker takes from, and a past hour."""
    a_dead_job(live)
    present(live)
    a_waiting_job(live)
    for _ in range(3):
        a_waiting_job(live, queue="post")
    now = run_blocking(live.now())
    rollups = [
        Rollup(
            floor(now - timedelta(minutes=minutes), MINUTE),
            "default",
            "email",
            Stats(succeeded=9, dead_lettered=1, wait=RUNS, run=RUNS),
        )
        for minutes in range(2, 9)
    ]
    run_blocking(live.rollups.record(uuid4(), rollups, []))
    return live


def shown(url: str, *args: str, width: int = 80) -> list[str]:
    result = run("top", "--format", "table", *args, PULSED_URL=url, COLUMNS=str(width))
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


class TestOneFrame:
    @pytest.mark.parametrize("width", [80, 140])
    def test_what_is_wrong_comes_first_and_everything_fits(self, url, busy, width):
        lines = shown(url, width=width)
        text = "\n".join(lines)
        assert max(map(len, lines)) <= width
        assert lines[0].startswith("pulsed top  ")
        assert lines[2].startswith("▲ dead letters 1, 7 new in 24 h   oldest waiting ")
        assert "running 0 of 5 slots" in text
        assert "failed 10 %, usually 10 %" in text
        assert "last hour  ···" in text
        assert "7 attempts" in text
        assert "3 jobs are due and no live worker takes from it" in text.replace("\n  ", " ")
        assert "→ pulsed worker module:app -q " in text

    def test_queues_and_workers_have_lines(self, url, busy):
        lines = [line.split() for line in shown(url)]
        (queue,) = [line for line in lines if line[:1] == ["default"]]
        assert queue[1] == "1"  # due
        assert queue[-4:] == ["8", "10", "%", "1"]  # a minute, failed, workers
        (worker,) = [line for line in lines if line[:1] == ["here"]]
        assert worker[1:4] == ["1", "running", "0/5"]

    def test_queues_are_sorted(self, url, busy):
        def order(*args: str) -> list[str]:
            lines = shown(url, *args)
            names = ("default", "post")
            return [name for line in lines for name in names if line.startswith(name)]

        assert order("--sort", "due") == ["post", "default"]
        assert order("--sort", "name") == ["default", "post"]

    def test_one_queue(self, url, busy):
        text = "\n".join(shown(url, "--queue", "default"))
        assert ", queue default" in text
        assert "▲ dead letters 7 new in 24 h" in text
        assert "post " not in text
        assert "no live worker" not in text

    def test_a_database_without_jobs_says_how_to_start(self, url, live):
        text = "\n".join(shown(url))
        assert "dead letters 0, none new in 24 h" in text
        assert "pulsed dev module:app" in text

    def test_json_in_a_pipe(self, url, busy):
        (seen,) = lines_of(run("top", PULSED_URL=url))
        assert (seen["dead_letters"], seen["new_dead"], seen["due"]) == (1, 7, 4)
        assert {queue["queue"]: queue["due"] for queue in seen["queues"]}["default"] == 1
        assert [worker["live"] for worker in seen["workers"]] == [True]
        assert sum(minute["failed"] for minute in seen["minutes"]) == 7
        assert seen["warnings"][0]["command"].startswith("pulsed worker")

    def test_what_is_paused_or_full_is_marked(self, url, busy):
        controls = busy.controls
        ada = Operator("ada", "cli")
        run_blocking(controls.pause(ControlScope.QUEUE, "post", by=ada))
        run_blocking(controls.pause(ControlScope.TOPIC, "news", by=ada))
        run_blocking(controls.declare(ControlScope.LIMIT, {"api": Numbers(running=1)}))
        for _ in range(3):
            a_waiting_job(busy, queue="calls", limit_key="api")
        run_blocking(claim(busy, queue="calls"))
        lines = shown(url)
        text = "\n".join(lines).replace("\n  ", " ")
        assert "Queue post was paused by " in text
        assert " ago, and 3 jobs are due, the oldest for " in text
        assert "→ pulsed queues resume post" in text
        below = lines[next(n for n, line in enumerate(lines) if line.startswith("post ")) + 1]
        assert below.strip().startswith("paused by ")
        assert "topic news paused by " in text
        assert "limit api full: 1 of 1 run, 2 waiting" in text
        (seen,) = lines_of(run("top", PULSED_URL=url))
        assert {each["queue"]: each["paused"] for each in seen["queues"]}["post"] is True
        assert [each.get("topic", each.get("queue")) for each in seen["paused"]] == ["post", "news"]
        (full,) = seen["full_limits"]
        assert (full["limit"], full["running"], full["waiting"]) == ("api", 1, 2)
        assert (full["most_running"], full["full_keys"]) == (1, 1)
        text = "\n".join(shown(url, "--queue", "default"))
        assert "post " not in text
        assert "limit api" not in text

    @pytest.mark.parametrize("args", [["--interval", "0"], ["--sort", "luck"], ["--queue", ""]])
    def test_wrong_usage(self, url, live, args):
        assert run("top", *args, PULSED_URL=url).exit_code == 2

    def test_without_a_database_it_exits(self, tmp_path):
        assert run("top", "--url", f"sqlite:///{tmp_path}/none.db").exit_code == 4


def test_through_a_server_with_a_token_that_may_read(database):
    store, secret = SqliteStore(database), tokens.new_secret()
    run_blocking(tokens.add(store, Token("ada", tokens.digest_of(secret), ("read",), None, None)))
    a_waiting_job(store)
    with ServerThread(lambda: store, authenticator=FreshAuthenticator(store)) as server:
        text = "\n".join(shown(f"pulse://ada:{secret}@{server.host}"))
        assert secret not in text
    assert "1 job is due and no live worker takes from it" in text


@pytest.mark.embedded("about frames, whatever the database is")
async def test_a_frame_has_the_size_of_the_terminal(store: Store):
    app = Pulse.over(store, "sqlite://")
    for number in range(30):
        await app.aenqueue("send", queue=f"queue-{number}")
    seen = await OverviewReader(store).read()
    caption = Caption(
        "sqlite:///" + "x" * 100, "every 2 s", "The database went away. " * 9, "q quit"
    )
    for width, height in product((20, 40, 80, 81, 300), (1, 2, 9, 24, 99)):
        lines = frame(seen, caption, FrameSize(width, height))
        assert len(lines) == height
        assert max(line.cell_len for line in lines) <= width
        assert lines[-1].plain == "q quit"[:width]
    text = "\n".join(line.plain for line in frame(seen, caption, FrameSize(80, 40)))
    assert "more lines" in text
    assert "queue-0" in text


def test_bars_are_to_scale_and_zero_has_none():
    assert sparkline([], 10) == ""
    assert sparkline([0, 0], 10) == "··"
    assert sparkline([0, 1, 50, 100], 10) == "·▁▅█"
    assert sparkline([1, 1, 1, 1, 1], 2) == "█▆"


class TestLatest:
    async def test_what_could_be_read_last_stays_with_the_reason(
        self, postgres_server: ScratchPostgres
    ):
        store = PostgresStore(postgres_server.url, PostgresOptions(**AT_ONCE_OPTIONS))
        await store.now()
        time = [0.0]
        latest = Latest(OverviewReader(store).read, lambda: time[0])
        await latest.first()
        seen = latest.seen
        assert not latest.caption("here", 2.0).trouble
        postgres_server.kill()
        time[0] = 30.0
        await latest.tick()
        assert latest.seen is seen
        assert "Retrying; these numbers are 30 s old." in latest.caption("here", 2.0).trouble
        postgres_server.start()
        await latest.tick()
        assert latest.seen is not seen
        assert not latest.caption("here", 2.0).trouble
        await store.aclose()


def test_a_live_screen_follows_the_terminal_and_gives_it_back(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Pulse(url) as app, Terminal(tmp_path, PULSED_URL=url) as terminal:
        app.enqueue("send")
        modes = terminal.modes
        terminal.type(f"pulsed top --interval 0.2{ENTER}")
        terminal.wait(lambda: "due 1 " in terminal.text and "q quit" in terminal.text)
        assert terminal.modes != modes  # keys are read one by one
        assert terminal.raw.count(OWN_SCREEN) == 1
        app.enqueue("send")
        terminal.wait(lambda: "due 2 " in terminal.text)
        assert "at most" in terminal.text
        terminal.resize(12, 60)
        terminal.type("s")
        terminal.wait(lambda: "sort: due" in terminal.text)
        *_, last = terminal.text.split("pulsed top")
        assert max(map(len, last.splitlines())) <= 60
        assert len(last.splitlines()) <= 12
        terminal.type(CONTROL_Z)
        terminal.wait(lambda: terminal.text.endswith(PROMPT))
        assert_given_back(terminal, modes)
        terminal.type(f"fg{ENTER}")
        terminal.wait(lambda: "q quit" in terminal.text)
        terminal.type("q")
        terminal.wait(lambda: terminal.text.endswith(PROMPT))
        assert_given_back(terminal, modes)
        terminal.type(f"pulsed top{ENTER}")
        terminal.wait(lambda: "due 2 " in terminal.text)
        terminal.type(CONTROL_C)
        terminal.wait(lambda: terminal.text.endswith(PROMPT))
        assert_given_back(terminal, modes)
        assert "Traceback" not in terminal.everything


def assert_given_back(terminal: Terminal, modes: object) -> None:
    raw = terminal.raw
    assert raw.rindex(SHELLS_SCREEN) > raw.rindex(OWN_SCREEN)
    assert raw.rindex(CURSOR) > raw.rindex(HIDDEN_CURSOR)
    assert terminal.modes == modes
