"""Handlers: which functions can be one, and how their arguments and results travel."""

import functools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from pulsed import Backoff, Context
from pulsed.errors import (
    InvalidArguments,
    InvalidHandler,
    InvalidOption,
    InvalidPayload,
    UnknownTopic,
)
from pulsed.handler import Call, Handler, HandlerContext, Registry, checked_options

if TYPE_CHECKING:
    from pulsed.nowhere import OnlyForCheckers  # type: ignore[import-not-found]


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Shade(StrEnum):
    DARK = "dark"


@dataclass
class Address:
    street: str
    lines: list[str] = field(default_factory=list)


class Order(msgspec.Struct):
    id: int
    to: Address | None = None


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


class Point(NamedTuple):
    x: int
    y: int


class Movie(TypedDict):
    title: str


class User(pydantic.BaseModel):
    name: str = pydantic.Field(alias="userName")
    born: date
    site: pydantic.HttpUrl | None = None


class StrictUser(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    born: date
    tags: set[str] = set()


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Opaque:
    pass


def one(hint: Any, name: str = "value") -> Handler[Any]:
    """Return a handler with one parameter of this type."""

    def job(value: Any) -> Any:
        return value

    job.__annotations__ = {"value": hint, "return": hint}
    return Handler(job, topic="job")


def travel(hint: Any, value: Any) -> Any:
    """Send an argument the way from a producer to a handler."""
    handler = one(hint)
    return handler.decode(handler.encode((value,), {}))["value"]


def mail(to: str, subject: str = "hi", *, copies: int = 1) -> str:
    return f"{to}{subject}{copies}"


MAIL: Handler[str] = Handler(mail)


class TestValuesTravel:
    @pytest.mark.parametrize(
        "hint, value",
        [
            (str, "Grüße 😀"),
            (int, 2**63),
            (int, -(2**63) - 1),
            (int, 2**64),
            (int, 10**30),
            (float, 0.1),
            (float, 1e300),
            (bool, True),
            (bytes, b"\x00\xff"),
            (type(None), None),
            (Optional[int], None),  # noqa: UP045
            (int | str | None, "x"),
            (list[int], [1, 2]),
            (set[str], {"a", "b"}),
            (frozenset[int], frozenset({1})),
            (tuple[int, str], (1, "a")),
            (tuple[int, ...], (1, 2, 3)),
            (dict[str, float], {"a": 1.5}),
            (dict[int, str], {1: "a"}),
            (Sequence[int], [1]),
            (Iterable[int], [1]),
            (Mapping[str, int], {"a": 1}),
            (datetime, datetime(2026, 3, 1, 12, tzinfo=UTC)),
            (datetime, datetime(2026, 3, 1, 12, 0, 0, 1)),  # noqa: DTZ001
            (datetime, datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=2)))),
            (date, date(2026, 3, 1)),
            (time, time(12, 30)),
            (timedelta, timedelta(days=1, microseconds=5)),
            (UUID, UUID(int=7)),
            (Decimal, Decimal("1.10")),
            (Colour, Colour.RED),
            (Level, Level.HIGH),
            (Shade, Shade.DARK),
            (Literal["a", "b"], "b"),
            (Annotated[int, msgspec.Meta(gt=0)], 5),
            (Address, Address("Main St", ["1"])),
            (Order, Order(1, Address("x"))),
            (list[Order], [Order(1)]),
            (Tree, Tree("a", [Tree("b")])),
            (Point, Point(1, 2)),
            (Movie, {"title": "Brazil"}),
            (Any, {"free": ["form", 1, None]}),
            (object, [1]),
        ],
    )
    def test_unchanged(self, hint: Any, value: Any) -> None:
        arrived = travel(hint, value)
        assert arrived == value
        assert type(arrived) is type(value)

    def test_results_travel_like_arguments(self) -> None:
        handler = one(Order)
        assert handler.decode_result(handler.encode_result(Order(7))) == Order(7)

    def test_pydantic_models(self) -> None:
        user = User(
            userName="Ada", born=date(1815, 12, 10), site=pydantic.HttpUrl("https://x.org/")
        )
        assert travel(User, user) == user
        assert travel(list[User], [user]) == [user]
        assert travel(User | None, None) is None

    def test_strict_pydantic_models(self) -> None:
        user = StrictUser(born=date(1815, 12, 10), tags={"a"})
        assert travel(StrictUser, user) == user

    def test_pydantic_errors_name_the_field(self) -> None:
        handler = one(User)
        with pytest.raises(InvalidArguments, match=r"'job' cannot take argument 'value': born: "):
            handler.decode('{"value": {"userName": "x", "born": "never"}}')

    def test_nan_in_a_pydantic_model_is_refused(self) -> None:
        class Reading(pydantic.BaseModel):
            value: float

        with pytest.raises(InvalidPayload, match=r"nan at 'value\.value'"):
            one(Reading).encode((Reading(value=float("nan")),), {})

    def test_a_secret_is_refused_rather_than_stored_as_asterisks(self) -> None:
        with pytest.raises(InvalidPayload, match=r"secret field of .*Login"):
            one(Login).encode((Login(password=pydantic.SecretStr("x")),), {})

    def test_a_parameter_without_a_hint_takes_plain_data(self) -> None:
        def job(value, *, other=None):
            pass

        handler: Handler[Any] = Handler(job)
        assert handler.decode(handler.encode(([1, {"a": None}],), {"other": "x"})) == {
            "value": [1, {"a": None}],
            "other": "x",
        }

    def test_parameters_may_be_called_anything(self) -> None:
        def job(self: int, cls: int, __init__: int, f0: int, args: int) -> None: ...

        handler: Handler[None] = Handler(job)
        given = {"self": 1, "cls": 2, "__init__": 3, "f0": 4, "args": 5}
        assert handler.decode(handler.encode((), given)) == given


