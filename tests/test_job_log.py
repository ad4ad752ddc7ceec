"""What the log says when a job ends."""

import json
import logging
import sys
from typing import Any

import pytest

from pulsed.cli.logs import JsonLines
from pulsed.engine.context import Context
from pulsed.engine.job_logging import JobLogFilter
from pulsed.engine.worker import job_log
from pulsed.errors import InvalidOption, NoRetry
from pulsed.model.job import Status
from pulsed.store.base import Store
from tests.support.jobs import NO_WAIT
from tests.support.workers import (
    a_worker,
    finished,
    in_status,
    submit_many,
    submit_with,
    working,
)


async def double(n: int) -> int:
    return 2 * n


def divide(n: int) -> float:
    return _divided(n)


def _divided(n: int) -> float:
    return 1 / n  # this line


LINE = _divided.__code__.co_firstlineno + 1


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="pulsed.job")
    return caplog


def about_jobs(said: pytest.LogCaptureFixture, level: int) -> list[Any]:
    return [each for each in said.records if each.name == "pulsed.job" and each.levelno == level]


async def test_a_success_is_one_line_with_its_duration_and_its_job(store: Store, said):
    job_id = await submit_with(store, "double", {}, n=1)
    async with working(store, double):
        await finished(store, job_id)
    (record,) = about_jobs(said, logging.INFO)
    assert record.getMessage().startswith(f"job {job_id} (double) succeeded in ")
    assert (record.job_id, record.topic, record.attempt) == (str(job_id), "double", 1)
    assert record.duration_ms >= 0


async def test_a_failure_that_is_retried_names_the_line_of_the_handler(store: Store, said):
    job_id = await submit_with(store, "divide", {"max_attempts": 2}, n=0)
    async with working(store, divide):
        await in_status(store, job_id, Status.RETRYING)
    (record,) = about_jobs(said, logging.WARNING)
    assert record.getMessage() == (
        f"job {job_id} (divide) failed and will be retried, attempt 1 of 2: ZeroDivisionError: "
        f"division by zero (test_job_log.py:{LINE})"
    )
    assert record.exc_info is None


@pytest.mark.parametrize("level", [logging.ERROR, logging.DEBUG])
async def test_a_dead_letter_is_an_error_with_its_traceback(store: Store, said, level):
    said.set_level(level, logger="pulsed.job")
    job_id = await submit_with(store, "divide", {"max_attempts": 2, "backoff": NO_WAIT}, n=0)
    async with working(store, divide):
        await finished(store, job_id)
    (record,) = about_jobs(said, logging.ERROR)
    assert record.getMessage().startswith(f"job {job_id} (divide) is dead-lettered, attempt 2 of 2")
    kind, error, trace = record.exc_info
    assert (kind, type(error)) == (ZeroDivisionError, ZeroDivisionError)
    assert trace.tb_frame.f_code is divide.__code__, "it begins in the handler"
    assert (record.job_id, record.attempt) == (str(job_id), 2)


async def test_what_is_not_retried_is_a_dead_letter_in_its_first_attempt(store: Store, said):
    async def refuse() -> None:
        raise NoRetry("no such customer")

    job_id = await submit_with(store, "refuse", {})
    async with working(store, refuse):
        await finished(store, job_id)
    (record,) = about_jobs(said, logging.ERROR)
    assert "dead-lettered, attempt 1 of 3 failed: no such customer" in record.getMessage()


async def test_under_load_successes_are_counted_instead_of_logged(store: Store, said, monkeypatch):
    monkeypatch.setattr(job_log, "WINDOW", 3600.0)  # one window, which the end of the worker ends
    jobs = await submit_many(store, "double", 50)
    async with working(store, double):
        for job_id in jobs:
            await finished(store, job_id)
    *lines, last = [record.getMessage() for record in about_jobs(said, logging.INFO)]
    assert len(lines) == job_log.LINES
    assert last == "30 more jobs succeeded; --job-log all shows each"


@pytest.mark.parametrize("mode, lines", [("all", 50), ("failures", 0)])
async def test_successes_are_logged_as_the_worker_is_told(store: Store, said, mode, lines):
    jobs = await submit_many(store, "double", 50)
    async with working(store, double, job_log=mode):
        for job_id in jobs:
            await finished(store, job_id)
    assert len(about_jobs(said, logging.INFO)) == lines


def test_an_unknown_mode_is_refused():
    with pytest.raises(InvalidOption, match="job_log must be one of all, limited, failures"):
        a_worker(None, double, job_log="some")  # type: ignore[arg-type]


# -- JSON -----------------------------------------------------------------------------------------


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    JobLogFilter().filter(record)
    fields: dict[str, Any] = json.loads(JsonLines().format(record))
    return fields


def a_record(extra: dict[str, Any] | None = None, *, failed: bool = False) -> logging.LogRecord:
    info = None
    if failed:
        try:
            int("bad")
        except ValueError:
            info = sys.exc_info()
    logger = logging.getLogger("shop")
    return logger.makeRecord("shop", logging.INFO, "f.py", 1, "paid %d", (3,), info, extra=extra)


def test_a_json_line_has_what_its_record_was_given():
    fields = as_json(a_record({"customer": "ada", "level": "mine"}, failed=True))
    assert (fields["message"], fields["customer"]) == ("paid 3", "ada")
    assert fields["level"] == "info", "the record's own fields win"
    assert fields["exception"].endswith("'bad'")
    assert "job_id" not in fields


async def test_a_json_line_of_a_handler_has_its_job(store: Store, said):
    lines = []

    async def pay(ctx: Context) -> None:
        logging.getLogger("shop").warning("paid")
        lines.append(as_json(said.records[-1]))

    job_id = await submit_with(store, "pay", {})
    async with working(store, pay):
        await finished(store, job_id)
    (fields,) = lines
    assert (fields["job_id"], fields["topic"], fields["attempt"]) == (str(job_id), "pay", 1)


async def test_a_log_handler_that_raises_costs_no_report_and_no_other_line(store: Store, said):
    class Picky(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "job_id", "") == str(ids[1]):
                raise RuntimeError("not this one")

    ids = await submit_many(store, "double", 3)
    picky = Picky()
    job_log.log.addHandler(picky)
    try:
        async with working(store, double):
            for job_id in ids:
                assert (await finished(store, job_id)).status is Status.SUCCEEDED
    finally:
        job_log.log.removeHandler(picky)
    assert {each.job_id for each in about_jobs(said, logging.INFO)} >= {str(ids[0]), str(ids[2])}
    assert "its end could not be logged" in said.text
