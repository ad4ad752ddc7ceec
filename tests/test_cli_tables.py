"""Tables on a narrow terminal: what cannot be read elsewhere is never cut."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from uuid import UUID, uuid4

from rich.console import Console

from pulsed.cli.view.output import Table
from pulsed.cli.view.schedule_report import show_fires
from pulsed.client.schedules import ScheduleFire
from pulsed.model.job import Status, WorkerInfo
from pulsed.model.rollup import MINUTE, ErrorRollup, Histogram, Rollup, Stats, floor
from pulsed.store.blocking import run_blocking
from tests.support.commands import a_dead_job, a_waiting_job, run
from tests.support.jobs import a_job

NARROW = 80
AT = datetime(2026, 11, 17, 9, tzinfo=UTC)
LONG = "a_name_of_quite_some_length_" * 3


def lines(table: Table, width: int) -> list[str]:
    return [line.plain for line in table.lines(width)]


def shown(*args: str, url: str) -> list[str]:
    """The lines of a command's table at 80 columns."""
    result = run(*args, "--format", "table", PULSED_URL=url, COLUMNS=str(NARROW))
    assert result.exit_code == 0, result.output
    found = result.stdout.splitlines()
    assert max(map(len, found)) <= NARROW
    return found


class TestTable:
    def table(self) -> Table:
        table = Table("A", "B", "C", flexible={"A": 4}, optional=("B",))
        table.add("a" * 10, "b" * 10, "c" * 10)
        return table

    def test_what_fits_is_shown_in_full(self):
        assert lines(self.table(), 34)[1] == "aaaaaaaaaa  bbbbbbbbbb  cccccccccc"

    def test_flexible_columns_shrink_first(self):
        assert lines(self.table(), 28)[1] == "aaa…  bbbbbbbbbb  cccccccccc"

    def test_then_optional_columns_are_left_out_and_the_others_have_their_room(self):
        assert lines(self.table(), 27) == ["A           C", "aaaaaaaaaa  cccccccccc"]

    def test_at_last_flexible_columns_shrink_on(self):
        assert lines(self.table(), 14)[1] == "a…  cccccccccc"

    def test_numbers_end_at_the_same_place(self):
        table = Table("N", "TEXT", flexible={}, numbers=("N",))
        table.add("7", "x")
        table.add("1,204", "y")
        assert lines(table, 80) == ["    N  TEXT", "    7  x", "1,204  y"]


def test_a_list_of_jobs_has_its_last_column_whole(url, live):
    dead = a_dead_job(live)
    a_waiting_job(live, topic=LONG, delay=44.5 * 60, max_attempts=1000)
    head, *rest = shown("jobs", "list", url=url)
    assert head.split() == ["ID", "TOPIC", "STATUS", "TRY", "WHEN"]
    assert rest[0].endswith(("in 44 min", "in 45 min"))
    assert rest[1].startswith(str(dead))
    assert rest[1].endswith(" ago")
    wider = run("jobs", "list", "--format", "table", PULSED_URL=url, COLUMNS="100")
    assert "  AGE  " in wider.stdout


def test_statistics_of_long_names_have_all_counts_and_p95(url, live):
    now = run_blocking(live.now())
    times = Histogram.of([99.0] * 9)
    stats = Stats(6_543_210, 1, 543_210, 43_210, 3_210, 1, 0, times, times)
    errors = [ErrorRollup(floor(now, MINUTE), LONG, LONG, LONG, 43_210, 3_210, now, LONG)]
    rollups = [Rollup(floor(now, MINUTE), LONG, LONG, stats)]
    run_blocking(live.rollups.record(uuid4(), rollups, errors))
    head, row, _, errors_head, error = shown("stats", url=url)
    assert head.split()[-4:] == ["WAIT", "P95", "RUN", "P95"]
    assert row.split()[2:6] == ["6,543,210", "543,210", "43,210", "3,210"]
    assert row.endswith("min")
    assert errors_head.split() == ["ERRORS", "DEAD", "TOPIC", "KIND", "LAST"]
    assert error.count("…") == 3


def test_a_worker_on_a_host_with_a_long_name_keeps_its_pid_and_state(url, live):
    names = tuple(f"{LONG}{number}" for number in range(9))
    info = WorkerInfo(
        id=UUID(int=7), host=LONG, pid=4_194_303, queues=names, topics=names, slots=1000
    )
    run_blocking(live.announce(info))
    _, row = shown("workers", url=url)
    assert "…  4194303  running  0/1000" in row


def test_a_queue_with_a_long_name_keeps_its_numbers(url, live):
    run_blocking(live.submit([a_job(queue=LONG) for _ in range(3)]))
    _, row = shown("queues", url=url)
    assert row.split()[1] == "3"
    assert row.endswith("none")


def test_the_fires_of_a_schedule_keep_their_status():
    later = timedelta(minutes=45)
    fire = ScheduleFire(uuid4(), AT, AT + later, Status.SUCCEEDED)
    to = StringIO()
    show_fires(Console(file=to, width=NARROW), [fire], AT + 2 * later)
    _, row = to.getvalue().splitlines()
    assert row.endswith("SUCCEEDED")
