"""``pulsed jobs`` over a real database of each kind: lists, one job, and acts on many."""

import json
from uuid import UUID

import pytest

from pulsed.model.job import Status
from pulsed.store.blocking import run_blocking
from tests.support.commands import (
    CONTROLS,
    a_dead_job,
    a_waiting_job,
    lines_of,
    present,
    run,
    status_of,
)
from tests.support.jobs import a_job, claim, running

NOBODY = "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"


class TestList:
    def test_json_lines(self, url, live):
        dead = a_dead_job(live, payload='{"n": 12345678901234567890}', tags=("red",))
        waiting = a_waiting_job(live, topic="other", queue="mail")
        rows = lines_of(run("jobs", "list", "--json", PULSED_URL=url))
        assert [row["id"] for row in rows] == [str(waiting), str(dead)]
        assert rows[1]["payload"] == {"n": 12345678901234567890}
        assert rows[1]["last_error"] == "boom"
        assert rows[1]["completed_at"].endswith("Z")

    @pytest.mark.parametrize("how", [["--json"], ["--ids", "--limit", "9"]], ids=str)
    def test_a_search_that_ended_at_its_bound_says_how_to_go_on(self, url, live, monkeypatch, how):
        monkeypatch.setattr("pulsed.store.verbs.search.SEARCHED", 2)
        rare = a_waiting_job(live, topic="rare")
        last = [a_waiting_job(live) for _ in range(3)][1]
        first = run("jobs", "list", "--topic", "rare", *how, PULSED_URL=url)
        assert (first.exit_code, first.stdout) == (0, "")
        assert f"continue with --before {last}" in first.stderr
        args = ("--topic", "rare", "--before", str(last), *how)
        assert str(rare) in run("jobs", "list", *args, PULSED_URL=url).stdout

    def test_counts_that_ended_at_their_bound_say_so(self, url, live, monkeypatch):
        monkeypatch.setattr("pulsed.store.verbs.search.SEARCHED", 2)
        for _ in range(3):
            a_waiting_job(live)
        result = run("jobs", "counts", PULSED_URL=url)
        assert lines_of(result)[0]["PENDING"] == 2
        assert "there may be more of PENDING" in result.stderr
        monkeypatch.setattr("pulsed.cli.view.output.for_people", lambda **_: True)
        assert "≥ 2" in run("jobs", "counts", PULSED_URL=url).stdout

    def test_json_has_nothing_that_a_terminal_would_obey(self, url, live):
        a_dead_job(
            live, f"error {CONTROLS}", payload=json.dumps({"to": CONTROLS}, ensure_ascii=False)
        )
        result = run("jobs", "list", "--json", PULSED_URL=url)
        assert not set(result.stdout) & set(CONTROLS)
        (row,) = lines_of(result)
        assert (row["payload"], row["last_error"]) == ({"to": CONTROLS}, f"error {CONTROLS}")

    @pytest.mark.parametrize(
        "args",
        [
            ["--status", "dead"],
            ["--status", "DEAD_LETTERED,cancelled"],
            ["--status", "dead", "--status", "succeeded"],
            ["--topic", "email"],
            ["--tag", "red"],
            ["--error", "BOOM"],
            ["--queue", "default", "--since", "1h", "--until", "2999-01-01T00:00:00Z"],
        ],
    )
    def test_filters(self, url, live, args):
        dead = a_dead_job(live, tags=("red",))
        a_waiting_job(live, topic="other", queue="mail")
        assert run("jobs", "list", "--ids", *args, PULSED_URL=url).stdout == f"{dead}\n"

    def test_ids_in_a_pipe_are_all_that_match(self, url, live, monkeypatch):
        monkeypatch.setattr("pulsed.client.bulk.pages.__defaults__", (2, None))
        monkeypatch.setattr("pulsed.store.verbs.search.SEARCHED", 2)
        ids = [str(a_waiting_job(live, topic=topic)) for topic in "aabbbaab"]
        result = run("jobs", "list", "--ids", "--topic", "a", PULSED_URL=url)
        assert result.stdout.split() == [ids[n] for n in (6, 5, 1, 0)]
        assert not result.stderr

    def test_a_list_that_is_cut_says_so(self, url, live):
        for _ in range(3):
            last = a_waiting_job(live)
        for how in ("--ids", "--json"):
            result = run("jobs", "list", how, "--limit", "1", PULSED_URL=url)
            assert f"there may be more: --before {last}" in result.stderr

    def test_where_there_are_no_jobs_is_said(self, url, live):
        assert "no such jobs in " in run("jobs", "list", PULSED_URL=url).stderr

    def test_a_running_job_is_shown_with_its_worker_and_progress(self, url, live):
        asked = run_blocking(running(live))
        a_waiting_job(live, queue="mail")
        run_blocking(live.set_progress(asked.lease, "0.4"))
        text = run("jobs", "list", "--format", "table", PULSED_URL=url, COLUMNS="160").stdout
        assert "QUEUE" in text
        assert f"on worker {asked.lease.worker_id}, progress 0.4" in text
        run_blocking(live.cancel([asked.job_id]))
        text = run("jobs", "list", "--format", "table", PULSED_URL=url, COLUMNS="100").stdout
        assert "CANCELLING" in text

    def test_contradicting_formats_are_refused(self, url, live):
        assert run("jobs", "list", "--json", "--format", "table", PULSED_URL=url).exit_code == 2

    def test_pages(self, url, live):
        ids = [str(a_waiting_job(live)) for _ in range(3)]
        first = run("jobs", "list", "--ids", "--limit", "2", PULSED_URL=url).stdout.split()
        rest = run("jobs", "list", "--ids", "--before", first[-1], PULSED_URL=url).stdout.split()
        assert [*first, *rest] == ids[::-1]

    def test_since_leaves_out_what_is_older(self, url, live):
        a_waiting_job(live)
        until = run("jobs", "list", "--ids", "--until", "1h", PULSED_URL=url)
        assert until.stdout == ""

    @pytest.mark.parametrize(
        "args", [["--status", "sleeping"], ["--since", "yesterday"], ["--before", "7"]]
    )
    def test_what_is_no_filter_is_a_usage_error(self, url, live, args):
        assert run("jobs", "list", *args, PULSED_URL=url).exit_code == 2

    @pytest.mark.parametrize("columns", [80, 120])
    def test_a_table_fits_the_terminal(self, url, live, monkeypatch, columns):
        monkeypatch.setattr("pulsed.cli.commands.jobs.for_people", lambda **_: True)
        dead = a_dead_job(live, "one\x1b[31m red " + "long " * 50 + "\nline two")
        a_waiting_job(live, topic="a_topic_with_a_name_of_quite_some_length_" * 2)
        result = run("jobs", "list", PULSED_URL=url, COLUMNS=str(columns))
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) <= columns
        assert str(dead) in result.stdout
        assert "DEAD" in result.stdout
        assert "one\N{REPLACEMENT CHARACTER}[31m red" in result.stdout
        assert "line two" not in result.stdout

    def test_counts(self, url, live):
        a_dead_job(live)
        a_waiting_job(live)
        (counted,) = lines_of(run("jobs", "counts", PULSED_URL=url))
        assert counted["PENDING"] == counted["DEAD_LETTERED"] == 1
        assert counted["RUNNING"] == 0


