"""``pulsed jobs`` on workflows: the tree of one, signals, families, and jobs without a deadline."""

import json
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from click.testing import Result

from pulsed import Pulse
from pulsed.cli.commands import jobs as commands
from pulsed.client import job_tree
from pulsed.client.job_tree import FEW
from pulsed.errors import InvalidTransition
from pulsed.model.job import Assignment, Status
from pulsed.model.outcome import Failed, Succeeded, Waiting
from pulsed.model.step import StepKind, StepState, Wait
from pulsed.rpc.messages.jobs import job_message, job_of
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from tests.support.checkpoints import (
    CHILD,
    FAMILY,
    a_step,
    children_of,
    claimed_children,
    opened,
    recorded,
    send,
    suspended,
    take,
)
from tests.support.commands import (
    a_dead_job,
    a_waiting_job,
    lines_of,
    present,
    run,
    status_of,
)
from tests.support.jobs import claim_one, running, settle

NOBODY = "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"
LONG_ERROR = "the courier " + "does not answer " * 20


class Family(NamedTuple):
    """A parent that waits for its children, most of which still run."""

    parent: UUID
    children: list[Assignment]

    def ids(self) -> list[str]:
        return [str(child.job_id) for child in self.children]


def a_waiting_parent(store: Store, count: int, **wait: Any) -> Family:
    async def make() -> Family:
        parent = await running(store)
        assert await recorded(store, parent, a_step("charge", took=2.5, tries=3))
        await store.workflows.add_children(parent.lease, children_of(parent.job_id, count))
        children = await claimed_children(store, parent.job_id, count)
        begun = opened(StepKind.FAN_OUT, seq=2)
        waits = Waiting(Wait(kind=StepKind.FAN_OUT, key=FAMILY, **wait), begun)
        assert await settle(store, parent, waits)
        return Family(parent.job_id, children)

    return run_blocking(make())


def a_waiter(store: Store, kind: StepKind = StepKind.SIGNAL, **wait: Any) -> UUID:
    async def make() -> UUID:
        job = await running(store)
        assert await suspended(store, job, kind, **wait)
        return job.job_id

    return run_blocking(make())


def fail(store: Store, child: Assignment, error: str = LONG_ERROR) -> None:
    assert run_blocking(settle(store, child, Failed(error, final=True)))


def shown(url: str, job_id: UUID, *options: str) -> Any:
    (found,) = lines_of(run("jobs", "show", str(job_id), *options, PULSED_URL=url))
    return found


@pytest.fixture
def people(monkeypatch):
    """Pretend that stdin is a terminal."""
    monkeypatch.setattr("pulsed.cli.commands.jobs.for_people", lambda **_: True)


def read(url: str, *args: str, columns: int = 120) -> str:
    result = run("jobs", *args, PULSED_URL=url, COLUMNS=str(columns))
    assert result.exit_code == 0, result.output
    return result.stdout


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """Return a list that grows with every call of a function of the tree's, by the tree itself.

    The command has its own reference, taken when it was imported: above, and not by the first
    test that runs it, which would leave it with this one.
    """
    calls: list[Any] = []
    function = getattr(job_tree, name)

    def called(*args: Any) -> Any:
        calls.append(args)
        return function(*args)

    monkeypatch.setattr(job_tree, name, called)
    return calls


