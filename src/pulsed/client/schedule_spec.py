"""Turns the options of a schedule into the spec that is stored, or refuses them with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from pulsed.client.arguments import TakesNone
from pulsed.client.jobtype import JobType
from pulsed.errors import InvalidOption
from pulsed.handler import Call, Handler, Registry, checked_options, encode_by_name
from pulsed.handler.options import checked_count, checked_due, checked_name
from pulsed.handler.registry import ONE_ID, with_key_settled
from pulsed.model.backoff import Backoff
from pulsed.model.fields import TEMPLATE, attributes_of
from pulsed.model.keys import UNTIL_START, OnDuplicate
from pulsed.model.schedule import CatchUp, Overlap, ScheduleSpec, checked_jitter
from pulsed.model.timetable import MICROSECOND, Cron, Every, cron_timetable, every_timetable

Target: TypeAlias = TakesNone[Any] | Call[Any] | str
"""What a schedule runs: a job without arguments, ``job.bind(...)``, or a topic by name."""


class When(TypedDict, total=False):
    """When a schedule is due, and what happens to missed occurrences."""

    cron: str
    """Five fields, or ``@hourly`` and its like; in the wall time of ``tz``.

    A prefix ``CRON_TZ=Europe/Berlin`` names the zone, too; ``@every 5m`` is an interval.
    """
    every: float | timedelta
    """Seconds between two occurrences, counted from ``start`` or the creation."""
    at: datetime
    """One instant; one in the past is due at once."""
    tz: str
    catch_up: Literal["one", "skip", "all"]
    limit: int | None
    """With catch-up ``all``: the maximum number of occurrences to catch up on."""
    overlap: Literal["allow", "skip"]
    """``skip`` skips an occurrence while the job of an earlier one has not ended."""
    jitter: float | timedelta
    """Spreads jobs that are due at the same instant over this many seconds after it."""
    start: datetime | None
    end: datetime | None


class ScheduleOptions(When, total=False):
    """All options of a schedule: when it is due, and the options of its jobs."""

    payload: Mapping[str, Any]
    """The arguments, if the target is a topic by name."""
    queue: str
    priority: int
    expires: float | timedelta | None
    max_attempts: int | None
    backoff: Backoff | None
    timeout: float | timedelta | None
    lease: float | timedelta | None
    headers: Mapping[str, str] | None
    tags: list[str] | None
    key: str | None
    key_for: Literal["start", "end"] | float | timedelta | None
    on_duplicate: Literal["return", "replace"] | None


_NEITHER = "A schedule takes neither conn= nor delay=; jitter= spreads its jobs."
_NO_CALLER = (
    "A schedule has no caller to raise DuplicateKey to: use on_duplicate='return', which skips an "
    "occurrence while another job holds the key, or 'replace' with key_for='start'."
)
_WHEN = tuple(When.__annotations__)
KINDS = ("cron", "every", "at")
JOB_OPTIONS = tuple(name for name in attributes_of(TEMPLATE) if name not in ("topic", "payload"))


def make_spec(target: Target, options: Mapping[str, Any], registry: Registry) -> ScheduleSpec:
    """Return the spec of a schedule with these options."""
    given = {name: value for name, value in options.items() if value is not None}
    payload = given.pop("payload", None)
    when = {name: given.pop(name) for name in _WHEN if name in given}
    job = _job_fields(target, payload, given, registry)
    return ScheduleSpec(**job, **_when_fields(when))


class _TargetJob(NamedTuple):
    """The job of a schedule."""

    topic: str
    payload: str
    bound: dict[str, Any]
    """The options that were bound with its arguments."""
    handler: Handler[Any] | None


def _job_fields(
    target: Target, payload: Any, options: Mapping[str, Any], registry: Registry
) -> dict[str, Any]:
    if "conn" in options or "delay" in options:
        raise InvalidOption(_NEITHER)
    if "id" in options:
        raise InvalidOption(ONE_ID)
    job = _target_job(target, payload, registry)
    if "conn" in job.bound:
        raise InvalidOption(_NEITHER)
    if "delay" in job.bound or "at" in job.bound:
        raise InvalidOption("A schedule says when its jobs run; bind the job without delay=, at=.")
    given = job.bound | checked_options(options)
    if "expires_at" in given:
        raise InvalidOption(
            "expires= of a schedule is a number of seconds: each of its jobs has its own instant."
        )
    return {"topic": job.topic, "payload": job.payload} | _with_key(job, given)


def _target_job(target: Target, payload: Any, registry: Registry) -> _TargetJob:
    """Return the job that a target names: its topic, its arguments and its handler."""
    if isinstance(target, JobType):
        target = target.bind()
    if isinstance(target, Call):
        if payload is not None:
            raise InvalidOption("payload= is for a topic by name; bind the arguments instead.")
        return _TargetJob(target.topic, target.payload, dict(target.options), target.handler)
    if not isinstance(target, str):
        raise InvalidOption(
            f"A schedule runs a job, job.bind(...) or a topic by name, not {target!r:.100}."
        )
    handler = registry.find(checked_name("topic", target))
    text = encode_by_name(target, payload or {})
    if handler is not None:
        text = handler.encode_json(payload or {})
    elif len(registry):
        registry.get(target)
    return _TargetJob(target, text, {}, handler)


def _with_key(job: _TargetJob, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the handler's defaults, and the key that the job has by them."""
    if job.handler is not None:
        given = job.handler.defaults(given) | given
        if "key" not in given:
            given = job.handler.key_options(job.payload) | given
    given = with_key_settled(given)
    if given.get("on_duplicate") == OnDuplicate.RAISE or (
        given.get("on_duplicate") == OnDuplicate.REPLACE and given["key_for"] != UNTIL_START
    ):
        raise InvalidOption(_NO_CALLER)
    return given


