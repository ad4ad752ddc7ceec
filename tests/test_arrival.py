"""A handler gets what was passed to it: equal and of the same type, or refused at enqueue."""

# ruff: noqa: DTZ001 - naive times are values, too

from __future__ import annotations

import asyncio
import dataclasses
import operator
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from types import GenericAlias
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsed import Context, Pulse
from pulsed.errors import InvalidArguments, InvalidPayload
from pulsed.handler import Handler
from pulsed.model.ids import new_job_id
from pulsed.model.job import NewJob
from pulsed.store.base import Store
from tests.support.apps import work_off

BERLIN = ZoneInfo("Europe/Berlin")
HALF_A_MINUTE = timezone(timedelta(hours=1, seconds=30))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(StrEnum):
    LARGE = "L"


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    depth: int


@dataclass
class Animal:
    name: str


@dataclass
class Dog(Animal):
    breed: str = "?"


@dataclass
class Raised:
    price: float

    def __post_init__(self) -> None:
        self.price *= 2


@dataclass
class Tidied:
    text: str

    def __post_init__(self) -> None:
        self.text = self.text.strip()


@dataclass(eq=False)
class Incomparable:
    inner: list[Animal]


@dataclass
class Computed:
    base: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.base


class Shape(msgspec.Struct):
    name: str


class Square(Shape):
    side: int = 1


class Renamed(msgspec.Struct, rename="camel", tag="renamed"):
    some_name: int
    other: str = "x"


class Row(msgspec.Struct, array_like=True):
    a: int
    b: int = 0


class Person(pydantic.BaseModel):
    name: str


class Worker(Person):
    wage: int = 0


class Aliased(pydantic.BaseModel):
    to: str = pydantic.Field("nobody", serialization_alias="recipient")


class Both(pydantic.BaseModel):
    to: str = pydantic.Field("nobody", alias="recipient")


class Secretive(pydantic.BaseModel):
    name: str
    token: str = pydantic.Field("none", exclude=True)


class Team(pydantic.BaseModel):
    lead: Person
    born: datetime | None = None
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)


class Open(pydantic.BaseModel, extra="allow"):
    name: str


def taking(hint: Any) -> Handler[Any]:
    """Return a handler with one parameter."""

    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    return Handler(take)


def through(hint: Any, value: Any) -> Any:
    """Return what a handler gets for a value."""
    handler = taking(hint)
    return handler.decode(handler.encode((value,), {}))["value"]


def through_json(hint: Any, value: Any) -> Any:
    handler = taking(hint)
    return handler.decode(handler.encode_json({"value": value}))["value"]


# -- values that change on the way ----------------------------------------------------------------