class TestShowForMachines:
    def test_steps_are_in_order_with_what_they_came_to(self, url, live):
        family = a_waiting_parent(live, 2, delay=3600.0)
        found = shown(url, family.parent)
        charge, fan_out = found["steps"]
        assert (charge["name"], charge["kind"], charge["state"]) == ("charge", "STEP", "DONE")
        assert (charge["value"], charge["tries"], charge["seconds"]) == (1, 3, 2.5)
        assert (fan_out["kind"], fan_out["state"], fan_out["error"]) == ("FAN_OUT", "OPEN", None)
        assert fan_out["until"] == found["next_run_at"]

    def test_all_children_are_in_the_order_of_their_calls_with_their_steps(self, url, live):
        family = a_waiting_parent(live, FEW + 3)
        assert run_blocking(recorded(live, family.children[1], a_step("label")))
        fail(live, family.children[2])
        fan_out = shown(url, family.parent)["steps"][1]
        assert fan_out["children"]["counts"]["RUNNING"] == FEW + 2
        assert fan_out["children"]["counts"]["DEAD_LETTERED"] == 1
        jobs = fan_out["children"]["jobs"]
        assert [job["id"] for job in jobs] == family.ids()
        assert [job["index"] for job in jobs] == list(range(FEW + 3))
        assert [step["name"] for step in jobs[1]["steps"]] == ["label"]
        assert jobs[2]["last_error"] == LONG_ERROR

    def test_of_a_large_fan_out_a_program_gets_a_bounded_part(self, url, live, monkeypatch):
        monkeypatch.setattr(commands, "FEW_IN_JSON", 3)
        family = a_waiting_parent(live, 12)
        read_trees = counted(monkeypatch, "read_tree")
        children = shown(url, family.parent)["steps"][1]["children"]
        assert [job["index"] for job in children["jobs"]] == [0, 1, 2]
        assert (children["left_out"], children["counts"]["RUNNING"]) == (9, 12)
        assert len(read_trees) == 3

    def test_all_children_are_read_by_page_and_not_one_by_one(self, url, live, monkeypatch):
        monkeypatch.setattr("pulsed.client.job_tree.MOST_TREES", 2)
        family = a_waiting_parent(live, 12)
        read_trees = counted(monkeypatch, "read_tree")
        jobs = shown(url, family.parent, "--all")["steps"][1]["children"]["jobs"]
        assert [job["index"] for job in jobs] == list(range(12))
        assert [job["steps"] is None for job in jobs] == [False] * 2 + [True] * 10
        assert len(read_trees) == 2

    def test_what_a_job_waits_for_since_when_and_until_when(self, url, live):
        wait = shown(url, a_waiter(live, key="go", delay=3600.0))["wait"]
        assert (wait["kind"], wait["key"]) == ("SIGNAL", "go")
        assert wait["since"] < wait["until"]

    def test_no_deadline_is_null_and_not_the_end_of_time(self, url, live):
        result = run("jobs", "show", str(a_waiter(live, key="go")), PULSED_URL=url)
        (found,) = lines_of(result)
        assert found["next_run_at"] is found["wait"]["until"] is None
        listed = run("jobs", "list", "--json", PULSED_URL=url)
        assert lines_of(listed)[0]["next_run_at"] is None
        assert "9999" not in result.stdout.replace(str(found["lease_token"]), "") + listed.stdout

    def test_a_sleep_that_is_over_took_its_time(self, url, live, backend):
        job_id = a_waiter(live, StepKind.SLEEP, delay=0.0)
        (step,) = shown(url, job_id)["steps"]
        assert step["ended_at"] == step["until"]

    def test_a_plain_job_has_no_steps(self, url, live):
        found = shown(url, a_dead_job(live))
        assert (found["steps"], found["wait"]) == ([], None)