def _when_fields(when: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [name for name in KINDS if name in when]
    if len(kinds) != 1:
        given = " and ".join(f"{name}=" for name in kinds) or "none of them"
        raise InvalidOption(f"A schedule needs exactly one of cron=, every= and at=, not {given}.")
    fields: dict[str, Any] = {}
    if "cron" in when:
        fields |= _repetition(cron_timetable(when["cron"], when.get("tz")))
    elif "tz" in when:
        raise InvalidOption("tz= is for cron=; an interval and an instant are the same everywhere.")
    if "every" in when:
        fields |= _repetition(every_timetable(when["every"]))
    for name in ("at", "start", "end"):
        if name in when:
            fields[name] = checked_due(name, when[name])
    if "at" in when and ("start" in when or "end" in when):
        raise InvalidOption("start= and end= bound a repetition; at= is a single instant.")
    if "start" in fields and "end" in fields and fields["start"] > fields["end"]:
        raise InvalidOption("start= must not be later than end=.")
    return fields | _policy_fields(when)


def _repetition(timetable: Cron | Every) -> dict[str, Any]:
    if isinstance(timetable, Cron):
        return {"cron": timetable.expression, "zone": timetable.zone}
    return {"every": timetable.interval // MICROSECOND}


def _policy_fields(when: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if "catch_up" in when:
        fields["catch_up"] = _one_of("catch_up", CatchUp, when["catch_up"])
    if "overlap" in when:
        fields["overlap"] = _one_of("overlap", Overlap, when["overlap"])
    if "jitter" in when:
        fields["jitter"] = checked_jitter(when["jitter"])
    if "limit" in when:
        if fields.get("catch_up") is not CatchUp.ALL:
            raise InvalidOption("limit= bounds catch_up='all'; the others need no limit.")
        fields["limit"] = checked_count("limit", when["limit"], 1, 10_000)
    return fields


def _one_of(name: str, kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = " or ".join(repr(str(each)) for each in kind)
        raise InvalidOption(f"{name} must be {known}, not {value!r}.") from None


def options_of(spec: ScheduleSpec) -> dict[str, Any]:
    """Return the ``When`` options that a spec came from, for an edit to build on."""
    options: dict[str, Any] = {
        "catch_up": spec.catch_up.value,
        "limit": spec.limit,
        "overlap": spec.overlap.value,
        "jitter": spec.jitter or None,
        "start": spec.start,
        "end": spec.end,
        "at": spec.at,
    }
    if spec.cron is not None:
        options |= {"cron": spec.cron, "tz": spec.zone}
    if spec.every is not None:
        options["every"] = timedelta(microseconds=spec.every)
    return {name: value for name, value in options.items() if value is not None}
