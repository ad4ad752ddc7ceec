"""``pulsed schedules`` over a real database of each kind, and what other commands say of them."""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pulsed import Pulse
from pulsed.client.schedule_spec import make_spec
from pulsed.engine.upkeep.scheduler import Scheduler, job_of
from pulsed.handler import Registry
from pulsed.model.schedule import ScheduleRow, ScheduleState
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend
from tests.support.commands import lines_of, present, run, supervised_commands

PAST = datetime(2026, 1, 1, tzinfo=UTC)

APP = """
from pulsed import Pulse

app = Pulse(name="shop")

@app.job(queue="mail")
async def send_report(to: str, pages: int = 1) -> None: ...
"""


def a_schedule(store: SqlStore, name: str = "report", *, app: str = "default", **options: Any):
    """Write a schedule, with ``every`` an hour unless told otherwise."""
    kinds = {"cron", "every", "at"} & set(options)
    options = options if kinds else {"every": 3600, **options}
    declared = options.pop("declared", False)
    spec = make_spec(options.pop("topic", "email"), options, Registry())
    return run_blocking(store.schedules.put(app, name, spec, declared=declared)).row


def read(store: SqlStore, name: str = "report", app: str = "default") -> ScheduleRow:
    found = run_blocking(store.schedules.get(app, name))
    assert found is not None
    return found


def fire(store: SqlStore) -> int:
    """Fire what is due, as a worker does; returns how many jobs that made."""

    async def tick() -> int:
        made = await Scheduler(store).tick()
        await store.aclose()
        return len(made)

    return asyncio.run(tick())


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("schedules", "schedule_changes", "jobs"):
        monkeypatch.setattr(f"pulsed.cli.commands.{module}.for_people", lambda **_: True)


@pytest.fixture
def shop(tmp_path, monkeypatch) -> str:
    """The name of an app with a handler."""
    (tmp_path / "shop_of_schedules.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop_of_schedules", raising=False)
    return "shop_of_schedules:app"


class TestAdd:
    def test_by_the_name_of_a_topic_without_any_code(self, url, live):
        args = ("report", "send_report", "to=ada", "pages=3", "--cron", "0 9 * * MON-FRI")
        more = ("--tz", "Europe/Berlin", "--queue", "mail", "--max-attempts", "7")
        (made,) = lines_of(run("schedules", "add", *args, *more, PULSED_URL=url))
        assert made["when"] == "At 09:00 on Monday through Friday (Europe/Berlin)"
        assert made["spec"]["payload"] == {"to": "ada", "pages": 3}
        assert made["spec"]["tz"] == "Europe/Berlin"
        spec = read(live).spec
        assert (spec.topic, spec.queue, spec.max_attempts) == ("send_report", "mail", 7)

    def test_every_option_arrives(self, url, live):
        args = ["--every", "5m", "--catch-up", "all", "--limit", "3", "--overlap", "skip"]
        args += ["--jitter", "10s", "--start", "1h", "--end", "2999-01-01T00:00:00Z"]
        args += ["--priority", "5", "--timeout", "1m", "--lease", "20s"]
        args += ["--tag", "a", "--tag", "b", "--header", "trace=1", "--json-args", '{"n": 1}']
        lines_of(run("schedules", "add", "report", "email", *args, PULSED_URL=url))
        spec = read(live).spec
        assert spec.every == 300_000_000
        assert (spec.catch_up, spec.limit, spec.overlap, spec.jitter) == ("all", 3, "skip", 10.0)
        assert spec.start is not None
        assert timedelta(0) < spec.start - run_blocking(live.now()) <= timedelta(hours=1)
        assert spec.end == datetime(2999, 1, 1, tzinfo=UTC)
        assert (spec.priority, spec.timeout, spec.lease) == (5, 60.0, 20.0)
        assert (spec.tags, spec.headers, spec.payload) == (("a", "b"), {"trace": "1"}, '{"n":1}')

    @pytest.mark.parametrize("at", ["2h", "2999-01-01T09:00:00+02:00"])
    def test_one_instant(self, url, live, at):
        lines_of(run("schedules", "add", "once", "email", "--at", at, PULSED_URL=url))
        cursor = read(live, "once").next_run_at
        assert cursor is not None
        if at == "2h":
            ahead = (cursor - run_blocking(live.now())).total_seconds()
            assert 7_100 < ahead <= 7_200
        else:
            assert cursor == datetime(2999, 1, 1, 7, tzinfo=UTC)

    def test_an_existing_name_is_refused_with_a_hint_unless_it_is_to_be_replaced(self, url, live):
        a_schedule(live)
        args = ("schedules", "add", "report", "other", "--every", "90")
        refused = run(*args, PULSED_URL=url)
        assert refused.exit_code == 1
        assert "pulsed schedules edit report" in refused.stderr
        assert read(live).spec.topic == "email"
        assert run(*args, "--replace", PULSED_URL=url).exit_code == 0
        assert read(live).spec.topic == "other"

    @pytest.mark.parametrize(
        "args, said",
        [
            ([], "exactly one of"),
            (["--every", "5m", "--cron", "0 9 * * *"], "exactly one of"),
            (["--cron", "0 25 * * *"], "hour field '25'"),
            (["--cron", "0 9 * * *", "--tz", "Mars/Base"], "no time zone 'Mars/Base'"),
            (["--cron", "0 0 30 2 *"], "no"),
            (["--every", "soon"], "no duration"),
            (["--at", "teatime"], "no time"),
            (["--every", "5m", "--catch-up", "some"], "'some' is not one of"),
            (["--every", "5m", "--end", "2020-01-01T00:00:00Z"], "never run"),
            (["--every", "5m", "to"], "name=value"),
        ],
    )
    def test_what_is_wrong_is_said_and_nothing_stored(self, url, live, args, said):
        result = run("schedules", "add", "report", "email", *args, PULSED_URL=url)
        assert result.exit_code == 2
        assert said in result.stderr
        assert run_blocking(live.schedules.list_page()) == []

    def test_with_an_app_topic_and_arguments_are_checked(self, url, live, shop):
        base = ("--every", "5m", "--app", shop, "--url", url)
        unknown = run("schedules", "add", "r", "send_repord", *base)
        assert unknown.exit_code == 2
        assert "Did you mean 'send_report'" in unknown.stderr
        wrong = run("schedules", "add", "r", "send_report", "to=ada", "pages=many", *base)
        assert wrong.exit_code == 2
        assert "'pages'" in wrong.stderr
        (made,) = lines_of(run("schedules", "add", "r", "send_report", "to=ada", *base))
        assert made["app"] == "shop"
        assert made["spec"]["queue"] == "mail"

    def test_a_database_is_made_if_there_is_none(self, tmp_path):
        url = f"sqlite:///{tmp_path}/new.db"
        assert run("schedules", "add", "r", "t", "--every", "5m", "--url", url).exit_code == 0
        assert run("schedules", "list", "--url", f"sqlite:///{tmp_path}/none.db").exit_code != 0