@pytest.mark.usefixtures("people")
class TestShowForPeople:
    @pytest.mark.parametrize("columns", [80, 120])
    def test_a_tree_fits_the_terminal(self, url, live, columns):
        family = a_waiting_parent(live, FEW + 5, delay=3600.0)
        fail(live, family.children[FEW + 1])
        text = read(url, "show", str(family.parent), columns=columns)
        tree = text[text.index("steps\n") :].splitlines()
        assert max(map(len, tree)) <= columns
        assert "charge   done in 2.5 s, 3 tries" in tree[1]
        assert "fan_out  waits for its children" in tree[2]
        assert "60 min left" in tree[2]

    def test_the_first_few_children_and_every_failed_one(self, url, live):
        family = a_waiting_parent(live, FEW + 5)
        fail(live, family.children[FEW + 2], "no stamps")
        fail(live, family.children[FEW + 4], "no paper")
        text = read(url, "show", str(family.parent))
        seen = [child in text for child in family.ids()]
        assert seen == [True] * FEW + [False, False, True, False, True]
        assert "no stamps" in text
        assert "2 DEAD" in text
        assert "… and 3 more: --all shows them" in text

    def test_of_very_many_failures_not_all(self, url, live, monkeypatch):
        monkeypatch.setattr("pulsed.client.job_tree.MOST_FAILED", 2)
        family = a_waiting_parent(live, FEW + 5)
        for child in family.children[FEW + 1 :]:
            fail(live, child)
        text = read(url, "show", str(family.parent))
        assert text.count(" DEAD in ") == 2
        assert "… and 3 more, 2 of them failed: --all shows them" in text

    def test_all_children_if_asked_for(self, url, live):
        family = a_waiting_parent(live, FEW + 5)
        text = read(url, "show", str(family.parent), "--all")
        places = [text.index(child) for child in family.ids()]
        assert places == sorted(places)
        assert "more" not in text

    def test_steps_of_children_stand_below_them(self, url, live):
        family = a_waiting_parent(live, 2)
        assert run_blocking(recorded(live, family.children[0], a_step("label")))
        lines = read(url, "show", str(family.parent)).splitlines()
        (at,) = [number for number, line in enumerate(lines) if family.ids()[0] in line]
        assert "label  done in" in lines[at + 1]

    def test_what_a_job_waits_for(self, url, live):
        job_id = a_waiter(live, key="go", delay=3600.0)
        text = read(url, "show", str(job_id))
        assert "it waits for the signal 'go', 60 min at the most" in text
        assert "waits for   the signal 'go', since 2" in text
        assert f"pulsed jobs signal {job_id} go" in text
        assert "next run" not in text

    @pytest.mark.parametrize(
        "kind, wait, words",
        [
            (StepKind.SIGNAL, {"key": "go"}, "the signal 'go', however long that takes"),
            (StepKind.JOB, {"key": NOBODY, "delay": 60.0}, f"the end of job {NOBODY}"),
            (StepKind.SLEEP, {"delay": 3600.0}, "it sleeps for another 60 min"),
        ],
    )
    def test_every_wait_has_its_words(self, url, live, kind, wait, words):
        if kind is StepKind.JOB:
            a_waiting_job(live, id=UUID(NOBODY), delay=3600)
        text = read(url, "show", str(a_waiter(live, kind, **wait)))
        assert words in text
        assert "9999" not in text

    def test_what_a_step_that_failed_said(self, url, live):
        async def make() -> UUID:
            job = await running(live)
            failed = a_step(state=StepState.FAILED, value=None, error="no\x1b funds\nat all")
            assert await recorded(live, job, failed)
            assert await settle(live, job, Failed("StepFailed: …", final=True))
            return job.job_id

        job_id = run_blocking(make())
        text = read(url, "show", str(job_id))
        assert "charge  failed in 0 s" in text
        assert "no\N{REPLACEMENT CHARACTER} funds" in text
        assert "at all" not in text
        assert f"pulsed jobs retry {job_id}` continues from its steps; --fresh" in text

    def test_a_wait_that_has_ended(self, url, live):
        async def go_on(job_id: UUID) -> None:
            assert await send(live, job_id)
            job = await claim_one(live)
            assert await take(live, job.lease)

        job_id = a_waiter(live, key="go")
        run_blocking(go_on(job_id))
        assert "signal  came after" in read(url, "show", str(job_id))

    def test_a_wait_that_a_cancel_cut_short(self, url, live):
        job_id = a_waiter(live, key="go")
        run("jobs", "cancel", str(job_id), PULSED_URL=url)
        assert "not over when the job ended" in read(url, "show", str(job_id))

    def test_children_of_an_earlier_beginning_are_not_forgotten(self, url, live):
        family = a_waiting_parent(live, 1)
        fail(live, family.children[0])
        run("jobs", "cancel", str(family.parent), PULSED_URL=url)
        run("jobs", "retry", "--fresh", str(family.parent), PULSED_URL=url)
        assert f"1 child of no step here: pulsed jobs list --parent {family.parent}" in read(
            url, "show", str(family.parent), columns=200
        )

    def test_a_child_names_its_parent(self, url, live):
        family = a_waiting_parent(live, 1)
        text = read(url, "show", family.ids()[0])
        assert f"parent      {family.parent}, fan_out\n" in text

    def test_nothing_changes_for_a_plain_job(self, url, live):
        text = read(url, "show", str(a_dead_job(live)))
        assert "steps" not in text
        assert "with fresh attempts" in text


