"""The form for a new job: fields by the handler's types, and problems at the fields."""

import re
from datetime import date, datetime
from enum import Enum
from typing import Literal

import pytest

from pulsed import Context, Pulse
from pulsed.web import Basic, Local, Role, dashboard
from tests.support.visits import Answer, Tab

HOSTILE = "<script>alert('x')</script>"


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


def declare(app: Pulse) -> None:
    @app.job(queue="print")
    async def print_label(
        ctx: Context,
        name: str,
        copies: int,
        size: Size,
        ink: Literal["black", "blue"],
        day: date,
        weight: float = 1.5,
        fragile: bool = False,
        note: str | None = None,
        lines: list[int] = [],  # noqa: B006 - only its type matters
        at: datetime | None = None,
    ) -> None: ...


RIGHT = {
    "argument.name": HOSTILE,
    "argument.copies": "12345678901234567890123",
    "argument.size": "l",
    "argument.ink": "blue",
    "argument.day": "2026-11-17",
    "argument.weight": "",
    "argument.fragile": "true",
    "argument.note": "",
    "argument.lines": "[1, 2]",
    "argument.at": "2026-11-17T10:00:00Z",
}


@pytest.fixture
async def labels(app):
    declare(app)
    yield app
    await app.aclose()


@pytest.fixture
def tab(labels) -> Tab:
    return Tab(dashboard(labels, access=Local(Role.ADMIN)))


def problem_at(page: Answer, name: str) -> str:
    found = re.search(rf'id="problem-{name}"[^>]*>([^<]*)<', page.body)
    return found[1] if found else ""


async def test_the_fields_are_those_of_the_handler(tab):
    assert '<option value="print_label">' in (await tab.get("/jobs/new")).body
    page = await tab.get("/jobs/new?topic=print_label")
    assert re.findall(r'name="argument\.(\w+)"', page.body) == [
        name.removeprefix("argument.") for name in RIGHT
    ]
    assert re.search(r'<select name="argument.size">\s*<option>s</option>\s*<option>l<', page.body)
    assert '<input type="date" name="argument.day"' in page.body
    assert 'placeholder="1.5"' in page.body


async def test_right_values_make_a_job(labels, tab):
    options = {"priority": "7", "delay": "2", "unit": "hours", "tags": "eu, vip"}
    answer = await tab.post("/jobs/new", topic="print_label", **RIGHT, **options)
    page = await tab.follow(answer)
    assert "The job print_label is enqueued." in page.text
    [job] = await labels.jobs.alist()
    assert job.payload == {
        "name": HOSTILE,
        "copies": 12345678901234567890123,
        "size": "l",
        "ink": "blue",
        "day": "2026-11-17",
        "fragile": True,
        "lines": [1, 2],
        "at": "2026-11-17T10:00:00Z",
    }
    assert (job.queue, job.priority, job.tags) == ("print", 7, ("eu", "vip"))
    assert (job.next_run_at - job.submitted_at).total_seconds() == 7200
    assert HOSTILE not in page.body


async def test_wrong_values_are_named_at_their_fields_and_kept(labels, tab):
    wrong = {"argument.copies": "many", "argument.size": "x", "argument.lines": "[1,"}
    page = await tab.post("/jobs/new", topic="print_label", **RIGHT | wrong, priority="high")
    assert page.status == 422
    assert "is no whole number" in problem_at(page, "copies")
    assert problem_at(page, "size") == "Choose one of s, l."
    assert "is no JSON" in problem_at(page, "lines")
    assert "is no whole number" in problem_at(page, "priority")
    assert 'value="many"' in page.body
    assert HOSTILE in page.text
    assert HOSTILE not in page.body
    page = await tab.post("/jobs/new", topic="print_label", **RIGHT | {"argument.day": "today"})
    assert "cannot take argument" in problem_at(page, "day")
    page = await tab.post("/jobs/new", topic="print_label", **RIGHT, priority="1000")
    assert "priority must" in page.text
    assert not await labels.jobs.alist()


async def test_a_topic_without_a_handler_here_takes_an_object(labels, tab):
    for wrong in ("[]", "{", ""):
        page = await tab.post("/jobs/new", topic="elsewhere", **{"argument.payload": wrong})
        assert page.status == 422
        assert problem_at(page, "payload")
    answer = await tab.post("/jobs/new", topic="elsewhere", **{"argument.payload": '{"a": 1}'})
    assert answer.status == 303
    [job] = await labels.jobs.alist()
    assert (job.topic, job.payload) == ("elsewhere", {"a": 1})


async def test_only_an_admin_enqueues(labels):
    access = Basic({"otto": ("pw", Role.OPERATOR)})
    tab = Tab(dashboard(labels, access=access), headers={"authorization": "Basic b3R0bzpwdw=="})
    assert (await tab.get("/jobs/new")).status == 403
    assert (await tab.post("/jobs/new", topic="print_label")).status == 403