class TestEdit:
    def test_what_is_not_mentioned_stays(self, url, live):
        payload = {"to": "ada", "n": 1}
        a_schedule(live, cron="0 9 * * *", tz="Europe/Berlin", payload=payload, priority=3)
        args = ("edit", "report", "n=2", "--cron", "0 8 * * *")
        (changed,) = lines_of(run("schedules", *args, PULSED_URL=url))
        assert changed["when"] == "At 08:00 every day (Europe/Berlin)"
        assert changed["spec"]["payload"] == {"to": "ada", "n": 2}
        assert changed["spec"]["priority"] == 3

    def test_all_arguments_at_once(self, url, live):
        a_schedule(live, payload={"to": "ada"})
        lines_of(run("schedules", "edit", "report", "--json-args", "{}", PULSED_URL=url))
        assert read(live).spec.payload == "{}"

    def test_options_can_be_taken_away(self, url, live):
        a_schedule(
            live,
            end=datetime(2999, 1, 1, tzinfo=UTC),
            jitter=5,
            tags=["a"],
            max_attempts=2,
            catch_up="all",
            limit=3,
        )
        words = ("end", "jitter", "tag", "max-attempts", "limit")
        unset = [part for word in words for part in ("--unset", word)]
        lines_of(run("schedules", "edit", "report", *unset, PULSED_URL=url))
        spec = read(live).spec
        assert (spec.end, spec.jitter, spec.tags, spec.max_attempts) == (None, 0.0, (), None)
        assert (spec.catch_up, spec.limit) == ("all", None)

    def test_what_the_change_rules_out_goes_with_it(self, url, live):
        a_schedule(live, catch_up="all", limit=3, end=datetime(2999, 1, 1, tzinfo=UTC))
        lines_of(run("schedules", "edit", "report", "--catch-up", "one", PULSED_URL=url))
        assert read(live).spec.limit is None
        lines_of(run("schedules", "edit", "report", "--at", "1h", PULSED_URL=url))
        assert (read(live).spec.end, read(live).spec.every) == (None, None)

    def test_a_declared_one_says_how_long_the_change_lasts(self, url, live):
        a_schedule(live, declared=True)
        result = run("schedules", "edit", "report", "--every", "2h", PULSED_URL=url)
        assert "until the next worker starts" in result.stderr

    def test_nothing_to_change(self, url, live):
        a_schedule(live)
        assert run("schedules", "edit", "report", PULSED_URL=url).exit_code == 2


