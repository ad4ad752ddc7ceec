"""The reference of the API, generated from signatures and docstrings."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pulsed
from tools.site.docstring import markdown
from tools.site.members import Member, constructor, members, signature

FOLDER = Path("docs/reference")
PUBLIC = {
    "pulsed",
    "pulsed.events",
    "pulsed.testing",
    "pulsed.tracing",
    "pulsed.web",
    "pulsed.contrib.flask",
    "pulsed.contrib.starlette",
}
"""Where users import from. The classes of other modules are met as attributes of an app."""
DATA = {"Call", "OutgoingJob", "Ran", "WorkerOptions"}
"""Classes whose methods are for pulsed itself."""


class Topic(NamedTuple):
    """What a page is about."""

    title: str
    opening: str
    objects: list[str]


PAGES: dict[str, Topic] = {
    "app": Topic(
        "The app",
        "Declare jobs, enqueue them, and run workers.",
        ["pulsed:Pulse", "pulsed:Router"],
    ),
    "jobs": Topic(
        "Jobs",
        "What `@app.job` takes and returns, what an enqueue takes and returns, and `app.jobs`.",
        [
            "pulsed.handler.options:HandlerOptions",
            "pulsed.handler.options:Options",
            "pulsed:JobType",
            "pulsed:Call",
            "pulsed:Job",
            "pulsed:Status",
            "pulsed.client.jobs:Jobs",
            "pulsed.client.filter:Filter",
            "pulsed.client.bulk:Bulk",
            "pulsed.client.bulk:BulkOperation",
        ],
    ),
    "context": Topic(
        "Inside of a handler",
        "The context of a run: steps, waits, children, progress, and how a run ends.",
        [
            "pulsed:Context",
            "pulsed:current_context",
            "pulsed:FanOut",
            "pulsed:fail_fast",
            "pulsed:collect_all",
            "pulsed:threshold",
            "pulsed:RetryAfter",
            "pulsed:NoRetry",
            "pulsed:Snooze",
            "pulsed:RunStopped",
        ],
    ),
    "schedules": Topic(
        "Schedules",
        "When jobs are made by the clock: `app.schedule`, `app.schedules`.",
        [
            "pulsed.client.schedule_spec:When",
            "pulsed.client.schedule_spec:ScheduleOptions",
            "pulsed.client.schedules:Schedules",
            "pulsed:Schedule",
            "pulsed:ScheduleState",
        ],
    ),
    "configuration": Topic(
        "Configuration",
        "Of workers, retries, limits and retention. The settings of an app are the arguments of "
        "[`Pulse`](app.md); environment variables are on [the command line's page](../cli.md).",
        [
            "pulsed.engine.worker.options:WorkerOptions",
            "pulsed:Backoff",
            "pulsed:RetryPolicy",
            "pulsed:Retention",
            "pulsed:Limit",
            "pulsed:Rate",
        ],
    ),
    "operation": Topic(
        "Operation",
        "What operators see and do: `app.queues`, `app.topics`, `app.limits`, `app.workers`, "
        "`app.stats`, `app.audit`.",
        [
            "pulsed.client.queues:Queues",
            "pulsed.client.queues:TopicActs",
            "pulsed.client.limits:LimitActs",
            "pulsed.client.workers:Workers",
            "pulsed.client.stats:Statistics",
            "pulsed.client.audit:AuditLog",
        ],
    ),
    "hooks": Topic(
        "Hooks, events and codecs",
        "Your code around enqueues, runs and steps, and what it is given.",
        [
            "pulsed:OutgoingJob",
            "pulsed:StepCall",
            "pulsed:JobLogFilter",
            "pulsed:TextCodec",
            "pulsed:CodecContext",
            "pulsed.tracing:instrument",
            *(f"pulsed.events:{name}" for name in importlib.import_module("pulsed.events").__all__),
        ],
    ),
    "testing": Topic(
        "The test kit",
        "For your tests: a sandbox, a clock, and a worker that drains.",
        [f"pulsed.testing:{name}" for name in importlib.import_module("pulsed.testing").__all__],
    ),
    "frameworks": Topic(
        "Frameworks and the dashboard",
        "Inside of Starlette, FastAPI and Flask, and the dashboard as an ASGI application.",
        [
            "pulsed.contrib.starlette:lifespan",
            "pulsed.contrib.starlette:running",
            "pulsed.contrib.starlette:pulse_of",
            "pulsed.contrib.starlette:job_events",
            "pulsed.contrib.flask:FlaskPulse",
            "pulsed.contrib.flask:current_pulse",
            *(f"pulsed.web:{name}" for name in importlib.import_module("pulsed.web").__all__),
        ],
    ),
}
"""What each page is about; errors have a page of their own."""


def titles() -> dict[Path, str]:
    """Return where the pages are, and their titles."""
    titles = {name: title for name, (title, *_) in PAGES.items()} | {"errors": "Errors"}
    return {FOLDER / f"{name}.md": title for name, title in titles.items()}


def pages() -> Iterator[tuple[Path, str]]:
    """Yield where each page is, and its text."""
    for name, (title, opening, objects) in PAGES.items():
        text = "\n".join([f"# {title}\n", f"{opening}\n", *map(described, objects)])
        yield FOLDER / f"{name}.md", text
    yield FOLDER / "errors.md", errors()


def described(path: str) -> str:
    """Return the section of one object: how it is made, what it is, what it offers."""
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name)
    imported = f"`from {module} import {name}`" if module in PUBLIC else ""
    return joined([f"## {name}", imported, *parts(found)])


def parts(found: Any) -> list[str]:
    """Return the paragraphs about a class, a function or a value."""
    if inspect.isclass(found):
        made = constructor(found) if "Args:" in (found.__doc__ or "") else ""
        fields = [member for member in members(found) if not member.is_method]
        methods = [] if found.__name__ in DATA else members(found)
        calls = [method(member) for member in methods if member.is_method]
        return [code(made) if made else "", own_doc(found), listed(fields), *calls]
    if inspect.isfunction(found):
        node = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        return [code(signature(node)), own_doc(found)]
    return [own_doc(type(found))]


def own_doc(found: Any) -> str:
    """Return an object's own docstring, without the one that ``dataclass`` makes."""
    doc = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
    return "" if not doc or doc.startswith(f"{found.__name__}(") else markdown(doc)