class TestIdsByTheirBeginning:
    def test_the_beginning_of_an_id_is_enough(self, url, live):
        a_dead_job(live)
        job_id = str(a_waiting_job(live))
        for given in (job_id[:-1], job_id[:-2].upper(), job_id.replace("-", "")[:-3]):
            (shown,) = lines_of(run("jobs", "show", given, PULSED_URL=url))
            assert shown["id"] == job_id
        assert run("jobs", "cancel", job_id[:-1], PULSED_URL=url).stdout == f"{job_id}\n"

    def test_an_id_that_is_the_last_of_its_beginning_is_found(self, url, live):
        job_id = UUID(NOBODY[:-4] + "ffff")
        run_blocking(live.submit([a_job(id=job_id)]))
        assert run("jobs", "cancel", NOBODY[:-4], PULSED_URL=url).stdout == f"{job_id}\n"

    def test_one_that_several_jobs_have_is_refused(self, url, live):
        first, second = str(a_waiting_job(live)), str(a_waiting_job(live))
        result = run("jobs", "show", first[:8], PULSED_URL=url)
        assert result.exit_code == 2
        assert f"several jobs begin with {first[:8]}" in result.stderr
        assert first in result.stderr
        assert second in result.stderr

    @pytest.mark.parametrize("given, code", [("01a1", 2), ("01a1e6zz", 2), (NOBODY[:12], 3)])
    def test_what_names_no_job(self, url, live, given, code):
        assert run("jobs", "show", given, PULSED_URL=url).exit_code == code