class TestLook:
    def test_list_is_about_one_app_unless_told(self, url, live):
        a_schedule(live, "mine")
        a_schedule(live, "theirs", app="shop")
        rows = lines_of(run("schedules", "list", PULSED_URL=url))
        assert [row["name"] for row in rows] == ["mine"]
        named = lines_of(run("schedules", "list", "--app-name", "shop", PULSED_URL=url))
        assert [row["name"] for row in named] == ["theirs"]
        everything = lines_of(run("schedules", "list", "--all-apps", PULSED_URL=url))
        assert [(row["app"], row["name"]) for row in everything] == [
            ("default", "mine"),
            ("shop", "theirs"),
        ]

    def test_the_app_gives_its_name(self, url, live, shop):
        a_schedule(live, "theirs", app="shop")
        (row,) = lines_of(run("schedules", "list", PULSED_URL=url, PULSED_APP=shop))
        assert row["name"] == "theirs"

    def test_a_url_and_a_name_need_no_code(self, url, live):
        a_schedule(live, app="shop")
        args = ("--app-name", "shop", "--url", url)
        assert run("schedules", "show", "report", *args, PULSED_APP="gone:app").exit_code == 0

    @pytest.mark.parametrize("columns", [80, 120])
    def test_a_table_fits_the_terminal(self, url, live, people, columns):
        a_schedule(live, "report", cron="0 9 * * MON-FRI", tz="Europe/Berlin")
        a_schedule(live, "a_schedule_with_a_name_of_quite_some_length_" * 2)
        row = a_schedule(live, "broken")
        run_blocking(live.schedules.set_error(row, "Oops: \x1b[31m" + "long " * 40))
        run_blocking(live.schedules.pause("default", "report"))
        text = run("schedules", "list", PULSED_URL=url, COLUMNS=str(columns)).stdout
        assert max(map(len, text.splitlines())) <= columns
        for word in (
            "At 09:00 on Monday",
            "PAUSED",
            "Every hour",
            "in 60 min, ",
            "Oops: \N{REPLACEMENT CHARACTER}",
        ):
            assert word in text

    def test_show_has_everything(self, url, live):
        a_schedule(live, every=3600, start=PAST)
        (shown,) = lines_of(run("schedules", "show", "report", PULSED_URL=url))
        assert shown["state"] == "ACTIVE"
        assert shown["spec"]["every"] == 3600
        assert len(shown["next"]) == 5
        assert shown["next"][0]["occurrence"] == shown["next_run_at"]
        assert shown["fires"] == []

    def test_people_see_the_next_and_the_last(self, url, live, people):
        a_schedule(live, "once", at=PAST, payload={"to": "ada"})
        assert fire(live) == 1
        text = run("schedules", "show", "once", PULSED_URL=url, COLUMNS="80").stdout
        assert "once  DONE" in text
        assert "it has no further occurrence" in text
        assert 'email {"to": "ada"}' in text
        assert "PENDING" in text
        assert max(map(len, text.splitlines())) <= 80

    @pytest.mark.parametrize(
        "spec",
        [
            '{"topic": 7}',
            '{"topic": "t", "payload": "{}"}',
            '{"topic": "t", "payload": "{}", "cron": "bad cron"}',
            '{"topic": "t", "payload": "{}", "cron": "0 9 * * *", "zone": "Mars/Base"}',
        ],
    )
    def test_one_that_makes_no_sense_is_shown_and_can_be_replaced(self, url, live, backend, spec):
        a_schedule(live)
        backend.execute(f"UPDATE pulse_schedules SET spec = '{spec}'")
        (row,) = lines_of(run("schedules", "list", PULSED_URL=url))
        assert row["spec"] is None
        (shown,) = lines_of(run("schedules", "show", "report", PULSED_URL=url))
        assert shown["next"] == []
        resume = run("schedules", "resume", "report", PULSED_URL=url)
        assert resume.exit_code == 1
        assert "--replace" in resume.stderr
        args = ("add", "report", "email", "--every", "2h", "--replace")
        assert run("schedules", *args, PULSED_URL=url).exit_code == 0
        assert read(live).state is ScheduleState.ACTIVE

    def test_one_that_cannot_be_read_cannot_be_edited(self, url, live, backend):
        a_schedule(live)
        backend.execute("""UPDATE pulse_schedules SET spec = '{"topic": 7}'""")
        edit = run("schedules", "edit", "report", "--every", "2h", PULSED_URL=url)
        assert edit.exit_code == 2
        assert "cannot be read" in edit.stderr

    @pytest.mark.parametrize(
        "args",
        [
            ["show"],
            ["edit", "--every", "2h"],
            ["pause"],
            ["resume"],
            ["delete", "--yes"],
            ["run"],
            ["next"],
            ["fires"],
        ],
    )
    def test_one_that_does_not_exist(self, url, live, args):
        a_schedule(live, "report", app="shop")
        result = run("schedules", args[0], "report", *args[1:], PULSED_URL=url)
        assert result.exit_code == 3
        assert "'default' has no schedule 'report'" in result.stderr
        assert "shop" in result.stderr