class TestArguments:
    def test_are_named_in_the_payload(self) -> None:
        assert json.loads(MAIL.encode(("ada",), {"copies": 2})) == {"to": "ada", "copies": 2}

    def test_defaults_are_left_to_the_function(self) -> None:
        assert MAIL.decode(MAIL.encode(("ada",), {})) == {"to": "ada"}
        assert mail(**MAIL.decode('{"to": "ada"}')) == "adahi1"

    @pytest.mark.parametrize(
        "args, kwargs, problem",
        [
            ((), {}, "'mail' needs 'to'"),
            (("a", "b", 3), {}, r"'mail' takes 2 positional arguments \(to, subject\), but 3"),
            (("a",), {"to": "b"}, "'mail' cannot take argument 'to': it was given twice"),
            (("a",), {"subjcet": "b"}, "no parameter 'subjcet'. Did you mean 'subject'"),
            ((1,), {}, "'mail' cannot take argument 'to': expected `str`, got `int`"),
            ((None,), {}, "argument 'to': expected `str`, got `null`"),
            (("a",), {"copies": "2"}, "argument 'copies': expected `int`, got `str`"),
            (("a",), {"copies": 2.0}, "argument 'copies': expected `int`, got `float`"),
            (("a",), {"copies": True}, "argument 'copies': expected `int`, got `bool`"),
            ((b"a",), {}, "argument 'to': expected `str`, got `bytes`"),
            ((date(2026, 1, 1),), {}, "argument 'to': expected `str`, got `date`"),
        ],
    )
    def test_that_do_not_fit_fail_at_the_caller(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(InvalidArguments, match=problem):
            MAIL.encode(args, kwargs)

    def test_a_wrong_type_deep_inside_is_located(self) -> None:
        with pytest.raises(InvalidArguments, match=r"argument 'value\[0\]\.to\.street': expected"):
            one(list[Order]).encode(([Order(1, Address(5))],), {})  # type: ignore[arg-type]

    def test_a_wrong_type_is_a_type_error_and_a_value_error(self) -> None:
        for kind in (TypeError, ValueError):
            with pytest.raises(kind):
                MAIL.encode((1,), {})


class TestPayloadsFromElsewhere:
    @pytest.mark.parametrize(
        "payload, problem",
        [
            ('{"to": "a", "cc": "b"}', "'mail' has no parameter 'cc'"),
            ("{}", "missing required field `to`"),
            ('{"to": 1}', "expected `str`, got `int`"),
            ("[]", "expected `object`, got `array`"),
        ],
    )
    def test_that_do_not_fit_are_invalid_arguments(self, payload: str, problem: str) -> None:
        with pytest.raises(InvalidArguments, match=problem):
            MAIL.decode(payload)

    @pytest.mark.parametrize("payload", ["", "{", '{"to": "a"} x', '{"to": NaN}'])
    def test_that_are_no_json_are_invalid(self, payload: str) -> None:
        with pytest.raises(InvalidPayload, match="not valid JSON"):
            MAIL.decode(payload)


class TestResults:
    def test_without_a_hint_are_plain_data(self) -> None:
        def job():
            pass

        handler: Handler[Any] = Handler(job)
        assert handler.decode_result(handler.encode_result({"a": (1, None)})) == {"a": [1, None]}

    def test_that_do_not_fit_their_hint_stay_readable(self) -> None:
        handler = one(float)
        assert handler.encode_result(float("nan")) == "null"
        assert handler.decode_result("null") is None

    def test_a_forgotten_await_is_explained(self) -> None:
        async def inner() -> int:
            return 1

        def job() -> Any:
            return inner()

        with pytest.raises(InvalidPayload, match="returned a coroutine"):
            Handler(job).encode_result(job())

    def test_unserialisable_ones_say_whose_they_are(self) -> None:
        with pytest.raises(InvalidPayload, match="The result of 'mail' cannot be stored"):
            MAIL.encode_result(object())


def takes_args(*values: int) -> None: ...
def takes_kwargs(**values: int) -> None: ...
def takes_positional(value: int, /) -> None: ...
def generates() -> Iterator[int]:
    yield 1


async def agenerates() -> AsyncIterator[int]:
    yield 1


class TestFunctionsThatCannotBeHandlers:
    @pytest.mark.parametrize(
        "function, problem",
        [
            (takes_args, r"takes \*values.*Take a list"),
            (takes_kwargs, r"takes \*\*values.*Take a dict"),
            (takes_positional, "'value' by position only"),
            (generates, "is a generator"),
            (agenerates, "is a generator"),
            (Address, "is a class"),
            (functools.partial(mail, "x"), "is of type partial"),
            (print, "is of type builtin"),
            (lambda: 1, "topic must be a string"),
            ("mail", "is of type str"),
        ],
    )
    def test_are_refused_at_decoration(self, function: Any, problem: str) -> None:
        with pytest.raises(InvalidHandler, match=problem):
            Handler(function)

    def test_a_message_says_where_the_function_is(self) -> None:
        with pytest.raises(InvalidHandler, match=r"takes_args \(.*test_handler\.py:\d+\)"):
            Handler(takes_args)

    def test_a_wrapped_function_shows_the_signature_it_wraps(self) -> None:
        @functools.wraps(mail)
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return mail(*args, **kwargs).upper()

        handler: Handler[str] = Handler(wrapper)
        assert handler.fn(**handler.decode(handler.encode(("ada",), {"copies": 2}))) == "ADAHI2"

    def test_a_lambda_with_a_topic_is_fine(self) -> None:
        assert Handler(lambda: 1, topic="one").topic == "one"

    @pytest.mark.parametrize(
        "hint, problem",
        [
            (list[int] | tuple[int, ...], r"parameter 'value' of type .*more than one array-like"),
            (Address | Point | User, "parameter 'value'"),
            (Address | Order, "parameter 'value'"),
            (datetime | str, "parameter 'value'"),
            (User | int, "parameter 'value'"),
            (Opaque, "parameter 'value' of type `Opaque` from JSON: `Opaque` is not plain data"),
            (list[Opaque], r"of type `list\[.*Opaque\]` from JSON: `Opaque` is not plain"),
            (Callable[[], int], "not plain data"),
            (complex, "`complex` is not plain data"),
        ],
    )
    def test_types_that_json_cannot_become_are_found_when_resolved(
        self, hint: Any, problem: str
    ) -> None:
        handler = one(hint)
        with pytest.raises(InvalidHandler, match=problem):
            handler.resolve()

    def test_names_that_do_not_exist_at_run_time_are_found_when_resolved(self) -> None:
        def job(value: "OnlyForCheckers") -> None: ...

        handler: Handler[None] = Handler(job)
        with pytest.raises(
            InvalidHandler, match=r"'OnlyForCheckers'.*parameter 'value'.*TYPE_CHECKING"
        ):
            handler.resolve()

    def test_a_bad_hint_of_the_result_is_found_as_well(self) -> None:
        def job() -> "OnlyForCheckers": ...

        with pytest.raises(InvalidHandler, match="used by the result"):
            Handler(job).resolve()


class TestContext:
    def test_is_taken_by_the_first_parameter_that_asks_for_it(self) -> None:
        def job(ctx: Context, value: int) -> None: ...

        handler: Handler[None] = Handler(job)
        assert handler.takes_context
        assert handler.encode((1,), {}) == '{"value":1}'

    def test_can_be_a_subclass(self) -> None:
        class Richer(Context):
            pass

        def job(ctx: Any) -> None: ...

        job.__annotations__["ctx"] = Richer
        assert Handler(job).takes_context

    def test_is_not_needed(self) -> None:
        assert not MAIL.takes_context
        assert issubclass(Context, HandlerContext)

    def test_anywhere_else_is_refused(self) -> None:
        def job(value: int, ctx: Context) -> None: ...

        with pytest.raises(InvalidHandler, match="'ctx', but only the first"):
            Handler(job).resolve()

    def test_cannot_be_passed_by_a_producer(self) -> None:
        def job(ctx: Context) -> None: ...

        with pytest.raises(InvalidArguments, match="no parameter 'ctx'"):
            Handler(job).encode((), {"ctx": 1})


class TestOptions:
    def test_defaults(self) -> None:
        assert (MAIL.topic, MAIL.queue, MAIL.priority) == ("mail", "default", 0)
        assert (MAIL.policy.max_attempts, MAIL.policy.lease, MAIL.policy.timeout) == (3, 30, None)
        assert MAIL.policy.backoff == Backoff.quadratic()

    def test_are_kept(self) -> None:
        handler: Handler[str] = Handler(
            mail, topic="post", queue="slow", priority=-5, timeout=timedelta(minutes=1), lease=0.5
        )
        assert (handler.queue, handler.priority) == ("slow", -5)
        assert (handler.policy.topic, handler.policy.timeout, handler.policy.lease) == (
            "post",
            60,
            0.5,
        )

    @pytest.mark.parametrize(
        "options",
        [{"topic": ""}, {"topic": "a,b"}, {"max_attempts": 0}, {"lease": 0}, {"queue": "a\n"}],
    )
    def test_bad_ones_are_refused_with_the_function(self, options: Any) -> None:
        with pytest.raises(InvalidHandler, match=r"mail \(.*cannot be a handler"):
            Handler(mail, **options)

    def test_coroutine_functions_are_told_from_plain_ones(self) -> None:
        async def job() -> None: ...

        assert Handler(job).is_async
        assert not MAIL.is_async

    @pytest.mark.parametrize(
        "name, value",
        [
            ("delay", -1),
            ("delay", float("nan")),
            ("delay", float("inf")),
            ("delay", 10**400),
            ("delay", True),
            ("delay", "5"),
            ("delay", timedelta(seconds=-1)),
            ("at", datetime(2026, 1, 1)),  # noqa: DTZ001
            ("at", "2026-01-01"),
            ("at", datetime(9999, 1, 1, tzinfo=UTC)),
            ("at", datetime.min.replace(tzinfo=timezone(timedelta(hours=2)))),
            ("queue", ""),
            ("queue", " "),
            ("queue", "a,b"),
            ("queue", "a\0"),
            ("queue", "\ud800"),
            ("queue", "x" * 201),
            ("queue", 1),
            ("priority", 101),
            ("priority", -101),
            ("priority", 2**63),
            ("priority", 1.0),
            ("priority", True),
            ("max_attempts", 0),
            ("max_attempts", -1),
            ("max_attempts", 10_001),
            ("max_attempts", 2**63),
            ("max_attempts", True),
            ("backoff", 5),
            ("timeout", 0),
            ("timeout", -1),
            ("lease", 0.01),
            ("lease", float("nan")),
            ("headers", {"a": 1}),
            ("headers", ["a"]),
            ("headers", {"a": "\0"}),
            ("headers", {str(n): "" for n in range(65)}),
            ("headers", {"a": "x" * 16_384}),
            ("tags", "mail"),
            ("tags", [1]),
            ("tags", ["a,b"]),
            ("tags", [str(n) for n in range(33)]),
            ("tags", 5),
            ("prioritty", 5),
        ],
    )
    def test_of_a_job_are_checked(self, name: str, value: Any) -> None:
        with pytest.raises(InvalidOption, match=name.removesuffix("s")):
            checked_options({name: value})

    def test_edges_are_inside(self) -> None:
        edges = {"delay": 0, "queue": "x" * 200, "priority": -100, "max_attempts": 10_000}
        assert checked_options(edges) == edges

    def test_are_put_into_the_form_a_job_keeps(self) -> None:
        berlin = timezone(timedelta(hours=1))
        checked = checked_options(
            {"at": datetime(2026, 1, 1, tzinfo=berlin), "tags": ["a", "b", "a"], "timeout": None}
        )
        assert checked == {"at": datetime(2025, 12, 31, 23, tzinfo=UTC), "tags": ("a", "b")}

    def test_a_naive_datetime_is_refused_with_the_reason(self) -> None:
        with pytest.raises(InvalidOption, match=r"no time zone.*every machine"):
            checked_options({"at": datetime(2026, 1, 1)})  # noqa: DTZ001

    def test_delay_and_at_exclude_each_other(self) -> None:
        with pytest.raises(InvalidOption, match="give one"):
            checked_options({"delay": 1, "at": datetime.now(UTC)})


class TestRegistry:
    def test_a_topic_has_one_handler(self) -> None:
        registry = Registry()
        registry.add(MAIL)

        def rival() -> None: ...

        handler: Handler[None] = Handler(rival, topic="mail")
        with pytest.raises(InvalidHandler, match=r"'mail'.*mail \(.*\.py:.*rival \(.*\.py:"):
            registry.add(handler)

    def test_an_unknown_topic_gets_a_suggestion(self) -> None:
        registry = Registry()
        registry.add(MAIL)
        with pytest.raises(
            UnknownTopic, match=r"'mial'\. Did you mean 'mail'\? Known topics: mail"
        ):
            registry.get("mial")

    def test_knows_its_policies(self) -> None:
        registry = Registry()
        registry.add(MAIL)
        assert registry.policies() == [MAIL.policy]
        assert ("mail" in registry, len(registry), list(registry)) == (True, 1, [MAIL])

    def test_resolving_finds_the_bad_one(self) -> None:
        registry = Registry()
        registry.add(one(Opaque))
        with pytest.raises(InvalidHandler, match="Opaque"):
            registry.resolve_all()


class TestCalls:
    def test_make_jobs_with_the_handlers_lane_and_leave_its_policy_to_the_claim(self) -> None:
        handler: Handler[str] = Handler(mail, queue="slow", priority=9, max_attempts=7)
        call = Call("mail", '{"to":"a"}', handler)
        job = call.new_job({"delay": 5})
        assert (job.queue, job.priority, job.delay, job.max_attempts) == ("slow", 9, 5, None)
        assert call.new_job().id != job.id
        assert call.new_job(job_id=UUID(int=7)).id == UUID(int=7)

    def test_later_options_win(self) -> None:
        call = Call("mail", "{}", MAIL, {"queue": "a", "priority": 1})
        job = call.new_job({"queue": "b"})
        assert (job.queue, job.priority) == ("b", 1)


def test_arguments_keep_their_names_whatever_the_order_of_parameters_with_defaults() -> None:
    def mixed(a: int = 1, *, b: str, c: float = 2.0, d: bool) -> None: ...

    handler: Handler[None] = Handler(mixed)
    assert handler.decode('{"d":false,"b":"y"}') == {"b": "y", "d": False}
    assert handler.decode('{"d":true,"b":"y","a":5,"c":1.5}') == {
        "a": 5, "b": "y", "c": 1.5, "d": True,
    }  # fmt: skip