@pytest.mark.parametrize(
    "hint, value, problem",
    [
        (Aliased, Aliased(to="ada"), r"'value.to': 'ada' would arrive as 'nobody'"),
        (Secretive, Secretive(name="a", token="t"), r"'value.token': 't' would arrive as 'none'"),
        (Animal, Dog("rex", "poodle"), r"'value': expected `.*Animal`, got `.*Dog`"),
        (Shape, Square("s"), r"'value': expected `.*Shape`, got `.*Square`"),
        (Person, Worker(name="a"), r"'value': expected `.*Person`, got `.*Worker`"),
        (list[Animal], [Animal("a"), Dog("b")], r"'value\[1\]': expected `.*Animal`"),
        (Team, Team(lead=Worker(name="a", wage=3)), r"'value.lead': expected `.*Person`"),
        (Incomparable, Incomparable([Dog("rex")]), r"'value.inner\[0\]': expected `.*Animal`"),
        (datetime, datetime(2026, 1, 1, tzinfo=HALF_A_MINUTE), "'value': datetime.* would arrive"),
        (datetime, datetime(2026, 1, 1, fold=1), "'value': datetime.* would arrive as datetime"),
        (time, time(9, tzinfo=BERLIN), "'value': datetime.time.* would arrive as datetime.time"),
        (list[time], [time(9, fold=1)], r"'value\[0\]'"),
        (Raised, Raised(2.0), r"'value.price': 4.0 would arrive as 8.0"),
        (float, 2**53 + 1, "'value': expected `float`, got `int`"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_a_value_that_would_arrive_as_another_is_refused(hint, value, problem):
    with pytest.raises(InvalidArguments, match=problem):
        through(hint, value)


@pytest.mark.parametrize(
    "hint, value, problem",
    [
        (list[str], ["a", b"b"], r"'value\[1\]': expected `str`, got `bytes`"),
        (dict[str, int], {1: 1, "1": 2}, "'value.1': expected `str`, got `int`"),
        (
            dict[str, Any],
            {"at": datetime(2026, 1, 1)},
            "'value.at': expected `str`, got `datetime`",
        ),
        (list[int], (1, 2), "'value': expected `list`, got `tuple`"),
        (Sequence[int], (1, 2), "'value': expected `list`, got `tuple`"),
        (set[int], frozenset({1}), "'value': expected `set`, got `frozenset`"),
        (dict[str, int], OrderedDict(a=1), "'value': expected `dict`, got `collections.Ordered"),
        (Mapping[str, int], defaultdict(int, a=1), "expected `dict`, got `collections.defaultd"),
        (str, Size.LARGE, "'value': expected `str`, got `.*Size`"),
        (bytes, "aGk=", "'value': expected `bytes`, got `str`"),
        (datetime, "2026-01-01T00:00:00Z", "'value': expected `datetime`, got `str`"),
        (Animal, {"name": "rex"}, "'value': expected `.*Animal`, got `dict`"),
        (Any, Animal("rex"), "'value': expected `dict`, got `.*Animal`"),
        (Any, [(1, 2)], r"'value\[0\]': expected `list`, got `tuple`"),
        (Options, {"depth": 1, "width": 2}, "'value.width'"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_a_value_of_another_type_is_refused_wherever_it_stands(hint, value, problem):
    with pytest.raises(InvalidArguments, match=problem):
        through(hint, value)


@pytest.mark.parametrize(
    "hint, value",
    [
        (float, 3),
        (list[float], [1, 2.5]),
        (set[float], {1, 2.5}),
        (dict[int, str], {1: "a"}),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("1.10")),
        (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
        (datetime, datetime(2026, 1, 1, tzinfo=BERLIN)),
        (time, time(9, tzinfo=UTC)),
        (Colour, Colour.RED),
        (Point, Point(1, 2.0)),
        (Literal["a", "b"], "a"),
        (Literal[1, 2], 1),
        (Options, {"depth": 3}),
        (Incomparable, Incomparable([Animal("rex")])),
        (Computed, Computed(2)),
        (Tidied, Tidied(" x ")),
        (Renamed, Renamed(1)),
        (Row, Row(1, 2)),
        (Both, Both(recipient="ada")),
        (Team, Team(lead=Person(name="a"), born=datetime(2026, 1, 1, tzinfo=UTC))),
        (Open, Open.model_validate({"name": "a", "more": [1]})),
        (Any, {"a": [1, 2.5, None, True, "x"]}),
    ],
    ids=lambda value: "",
)
def test_a_value_that_arrives_as_it_is_is_taken(hint, value):
    arrived = through(hint, value)
    assert type(arrived) is type(value) or (hint, type(arrived)) == (float, float)
    assert arrived == value or hint in (Incomparable, Decimal, Team) or value.fold


def test_the_defaults_of_left_out_arguments_are_not_compared():
    def handler(a: int, b: tuple[int, ...] = (1,)) -> None: ...

    assert Handler(handler).encode((1,), {}) == '{"a":1}'


# -- plain JSON in the place of objects -----------------------------------------------------------


@pytest.mark.parametrize(
    "hint, value, expected",
    [
        (Animal, {"name": "rex"}, Animal("rex")),
        (datetime, "2026-01-01 00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
        (dict[int, Animal], {"1": {"name": "rex"}}, {1: Animal("rex")}),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], [1, 2, 2], {1, 2}),
        (Renamed, {"someName": 1, "type": "renamed"}, Renamed(1)),
        (Row, [1], Row(1)),
        (Both, {"recipient": "ada"}, Both(recipient="ada")),
        (
            Open,
            {"name": "a", "more": {"x": 1}},
            Open.model_validate({"name": "a", "more": {"x": 1}}),
        ),
        (Tidied, {"text": " x "}, Tidied("x")),
        (Animal, Animal("rex"), Animal("rex")),
        (list[datetime], [datetime(2026, 1, 1)], [datetime(2026, 1, 1)]),
    ],
    ids=lambda value: "",
)
def test_by_name_plain_json_may_stand_for_what_the_hints_make_of_it(hint, value, expected):
    assert through_json(hint, value) == expected


@pytest.mark.parametrize(
    "hint, value, path",
    [
        (Animal, {"name": "rex", "tail": 1}, "value.tail"),
        (list[Shape], [{"name": "a"}, {"name": "b", "side": 2}], r"value\[1\].side"),
        (Person, {"name": "ada", "wage": 1}, "value.wage"),
        (Team, {"lead": {"name": "ada", "wage": 1}}, "value.lead.wage"),
        (Options, {"depth": 1, "width": 2}, "value.width"),
        (dict[str, Animal], {"a": {"name": "rex", "tail": 1}}, "value.a.tail"),
        (Row, [1, 2, 3], r"value\[2\]"),
        (Animal | None, {"name": "rex", "tail": 1}, "value.tail"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_key_that_no_field_takes_is_refused_on_both_sides(hint, value, path):
    handler = taking(hint)
    with pytest.raises(InvalidArguments, match=f"'{path}': there is no such field"):
        handler.encode_json({"value": value})
    payload = msgspec.json.encode({"value": value}).decode()  # by a producer without our code
    with pytest.raises(InvalidArguments, match=f"'{path}': there is no such field"):
        handler.decode(payload)


@pytest.mark.parametrize(
    "hint, value",
    [(list[str], [b"a"]), (dict[str, int], {1: 1, "1": 2}), (Animal, Dog("rex")), (str, date.max)],
    ids=lambda value: "",
)
def test_what_is_not_plain_json_must_fit_by_name_as_well(hint, value):
    with pytest.raises(InvalidArguments, match="'value"):
        through_json(hint, value)


def test_keys_that_are_one_in_json_are_refused_where_no_hint_is_known(app: Pulse):
    problem = "two keys that are both '1' in JSON"
    with pytest.raises(InvalidPayload, match=problem):
        app.enqueue("elsewhere", {"value": {1: "a", "1": "b"}})

    @app.job
    def reports(ctx: Context) -> None:
        ctx.progress([{1: "a", "1": "b"}])

    job = reports.using(max_attempts=1).enqueue()
    with pytest.raises(InvalidPayload, match=problem):
        app.signal(job.id, "go", {1: "a", "1": "b"})
    work_off(app, job)
    assert "two keys that are both '1'" in (job.refresh().last_error or "")


def test_schedules_and_fan_outs_are_as_strict(app: Pulse):
    @app.job
    def feed(animal: Animal) -> None: ...

    with pytest.raises(InvalidArguments, match="'animal'"):
        feed.bind(Dog("rex"))
    with pytest.raises(InvalidArguments, match="'animal'"):
        feed.enqueue_many([(Dog("rex"),)])
    with pytest.raises(InvalidArguments, match=r"'animal\.tail'"):
        app.schedules.put("feeding", "feed", every=60, payload={"animal": {"name": "", "tail": 1}})


# -- any value of any type ------------------------------------------------------------------------

ZONES = st.sampled_from([None, UTC, BERLIN, HALF_A_MINUTE, timezone(timedelta(minutes=-90))])
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))


def in_zones(naive: Any) -> Any:
    return st.builds(
        lambda value, zone, fold: value.replace(tzinfo=zone, fold=fold),
        naive,
        ZONES,
        st.integers(0, 1),
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
ANIMALS = st.builds(Animal, TEXT) | st.builds(Dog, TEXT, TEXT)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, TEXT | st.sampled_from(Size)),
    (int, st.integers() | st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False) | st.integers()),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=8)),
    (datetime, in_zones(TIMES)),
    (date, st.dates() | TIMES),
    (time, in_zones(st.times())),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals()),
    (Colour, st.sampled_from(Colour)),
    (Animal, ANIMALS),
    (Shape, st.builds(Shape, TEXT) | st.builds(Square, TEXT)),
    (Person, st.builds(Person, name=TEXT) | st.builds(Worker, name=TEXT, wage=st.integers(0, 9))),
    (Aliased, st.builds(Aliased, to=TEXT)),
    (Both, st.builds(Both, recipient=TEXT)),
    (Secretive, st.builds(Secretive, name=TEXT, token=TEXT | st.just("none"))),
    (Raised, st.builds(Raised, st.floats(-9, 9))),
    (Point, st.builds(Point, st.integers(-9, 9), st.floats(-9, 9))),
    (Any, TEXT | st.integers() | st.binary(max_size=3) | ANIMALS | st.tuples(st.integers())),
]
HASHABLE = (str, int, bytes, UUID, date, Colour)


def larger(typed: tuple[Any, st.SearchStrategy[Any]]) -> Any:
    """Return hints around a hint, with values for them."""
    hint, values = typed
    lists = st.lists(values, max_size=3)
    around = [
        (GenericAlias(list, hint), lists | lists.map(tuple)),
        (GenericAlias(tuple, (hint, ...)), lists.map(tuple)),
        (
            GenericAlias(dict, (str, hint)),
            st.dictionaries(TEXT | st.integers(0, 3), values, max_size=3),
        ),
        (Any if hint is Any else operator.or_(hint, None), st.none() | values),
        (GenericAlias(Sequence, hint), lists | lists.map(tuple)),
    ]
    if hint in HASHABLE:
        around.append((GenericAlias(set, hint), st.sets(values, max_size=3)))
        numbers = st.dictionaries(values, st.integers(), max_size=3)
        around.append((GenericAlias(dict, (hint, int)), numbers))
    return st.sampled_from(around)


HINTS = st.recursive(st.sampled_from(LEAVES), lambda inner: inner.flatmap(larger), max_leaves=3)
TYPED = HINTS.flatmap(lambda typed: st.tuples(st.just(typed[0]), typed[1]))
"""A hint, and a value that is meant for it."""


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same type; written down once more, as an oracle."""
    if isinstance(one, int) and not isinstance(one, bool) and type(other) is float:
        return bool(one == other)
    if type(one) is not type(other):
        return False
    if isinstance(one, datetime):
        offsets = one.utcoffset(), other.utcoffset()
        return bool(offsets[0] == offsets[1] and one.isoformat() == other.isoformat())
    if isinstance(one, time):
        return one.isoformat() == other.isoformat() and bool(one.tzinfo) is bool(other.tzinfo)
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(alike, one.items(), other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, set):
        return alike(sorted(one, key=repr), sorted(other, key=repr))
    if dataclasses.is_dataclass(one):
        return bool(vars(one) == vars(other))
    return repr(one) == repr(other)


def sent(hint: Any, value: Any) -> tuple[Handler[Any], str] | None:
    """Return the payload of a value; None if it is refused."""
    handler = taking(hint)
    try:
        return handler, handler.encode((value,), {})
    except InvalidArguments:
        return None


@given(TYPED)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_value_arrives_as_it_was_or_is_refused(typed):
    hint, value = typed
    accepted = sent(hint, value)
    if accepted is not None:
        handler, payload = accepted
        assert alike(value, handler.decode(payload)["value"])


def test_no_store_changes_a_payload(store: Store):
    """What holds for the text of a payload holds behind every store, which keeps it as it is."""

    @given(st.lists(TYPED, min_size=9))
    @settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
    def check(typed: list[tuple[Any, Any]]) -> None:
        calls = [(value, call) for hint, value in typed if (call := sent(hint, value))]
        jobs = [NewJob(id=new_job_id(), topic="t", payload=call[1]) for _, call in calls]
        found = loop.run_until_complete(stored(store, jobs))
        for job, (value, (handler, _)) in zip(jobs, calls, strict=True):
            assert alike(value, handler.decode(found[job.id])["value"])

    loop = asyncio.new_event_loop()
    try:
        check()
    finally:
        loop.run_until_complete(store.aclose())
        loop.close()


async def stored(store: Store, jobs: list[NewJob]) -> dict[UUID, str]:
    await store.submit(jobs)
    return {row.id: row.payload for row in (await store.get([job.id for job in jobs])).values()}
