"""Traces by OpenTelemetry: ``pulsed.tracing.instrument(app)``.

Built on ``@app.around``, ``@app.around_step`` and ``@app.around_enqueue`` and on nothing else. The
trace context travels in the headers of a job, as W3C's ``traceparent``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from pulsed.app import Pulse
from pulsed.engine.context import Context
from pulsed.engine.enqueuing import OutgoingJob
from pulsed.engine.error_text import message, type_name
from pulsed.engine.workflow.steps import StepCall
from pulsed.errors import MissingDriver
from pulsed.extras import install_command
from pulsed.handler.options import LARGEST_HEADERS, MOST_HEADERS
from pulsed.tracing import conventions
from pulsed.version import __version__

try:
    from opentelemetry import trace
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingDriver(
        f"pulsed.tracing needs opentelemetry-api, which is not installed: {install_command('otel')}"
    ) from error

__all__ = ["instrument"]

REMEMBERED = 10_000
"""Jobs whose last run in this process the next one links to."""


def instrument(
    app: Pulse, tracer_provider: trace.TracerProvider | None = None, *, parent: bool = False
) -> None:
    """Make spans for what this app enqueues, runs and does in steps.

    The span of a run links to that of its enqueue. With ``parent`` it is its child: one trace for
    both, however much later the job runs.
    """
    tracing = _Tracing(trace.get_tracer("pulsed", __version__, tracer_provider), parent=parent)
    app.around_enqueue(tracing.send)
    app.around(tracing.process)
    app.around_step(tracing.step)


class _Tracing:
    def __init__(self, tracer: trace.Tracer, *, parent: bool) -> None:
        self._tracer = tracer
        self._parent = parent
        self._headers = TraceContextTextMapPropagator()
        self._previous = _PreviousRuns()

    def send(self, jobs: Sequence[OutgoingJob]) -> Iterator[None]:
        name, attributes = conventions.sending(jobs)
        with self._span(name, attributes, kind=SpanKind.PRODUCER):
            carrier: dict[str, str] = {}
            self._headers.inject(carrier)
            for job in jobs:
                if _fits(job.headers, carrier):
                    job.headers.update(carrier)
            yield

    def process(self, ctx: Context) -> Iterator[None]:
        sent = self._headers.extract(ctx.headers, TraceContext())
        producer = trace.get_current_span(sent).get_span_context()
        name, attributes = conventions.processing(ctx)
        links = [] if self._parent else _links(producer, "producer")
        links += _links(self._previous.take(ctx.job_id), "previous run")
        context = sent if self._parent else TraceContext()
        with self._span(name, attributes, kind=SpanKind.CONSUMER, links=links, context=context) as (
            span
        ):
            try:
                yield
            except BaseException:  # failed, interrupted, or a workflow that waits: it runs again
                self._previous.put(ctx.job_id, span.get_span_context())
                raise

    def step(self, step: StepCall) -> Iterator[None]:
        name, attributes = conventions.stepping(step)
        with self._span(name, attributes):
            yield

    @contextmanager
    def _span(
        self, name: str, attributes: conventions.Attributes, **options: Any
    ) -> Iterator[Span]:
        """Make a span the current one; an error sets its status, a workflow that waits does not."""
        with self._tracer.start_as_current_span(
            name,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
            **options,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute(conventions.ERROR_TYPE, type_name(type(error)))
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, message(error)))
                raise


class _PreviousRuns:
    """The spans of the last runs of jobs that are to run again, as far as this process had them."""

    def __init__(self) -> None:
        self._spans: OrderedDict[UUID, SpanContext] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, job_id: UUID, span: SpanContext) -> None:
        with self._lock:
            self._spans[job_id] = span
            if len(self._spans) > REMEMBERED:
                self._spans.popitem(last=False)

    def take(self, job_id: UUID) -> SpanContext | None:
        with self._lock:
            return self._spans.pop(job_id, None)


def _links(span: SpanContext | None, to: str) -> list[Link]:
    if span is None or not span.is_valid:
        return []
    return [Link(span, {conventions.LINKED: to})]


def _fits(headers: Mapping[str, str], more: Mapping[str, str]) -> bool:
    """Whether headers may be added: a job must not be refused for the sake of its trace."""
    merged = {**headers, **more}
    size = sum(len(text.encode()) for pair in merged.items() for text in pair)
    return len(merged) <= MOST_HEADERS and size <= LARGEST_HEADERS