class TestList:
    def test_children_of_a_parent(self, url, live):
        family = a_waiting_parent(live, 3)
        a_waiting_job(live)
        listed = run("jobs", "list", "--ids", "--parent", str(family.parent), PULSED_URL=url)
        assert sorted(listed.stdout.split()) == sorted(family.ids())
        (counted,) = lines_of(run("jobs", "counts", "--parent", str(family.parent), PULSED_URL=url))
        assert counted["RUNNING"] == 3

    def test_a_parent_is_an_id(self, url, live):
        assert run("jobs", "list", "--parent", "7", PULSED_URL=url).exit_code == 2

    def test_an_act_on_the_children_of_a_parent(self, url, live):
        family = a_waiting_parent(live, 2)
        args = ["--parent", str(family.parent), "--yes"]
        done = run("jobs", "cancel", *args, PULSED_URL=url)
        assert "cancelled 2 jobs" in done.stderr
        children = run_blocking(live.get([UUID(job_id) for job_id in family.ids()]))
        assert all(job.cancel_requested for job in children.values())

    @pytest.mark.usefixtures("people")
    @pytest.mark.parametrize("columns", [80, 120])
    def test_a_table_says_what_jobs_wait_for(self, url, live, columns):
        a_waiter(live, key="go")
        a_waiter(live, StepKind.SLEEP, delay=3600.0)
        text = read(url, "list", columns=columns)
        assert "waits for the signal 'go'" in text
        assert "in 60 min" in text
        assert "9999" not in text
        assert "ages" not in text
        assert max(map(len, text.splitlines())) <= columns


class TestSignal:
    def send(self, url: str, job_id: object, *args: str, stdin: str = "") -> Result:
        return run("jobs", "signal", str(job_id), *args, stdin=stdin, PULSED_URL=url)

    def taken(self, store: Store) -> Any:
        job = run_blocking(claim_one(store))
        taken = run_blocking(take(store, job.lease))
        assert taken is not None
        return json.loads(taken.value or "")

    @pytest.mark.parametrize(
        "payload, value", [([], None), (["true"], True), (["-1"], -1), (['{"a": "ü"}'], {"a": "ü"})]
    )
    def test_it_wakes_the_job_that_waits_for_it(self, url, live, payload, value):
        job_id = a_waiter(live, key="go")
        sent = self.send(url, job_id, "go", *payload)
        assert (sent.exit_code, sent.stdout) == (0, f"{job_id}\n"), sent.output
        assert status_of(live, job_id) is Status.PENDING
        assert self.taken(live) == value

    def test_a_payload_from_a_file_or_from_stdin(self, url, live, tmp_path):
        (tmp_path / "payload.json").write_text('["from a file"]')
        a_waiter(live, key="go")
        (job_id,) = run("jobs", "list", "--ids", PULSED_URL=url).stdout.split()
        assert self.send(url, job_id, "go", f"@{tmp_path}/payload.json").exit_code == 0
        assert self.taken(live) == ["from a file"]
        assert self.send(url, job_id, "go", "-", stdin='"from stdin"').exit_code == 0

    @pytest.mark.parametrize("payload", ["ada", "{", "NaN", "@/no/such/file", ""])
    def test_what_is_no_payload_is_refused(self, url, live, payload):
        job_id = a_waiter(live, key="go")
        assert self.send(url, job_id, "go", payload).exit_code == 2
        assert status_of(live, job_id) is Status.WAITING

    def test_a_job_that_has_ended_takes_none(self, url, live):
        sent = self.send(url, a_dead_job(live), "go")
        assert sent.exit_code == 1
        assert "DEAD_LETTERED already and takes no signals" in sent.stderr

    def test_a_job_that_does_not_exist(self, url, live):
        sent = self.send(url, NOBODY, "go")
        assert sent.exit_code == 3
        assert "There is no job" in sent.stderr


