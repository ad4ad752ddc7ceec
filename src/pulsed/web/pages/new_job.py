"""The form for a new job, made from its handler's types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from pulsed.errors import InvalidJob
from pulsed.web.new_job import ArgumentField, fields_of, read_json, typed
from pulsed.web.site import PageCall

UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}

_ARGUMENT = re.compile(r"argument '(\w+)|parameter '(\w+)'|needs '(\w+)'")


def _object(text: str) -> dict[str, Any]:
    value = read_json(text)
    if isinstance(value, dict):
        return value
    raise ValueError("A payload is an object: the names of the arguments and their values.")


WHOLE = ArgumentField("payload", "json", _object, is_required=True)
"""The field for all arguments of a topic whose handler is not known here."""


async def show(call: PageCall) -> Response:
    """Show the form: first the topics, then the fields of the chosen one."""
    return await _form(call, call.query.get("topic", ""), {}, {})


async def enqueue(call: PageCall) -> Response:
    """Enqueue the job, or show the form again with what is wrong with it."""
    topic = call.given("topic")
    fields = _fields(call, topic)
    given = {name: values[0] for name, values in call.form.items()}
    arguments, problems = typed(fields, call.form)
    if call.app.registry.find(topic) is None:
        arguments = arguments.get(WHOLE.name, {})
    options, wrong = _options(call)
    problems |= wrong
    if not problems:
        try:
            job = await call.app.aenqueue(topic, arguments, unknown=True, **options)
        except InvalidJob as error:
            problems = _placed(str(error), fields)
        else:
            return call.done(f"The job {topic} is enqueued.", f"/jobs/{job.id}")
    return await _form(call, topic, given, problems)


async def _form(
    call: PageCall, topic: str, given: Mapping[str, str], problems: Mapping[str, str]
) -> Response:
    handler = call.app.registry.find(topic)
    return await call.page(
        "new_job.html",
        status=422 if problems else 200,
        topic=topic,
        topics=await _topics(call),
        fields=_fields(call, topic) if topic else [],
        handler=handler,
        units=list(UNITS),
        given=given,
        problems=problems,
    )


async def _topics(call: PageCall) -> list[str]:
    """Return the topics of the app, and those that live workers have handlers for."""
    known = {handler.topic for handler in call.app.registry}
    for worker in await call.app.store.workers():
        known.update(worker.topics)
    return sorted(known)


def _fields(call: PageCall, topic: str) -> Sequence[ArgumentField]:
    handler = call.app.registry.find(topic)
    return [WHOLE] if handler is None else fields_of(handler)


def _options(call: PageCall) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of the job, and what is wrong with them."""
    options: dict[str, Any] = {}
    problems: dict[str, str] = {}
    if queue := call.given("queue").strip():
        options["queue"] = queue
    for name in ("priority", "max_attempts"):
        if text := call.given(name).strip():
            try:
                options[name] = int(text)
            except ValueError:
                problems[name] = f"{text!r} is no whole number."
    if text := call.given("delay").strip():
        try:
            options["delay"] = float(text) * UNITS.get(call.given("unit"), 1)
        except ValueError:
            problems["delay"] = f"{text!r} is no number."
    if text := call.given("at").strip():
        try:
            options["at"] = datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            problems["at"] = f"{text!r} is no time: write 2026-11-17T10:00."
    if tags := [tag for tag in map(str.strip, call.given("tags").split(",")) if tag]:
        options["tags"] = tags
    return options, problems


def _placed(problem: str, fields: Sequence[ArgumentField]) -> dict[str, str]:
    """Return a problem at the field that it names, or at the form."""
    match = _ARGUMENT.search(problem)
    name = next((each for each in match.groups() if each), "") if match else ""
    return {name if name in {field.name for field in fields} else "": problem}
