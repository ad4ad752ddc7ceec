"""``pulsed jobs stream``: what a job emits, for people and for programs."""

from uuid import UUID

import msgspec

from pulsed.cli.exits import Code
from pulsed.model.ids import new_job_id
from pulsed.model.outcome import Succeeded
from pulsed.model.stream import Emission
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from tests.support.commands import CONTROLS, lines_of, run
from tests.support.jobs import running, settle


def a_job_that_emitted(store: Store, *values: str) -> UUID:
    assignment = run_blocking(running(store))
    run_blocking(store.streams.emit([Emission(assignment.lease, 1, 1, values)]))
    assert run_blocking(settle(store, assignment, Succeeded("1")))
    return assignment.job_id


def test_items_are_lines_of_json(url, live):
    job_id = a_job_that_emitted(live, '{"n":12345678901234567890123}', '"ü"')
    found = lines_of(run("jobs", "stream", str(job_id), PULSED_URL=url))
    assert [(line["position"], line["run"], line["value"]) for line in found] == [
        (1, 1, {"n": 12345678901234567890123}),
        (2, 1, "ü"),
    ]
    assert found[0]["emitted_at"].endswith("Z")
    rest = run("jobs", "stream", str(job_id)[:13], "--after", "1", "--follow", PULSED_URL=url)
    assert [line["value"] for line in lines_of(rest)] == ["ü"]


def test_items_for_people_stay_in_their_lines(url, live):
    hostile = msgspec.json.encode(f"a\nb{CONTROLS}").decode()
    job_id = a_job_that_emitted(live, hostile, "2")
    shown = run("jobs", "stream", str(job_id), "--format", "table", PULSED_URL=url)
    assert shown.exit_code == 0, shown.output
    first, second = shown.stdout.splitlines()
    assert first.startswith("     1  ")
    assert second == "     2  2"
    assert not set(CONTROLS) & set(shown.stdout)


def test_an_unknown_job_is_not_found(url, live):
    shown = run("jobs", "stream", str(new_job_id()), PULSED_URL=url)
    assert (shown.exit_code, shown.stdout) == (Code.NOT_FOUND, "")