class TestRetry:
    def dead(self, store: Store) -> UUID:
        async def make() -> UUID:
            job = await running(store)
            assert await recorded(store, job, a_step())
            assert await settle(store, job, Failed("no", final=True))
            return job.job_id

        return run_blocking(make())

    @pytest.mark.parametrize("args, steps", [([], 1), (["--fresh"], 0)])
    def test_from_its_steps_or_from_the_beginning(self, url, live, args, steps):
        job_id = self.dead(live)
        assert run("jobs", "retry", *args, str(job_id), PULSED_URL=url).exit_code == 0
        assert status_of(live, job_id) is Status.PENDING
        assert len(run_blocking(live.workflows.history(job_id)).checkpoints) == steps

    def test_many_of_them_from_the_beginning(self, url, live):
        job_id = self.dead(live)
        args = ["--fresh", "--status", "dead", "--yes"]
        assert "retried 1 job" in run("jobs", "retry", *args, PULSED_URL=url).stderr
        assert not run_blocking(live.workflows.history(job_id)).checkpoints

    def test_only_a_retry_can_be_fresh(self, url, live):
        assert run("jobs", "cancel", "--fresh", NOBODY, PULSED_URL=url).exit_code == 2


class TestDelete:
    def test_a_child_of_a_living_parent_stays(self, url, live):
        family = a_waiting_parent(live, 2)
        assert run_blocking(settle(live, family.children[0], Succeeded()))
        refused = run("jobs", "delete", family.ids()[0], PULSED_URL=url)
        assert refused.exit_code == 1
        assert f"its parent {family.parent} (email) is WAITING" in refused.stderr
        assert "cancel the parent first" in refused.stderr

    def test_a_parent_of_living_children_stays(self, url, live):
        family = a_waiting_parent(live, 2)
        refused = run("jobs", "delete", str(family.parent), PULSED_URL=url)
        assert refused.exit_code == 1
        assert "2 children have not ended. Cancel what is left" in refused.stderr

    def test_a_running_job_stays(self, url, live):
        job = run_blocking(running(live))
        refused = run("jobs", "delete", str(job.job_id), PULSED_URL=url)
        assert "cancel it and wait for it to stop" in refused.stderr

    def test_many_of_whom_some_stay(self, url, live):
        family = a_waiting_parent(live, 1)
        a_dead_job(live)
        args = ["--topic", "email", "--yes"]
        done = run("jobs", "delete", *args, PULSED_URL=url)
        assert "deleted 1 job, 1 skipped\n" in done.stderr
        assert "its parent or one of its children has not ended" in done.stderr
        assert status_of(live, family.parent) is Status.WAITING

    def test_the_api_says_the_same(self, url, live):
        family = a_waiting_parent(live, 1)
        with Pulse(url) as app:
            with pytest.raises(InvalidTransition, match="1 child has not ended"):
                app.jobs.delete(family.parent)
            with pytest.raises(InvalidTransition, match="Cancel it and wait"):
                app.jobs.delete(family.ids()[0])


class TestJobs:
    def test_a_job_without_a_deadline_has_no_next_run(self, url, live):
        job_id = a_waiter(live, key="go")
        with Pulse(url) as app:
            assert app.jobs.get(job_id).next_run_at is None

    def test_other_languages_do_not_see_the_end_of_time_either(self, live):
        row = run_blocking(live.get([a_waiter(live, key="go")])).popitem()[1]
        message = job_message(row)
        assert not message.HasField("next_run_at")
        assert job_of(message) == row

    def test_children_of_a_parent(self, url, live):
        family = a_waiting_parent(live, 2)
        with Pulse(url) as app:
            found = app.jobs.list(parent=family.parent)
            assert sorted(str(job.id) for job in found) == sorted(family.ids())
            assert {job.parent_id for job in found} == {family.parent}
            assert app.jobs.counts(parent=str(family.parent))[Status.RUNNING] == 2
            assert {job.topic for job in found} == {CHILD}


def test_a_waiting_job_needs_workers_too(url, live):
    present(live, topics=("other",))
    hints = shown(url, a_waiter(live, key="go"))["hints"]
    assert len(hints) == 2
    assert "has a handler for 'email'" in hints[1]