def listed(fields: list[Member]) -> str:
    """Return attributes and properties as a list."""
    return "\n".join(
        f"- `{field.signature}`" + (f": {one_line(field.doc)}" if field.doc else "")
        for field in fields
    )


def one_line(doc: str) -> str:
    """Return a docstring as one paragraph, for an item of a list."""
    return " ".join(markdown(doc).split())


def method(member: Member) -> str:
    """Return the section of a method, together with its async form."""
    title = f"### {member.name}" + (f", {member.twin}" if member.twin else "")
    twin = f"In an event loop: `{member.twin_call}`." if member.twin else ""
    return joined([title, code(member.signature), markdown(member.doc), twin])


def code(text: str) -> str:
    """Return a signature as a block, an argument to a line if it is long."""
    if len(text) > 80 and "(" in text:
        start, _, rest = text.partition("(")
        arguments, _, end = rest.rpartition(")")
        lines = "".join(f"    {each},\n" for each in arguments_of(arguments))
        text = f"{start}(\n{lines}){end}"
    return f"```python\n{text}\n```"


def arguments_of(text: str) -> list[str]:
    """Return the arguments of a signature, one by one."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return [each.strip() for each in found]


def joined(parts: list[str]) -> str:
    """Return the parts that are there, as paragraphs."""
    return "\n\n".join(part for part in parts if part) + "\n"


def errors() -> str:
    """Return the page of errors: the tree, and those with more to say."""
    module = importlib.import_module("pulsed.errors")
    kinds = [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__
    ]
    parts = (f"## {kind.__name__}\n\n{joined([origin(kind), own_doc(kind)])}" for kind in kinds)
    return f"# Errors\n\n{markdown(module.__doc__ or '')}\n\n" + "\n".join(parts)


def origin(kind: type) -> str:
    """Return where an error is imported from, and what it is a kind of."""
    module = "pulsed" if kind.__name__ in pulsed.__all__ else "pulsed.errors"
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    return f"`from {module} import {kind.__name__}`, a kind of {bases}."