class TestShow:
    def test_json_has_the_failures(self, url, live):
        dead = a_dead_job(live)
        (shown,) = lines_of(run("jobs", "show", str(dead), PULSED_URL=url))
        assert shown["id"] == str(dead)
        assert shown["failures"][0]["error"] == "boom"
        assert "RuntimeError" in shown["failures"][0]["traceback"]

    def test_a_person_sees_failures_and_what_to_do(self, url, live, monkeypatch):
        monkeypatch.setattr("pulsed.cli.commands.jobs.for_people", lambda **_: True)
        dead = a_dead_job(live, payload='{"to": "ada"}')
        text = run("jobs", "show", str(dead), PULSED_URL=url, COLUMNS="80").stdout
        assert "RuntimeError: boom" in text
        assert '"to": "ada"' in text
        assert "attempt 1 of 3 failed" in text
        assert f"pulsed jobs retry {dead}" in text

    def hints(self, url: str, job_id: UUID) -> str:
        (shown,) = lines_of(run("jobs", "show", str(job_id), PULSED_URL=url))
        return " ".join(shown["hints"])

    def test_why_a_due_job_does_not_run(self, url, live):
        job_id = a_waiting_job(live)
        assert "no worker is alive" in self.hints(url, job_id)
        present(live, queue="mail")
        assert "no live worker takes from the queue 'default'" in self.hints(url, job_id)

    def test_why_a_job_of_an_unknown_topic_does_not_run(self, url, live):
        present(live)
        assert "has a handler for 'other'" in self.hints(url, a_waiting_job(live, topic="other"))
        assert "any moment" in self.hints(url, a_waiting_job(live))

    def test_why_a_delayed_job_does_not_run(self, url, live):
        present(live)
        assert "due in 60 min" in self.hints(url, a_waiting_job(live, delay=3600))

    def test_what_a_running_job_does(self, url, live):
        assignment = run_blocking(running(live))
        assert "its lease ends in" in self.hints(url, assignment.job_id)

    def test_a_job_whose_workers_died_says_so(self, url, live, backend, monkeypatch):
        job_id = a_waiting_job(live)
        present(live)
        backend.execute("UPDATE pulse_jobs SET crashes = 1")
        hints = self.hints(url, job_id)
        assert "any moment" in hints
        assert "its worker died 1 time in a row while it ran this job and others, which" in hints
        backend.execute("UPDATE pulse_jobs SET crashes = 2")
        hints = self.hints(url, job_id)
        assert "starts when a worker with a free slot runs no other suspect" in hints
        assert "its worker died 2 times in a row while it ran this job and others, so" in hints
        monkeypatch.setattr("pulsed.cli.commands.jobs.for_people", lambda **_: True)
        text = run("jobs", "show", str(job_id), PULSED_URL=url, COLUMNS="200").stdout
        assert "crashes     its worker died 2 times in a row" in text

    def test_a_job_that_does_not_exist(self, url, live):
        result = run("jobs", "show", NOBODY, PULSED_URL=url)
        assert result.exit_code == 3
        assert NOBODY in result.stderr

    def test_an_id_that_is_none(self, url, live):
        assert run("jobs", "show", "17", PULSED_URL=url).exit_code == 2