class TestNext:
    def test_a_change_of_clocks_is_marked(self, url, live):
        a_schedule(live, cron="30 2 * * *", tz="Europe/Berlin")
        args = ("next", "report", "-n", "3", "--after", "2027-03-27T00:00:00Z")
        rows = lines_of(run("schedules", *args, PULSED_URL=url))
        assert [(row["local"], row["clock_change"]) for row in rows] == [
            ("2027-03-27T02:30:00+01:00", None),
            ("2027-03-28T03:00:00+02:00", "forward"),
            ("2027-03-29T02:30:00+02:00", None),
        ]
        assert rows[1]["occurrence"] == "2027-03-28T01:00:00Z"

    def test_people_see_both_clocks(self, url, live, people):
        a_schedule(live, cron="30 2 * * *", tz="Europe/Berlin")
        args = ("next", "report", "-n", "3", "--after", "2027-10-30T00:00:00Z")
        lines = run("schedules", *args, PULSED_URL=url, COLUMNS="80").stdout.splitlines()
        assert "Sun 2027-10-31 02:30 +0200  Sun 2027-10-31 00:30" in lines[2]
        assert "Mon 2027-11-01 02:30 +0100  Mon 2027-11-01 01:30  ← clocks go back" in lines[3]
        assert max(map(len, lines)) <= 80

    def test_a_paused_one_shows_what_would_come_and_says_that_it_is_paused(
        self, url, live, backend
    ):
        a_schedule(live, every=60)
        hour = "3600000000" if backend.engine == "sqlite" else "interval '1 hour'"
        backend.execute(f"UPDATE pulse_schedules SET next_run_at = next_run_at - {hour}")
        run_blocking(live.schedules.pause("default", "report"))
        result = run("schedules", "next", "report", PULSED_URL=url)
        rows = lines_of(result)
        assert len(rows) == 10
        assert datetime.fromisoformat(rows[0]["occurrence"]) > run_blocking(live.now())
        assert "it is PAUSED" in result.stderr


class TestFires:
    def test_job_occurrence_and_lag(self, url, live):
        a_schedule(live, "once", at=PAST)
        assert fire(live) == 1
        (job_id,) = run("schedules", "run", "once", PULSED_URL=url).stdout.split()
        by_hand, due = lines_of(run("schedules", "fires", "once", PULSED_URL=url))
        assert due["occurrence"] == "2026-01-01T00:00:00Z"
        assert due["lag"] > 0
        assert due["status"] == "PENDING"
        assert (by_hand["job_id"], by_hand["occurrence"], by_hand["lag"]) == (job_id, None, None)

    def test_pages(self, url, live):
        row = a_schedule(live, every=60)
        occurrences = [PAST + timedelta(minutes=n) for n in range(3)]
        run_blocking(live.submit([job_of(row, row.spec, occurrence) for occurrence in occurrences]))
        first = lines_of(run("schedules", "fires", "report", "--limit", "2", PULSED_URL=url))
        before = first[-1]["occurrence"]
        rest = lines_of(run("schedules", "fires", "report", "--before", before, PULSED_URL=url))
        found = [datetime.fromisoformat(each["occurrence"]) for each in [*first, *rest]]
        assert found == occurrences[::-1]

    def test_a_table(self, url, live, people):
        a_schedule(live, "once", at=PAST)
        fire(live)
        run("schedules", "run", "once", PULSED_URL=url)
        lines = run("schedules", "fires", "once", PULSED_URL=url, COLUMNS="80").stdout.splitlines()
        assert "by hand" in lines[1]
        assert "01-01 00:00:00" in lines[2]
        assert max(map(len, lines)) <= 80


