"""Traces, from the enqueue to the step, read back through the OpenTelemetry SDK."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pulsed import Backoff, Context, Pulse, Status
from pulsed.client.job import Job
from pulsed.handler.options import MOST_HEADERS
from pulsed.tracing import instrument
from tests.support.commands import Command
from tests.support.workers import until


class Traced:
    """An app whose spans are kept in memory."""

    def __init__(self, app: Pulse, **options: Any) -> None:
        self.app = app
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        instrument(app, self.provider, **options)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The last span of each name."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    async def run(self, *jobs: Job[Any]) -> None:
        worker = self.app.worker(poll=0.02, tick=3600, schedules=False)
        task = asyncio.create_task(worker.run())
        for job in jobs:
            await until(lambda job=job: is_over(job))  # type: ignore[misc]
        worker.stop()
        await task


async def is_over(job: Job[Any]) -> bool:
    await job.arefresh()
    return job.status in (Status.SUCCEEDED, Status.DEAD_LETTERED)


def links_of(span: ReadableSpan) -> dict[Any, int]:
    return {(link.attributes or {})["pulsed.link"]: link.context.span_id for link in span.links}


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_run_links_to_the_span_that_enqueued_it(app: Pulse, is_async: bool):
    traced = Traced(app)
    inside: list[int] = []

    def work() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    async def work_on_loop() -> None:
        work()

    handler = app.job(topic="work", queue="q")(work_on_loop if is_async else work)
    job = await handler.aenqueue()
    await traced.run(job)
    sent, ran = traced.spans["send work"], traced.spans["process work"]
    assert job.headers["traceparent"].split("-")[2] == f"{id_of(sent):016x}"
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert links_of(ran) == {"producer": id_of(sent)}
    assert ran.parent is None
    assert inside == [id_of(ran)]
    assert dict(sent.attributes or {}) == {
        "messaging.system": "pulsed",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "work",
        "messaging.message.id": str(job.id),
        "pulsed.queue": "q",
    }
    assert dict(ran.attributes or {}) == {
        "messaging.system": "pulsed",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "work",
        "messaging.message.id": str(job.id),
        "pulsed.queue": "q",
        "pulsed.attempt": 1,
    }
    assert ran.status.status_code is StatusCode.UNSET


async def test_with_parent_a_run_is_the_child_of_its_enqueue(app: Pulse):
    traced = Traced(app, parent=True)

    @app.job
    async def work() -> None: ...

    with trace.get_tracer("web", tracer_provider=traced.provider).start_as_current_span("request"):
        job = await work.aenqueue()
    await traced.run(job)
    sent, ran = traced.spans["send work"], traced.spans["process work"]
    assert parent_of(sent) == id_of(traced.spans["request"])
    assert parent_of(ran) == id_of(sent)
    assert links_of(ran) == {}


async def test_a_batch_is_one_span_that_all_its_jobs_link_to(app: Pulse):
    traced = Traced(app)

    @app.job
    async def work(n: int) -> None: ...

    jobs = await work.aenqueue_many([(1,), (2,), (3,)])
    await traced.run(*jobs)
    (sent,) = traced.named("send work")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in (sent.attributes or {})
    assert [links_of(ran) for ran in traced.named("process work")] == [
        {"producer": id_of(sent)}
    ] * 3


async def test_a_retry_links_to_the_attempt_before_it(app: Pulse):
    traced = Traced(app)

    @app.job(max_attempts=2, backoff=Backoff.linear(0.001, jitter=0))
    async def fails() -> None:
        raise ConnectionError("503")

    job = await fails.aenqueue()
    await traced.run(job)
    first, second = traced.named("process fails")
    sent = id_of(traced.spans["send fails"])
    assert links_of(first) == {"producer": sent}
    assert links_of(second) == {"producer": sent, "previous run": id_of(first)}
    assert (first.attributes or {})["error.type"] == "ConnectionError"
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "503"
    assert [event.name for event in first.events] == ["exception"]


async def test_steps_are_children_of_their_run_and_a_wait_is_no_error(app: Pulse):
    traced = Traced(app)
    inside: list[int] = []

    async def on_loop() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    def in_thread() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    @app.job
    async def flow(ctx: Context) -> None:
        await ctx.step(on_loop)
        await ctx.sleep(0.01)
        await ctx.step(in_thread)

    await traced.run(await flow.aenqueue())
    first, second = traced.named("process flow")
    steps = [traced.spans["step on_loop"], traced.spans["step in_thread"]]
    assert [parent_of(step) for step in steps] == [id_of(first), id_of(second)]
    assert inside == [id_of(step) for step in steps]
    assert links_of(second)["previous run"] == id_of(first)
    assert {first.status.status_code, second.status.status_code} == {StatusCode.UNSET}


async def test_the_children_of_a_fan_out_link_to_their_parents_run(app: Pulse):
    traced = Traced(app)

    @app.job
    async def child(n: int) -> None: ...

    @app.job
    async def parent(ctx: Context) -> None:
        await ctx.fan_out([child.bind(1), child.bind(2)])

    await traced.run(await parent.aenqueue())
    (sent,) = traced.named("send child")
    assert parent_of(sent) == id_of(traced.named("process parent")[0])
    assert [links_of(ran) for ran in traced.named("process child")] == [
        {"producer": id_of(sent)}
    ] * 2


async def test_a_job_without_room_for_headers_is_enqueued_without_a_trace(app: Pulse):
    traced = Traced(app)

    @app.job
    async def work() -> None: ...

    full = {str(n): "" for n in range(MOST_HEADERS)}
    job = await work.using(headers=full).aenqueue()
    await traced.run(job)
    assert job.headers == full
    assert links_of(traced.spans["process work"]) == {}


APP = """
import pathlib
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pulsed import Pulse
from pulsed.tracing import instrument

spans = (pathlib.Path(__file__).parent / "spans").open("a")
provider = TracerProvider()
written = ConsoleSpanExporter(out=spans, formatter=lambda s: s.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(written))
app = Pulse()
instrument(app, provider)

@app.job
def work() -> None: ...
"""


def test_a_trace_crosses_from_one_process_to_another(tmp_path: Path, url: str):
    (tmp_path / "traced.py").write_text(APP)
    with Pulse(url) as app:
        traced = Traced(app)

        @app.job
        def work() -> None: ...

        job = work.enqueue()
        with Command(tmp_path, "worker", "traced:app", PULSED_URL=url):
            job.result(timeout=60)
    (line,) = (tmp_path / "spans").read_text().splitlines()
    ran, sent = json.loads(line), traced.spans["send work"]
    assert ran["name"] == "process work"
    (link,) = ran["links"]
    assert link["context"]["span_id"] == f"0x{id_of(sent):016x}"


def test_opentelemetry_is_imported_only_for_tracing():
    code = (
        "import sys, pulsed.app, pulsed.engine.worker.worker\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "sys.modules['opentelemetry'] = None\n"
        "from pulsed.errors import MissingDriver\n"
        "try:\n    import pulsed.tracing\n"
        "except MissingDriver as error:\n    assert '[otel]' in str(error)\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