class TestActs:
    def test_ids_pipe_into_retry(self, url, live):
        dead = [a_dead_job(live) for _ in range(3)]
        ids = run("jobs", "list", "--status", "dead", "--ids", PULSED_URL=url).stdout
        result = run("jobs", "retry", "-", stdin=ids, PULSED_URL=url)
        assert result.exit_code == 0
        assert result.stdout == ids
        assert "retried 3 jobs" in result.stderr
        assert {status_of(live, job_id) for job_id in dead} == {Status.PENDING}

    def test_run_now_by_what_the_payload_has(self, url, live):
        jobs = [a_job(payload=f'{{"user": {user}}}', delay=3600) for user in (7, '"7"')]
        run_blocking(live.submit(jobs))
        where = ("--payload", "user=7", "--topic", "em*")
        listed = run("jobs", "list", "--ids", *where, PULSED_URL=url).stdout
        result = run("jobs", "run-now", "--yes", *where, PULSED_URL=url)
        assert listed == f"{jobs[0].id}\n"
        assert "made due 1 job" in result.stderr
        assert [run.job_id for run in run_blocking(claim(live))] == [jobs[0].id]
        result = run("jobs", "list", "--payload", "user", PULSED_URL=url)
        assert (result.exit_code, "such as user.id=7" in result.stderr) == (2, True)

    def test_cancel_and_delete_by_id(self, url, live):
        job_id = a_waiting_job(live)
        assert run("jobs", "cancel", str(job_id), PULSED_URL=url).exit_code == 0
        assert status_of(live, job_id) is Status.CANCELLED
        assert run("jobs", "delete", str(job_id), PULSED_URL=url).exit_code == 0
        assert run_blocking(live.get([job_id])) == {}

    def test_a_running_job_is_asked_to_stop_and_cannot_be_deleted(self, url, live):
        job_id = str(run_blocking(running(live)).job_id)
        result = run("jobs", "delete", job_id, PULSED_URL=url)
        assert result.exit_code == 1
        assert "is RUNNING" in result.stderr
        result = run("jobs", "cancel", job_id, PULSED_URL=url)
        assert result.exit_code == 0
        assert result.stderr == "pulsed: asked 1 running job to stop\n"
        assert result.stdout == f"{job_id}\n"

    def test_one_that_is_not_there_does_not_stop_the_others(self, url, live):
        dead = a_dead_job(live)
        result = run("jobs", "retry", NOBODY, str(dead), PULSED_URL=url)
        assert result.exit_code == 3
        assert result.stdout == f"{dead}\n"

    @pytest.mark.parametrize("act", ["retry", "cancel", "delete"])
    def test_an_empty_filter_is_refused(self, url, live, act):
        job_id = a_dead_job(live)
        result = run("jobs", act, "--yes", PULSED_URL=url)
        assert result.exit_code == 2
        assert "without a filter every job would be" in result.stderr
        assert status_of(live, job_id) is Status.DEAD_LETTERED

    @pytest.mark.parametrize("args", [[], [NOBODY, "--status", "dead"]])
    def test_what_to_act_on_must_be_said_one_way(self, url, live, args):
        assert run("jobs", "retry", *args, PULSED_URL=url).exit_code == 2

    def test_without_a_terminal_nothing_happens_unless_yes_says_so(self, url, live):
        dead = [a_dead_job(live) for _ in range(2)]
        kept = a_dead_job(live, topic="other")
        args = ("jobs", "retry", "--topic", "email")
        result = run(*args, PULSED_URL=url)
        assert result.exit_code == 2
        assert "this would retry 2 jobs (2 DEAD_LETTERED)" in result.stderr
        assert status_of(live, dead[0]) is Status.DEAD_LETTERED
        result = run(*args, "--yes", PULSED_URL=url)
        assert result.exit_code == 0
        assert "retried 2 jobs" in result.stderr
        assert {status_of(live, job_id) for job_id in dead} == {Status.PENDING}
        assert status_of(live, kept) is Status.DEAD_LETTERED

    @pytest.mark.parametrize(
        "answer, code, status", [("n\n", 1, "DEAD_LETTERED"), ("y\n", 0, "PENDING")]
    )
    def test_a_person_is_shown_the_count_and_asked(
        self, url, live, monkeypatch, answer, code, status
    ):
        monkeypatch.setattr("pulsed.cli.prompt.can_ask", lambda: True)
        dead = a_dead_job(live)
        args = ("jobs", "retry", "--status", "dead")
        result = run(*args, stdin=answer, PULSED_URL=url)
        assert result.exit_code == code
        assert "Retry 1 job (1 DEAD_LETTERED)?" in result.stderr
        assert status_of(live, dead) == status

    def test_nothing_to_ask_about(self, url, live):
        result = run("jobs", "delete", "--topic", "none", PULSED_URL=url)
        assert result.exit_code == 0
        assert "no job matches" in result.stderr

    def test_jobs_in_the_wrong_state_cannot_be_chosen(self, url, live):
        args = ("--status", "running", "--yes")
        result = run("jobs", "delete", *args, PULSED_URL=url)
        assert result.exit_code == 2
        assert "cannot be deleted" in result.stderr