class TestActs:
    def test_pause_and_resume(self, url, live):
        a_schedule(live)
        (paused,) = lines_of(run("schedules", "pause", "report", PULSED_URL=url))
        assert paused["state"] == read(live).state == "PAUSED"
        (resumed,) = lines_of(run("schedules", "resume", "report", PULSED_URL=url))
        assert resumed["state"] == read(live).state == "ACTIVE"

    def test_run_enqueues_the_job_out_of_turn(self, url, live):
        row = a_schedule(live, payload={"to": "ada"}, queue="mail")
        (job_id,) = run("schedules", "run", "report", PULSED_URL=url).stdout.split()
        (shown,) = lines_of(run("jobs", "show", job_id, PULSED_URL=url))
        assert (shown["payload"], shown["queue"]) == ({"to": "ada"}, "mail")
        assert read(live) == row

    def test_without_a_terminal_nothing_is_deleted_unless_yes_says_so(self, url, live):
        a_schedule(live)
        result = run("schedules", "delete", "report", PULSED_URL=url)
        assert result.exit_code == 2
        assert "this would delete the schedule 'report' (Every hour)" in result.stderr
        assert read(live).name == "report"
        result = run("schedules", "delete", "report", "--yes", PULSED_URL=url)
        assert (result.exit_code, result.stdout) == (0, "report\n")
        assert run_blocking(live.schedules.list_page()) == []

    @pytest.mark.parametrize("answer, left", [("n\n", 1), ("y\n", 0)])
    def test_a_person_is_asked(self, url, live, monkeypatch, answer, left):
        monkeypatch.setattr("pulsed.cli.prompt.can_ask", lambda: True)
        a_schedule(live)
        result = run("schedules", "delete", "report", stdin=answer, PULSED_URL=url)
        assert "Delete the schedule 'report'" in result.stderr
        assert len(run_blocking(live.schedules.list_page())) == left
        assert result.exit_code == left


class TestElsewhere:
    def doctor(self, url: str, code: int) -> dict[str, Any]:
        result = run("doctor", "--json", PULSED_URL=url)
        assert result.exit_code == code, result.output
        return {found["check"]: found for found in map(json.loads, result.stdout.splitlines())}

    def test_the_doctor_sees_a_schedule_that_cannot_be_fired(self, url, live):
        present(live)
        row = a_schedule(live)
        assert self.doctor(url, 0)["schedules"]["detail"] == "1 active, none is overdue"
        run_blocking(live.schedules.set_error(row, "InvalidOption: no"))
        found = self.doctor(url, 6)["schedules"]
        assert found["level"] == "fail"
        assert "'report' of 'default': InvalidOption: no" in found["detail"]

    def test_the_doctor_sees_that_nobody_fires(self, url, live, backend: Backend):
        present(live)
        a_schedule(live, every=60)
        minutes = "180000000" if backend.engine == "sqlite" else "interval '3 minutes'"
        backend.execute(f"UPDATE pulse_schedules SET next_run_at = next_run_at - {minutes}")
        assert "'report' of 'default'" in self.doctor(url, 6)["overdue schedules"]["detail"]
        run_blocking(live.schedules.pause("default", "report"))
        assert "overdue schedules" not in self.doctor(url, 0)

    def test_a_job_knows_where_it_comes_from(self, url, live, people, monkeypatch):
        a_schedule(live, "once", at=PAST)
        fire(live)
        row = read(live, "once")
        (made,) = run_blocking(live.schedules.fires(row.id))
        text = run("jobs", "show", str(made.id), PULSED_URL=url).stdout
        assert "once, occurrence 2026-01-01T00:00:00Z" in text
        run_blocking(live.schedules.delete("default", "once"))
        text = run("jobs", "show", str(made.id), PULSED_URL=url).stdout
        assert f"{row.id}, which is deleted" in text
        monkeypatch.undo()
        (shown,) = lines_of(run("jobs", "show", str(made.id), PULSED_URL=url))
        assert (shown["schedule"], shown["schedule_id"]) == (None, str(row.id))

    @pytest.mark.parametrize("more, fires", [([], True), (["--no-schedules"], False)])
    def test_a_worker_can_be_told_to_leave_them_alone(self, monkeypatch, shop, more, fires):
        told: list[bool] = []

        async def run_worker(_app: Pulse, working: dict[str, Any], *_: Any) -> int:
            told.append(working["schedules"])
            return 0

        monkeypatch.setattr("pulsed.cli.commands.worker._run", run_worker)
        commands = supervised_commands(monkeypatch)
        args = ("worker", shop, "--url", "sqlite:///none.db", *more)
        assert run(*args).exit_code == 0
        assert run(*args, "--processes", "2").exit_code == 0
        assert told == [fires]
        assert ("--no-schedules" not in commands[0]) is fires
