"""What may be stored: the same rules, and the same errors, whatever the database."""

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pulsed.errors import InvalidPayload
from pulsed.handler.payload import (
    MAX_DEPTH,
    MAX_PAYLOAD,
    MAX_TEXT,
    clean_text,
    encode_by_name,
    encode_cleaned,
    encode_payload,
)

FFFD = "\ufffd"


def nested(depth: int, leaf: Any = None) -> Any:
    """Return a list of lists, ``depth`` levels deep."""
    value = [] if leaf is None else [leaf]
    for _ in range(depth - 1):
        value = [value]
    return value


def encode(value: Any) -> str:
    return encode_payload("The payload", value)


def clean(value: Any) -> Any:
    return json.loads(encode_cleaned("The result", value))


class TestSize:
    def test_the_limit_is_one_mebibyte_of_json(self) -> None:
        largest = "x" * (MAX_PAYLOAD - 2)
        assert len(encode(largest)) == MAX_PAYLOAD == 1_048_576

    @pytest.mark.parametrize("text", ["x" * (MAX_PAYLOAD - 1), "é" * (MAX_PAYLOAD // 2)])
    def test_one_byte_more_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidPayload, match="1,048,576") as refused:
            encode(text)
        assert "reference" in str(refused.value)

    def test_a_result_has_the_same_limit(self) -> None:
        with pytest.raises(InvalidPayload, match="The result would take"):
            clean("x" * MAX_PAYLOAD)


class TestDepth:
    def test_the_limit_counts_lists_and_objects(self) -> None:
        assert json.loads(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
        assert encode({"a": nested(MAX_DEPTH - 1)})

    @pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 5_000, 20_000, 200_000])
    @pytest.mark.parametrize("check", [encode, clean])
    def test_deeper_is_refused_and_never_a_recursion_error(
        self, check: Callable[[Any], Any], depth: int
    ) -> None:
        with pytest.raises(InvalidPayload, match="nested more than 100 levels"):
            check(nested(depth))

    @pytest.mark.parametrize("leaf", ["\0", "\ud800", math.nan])
    def test_also_when_something_else_is_wrong_at_the_bottom(self, leaf: Any) -> None:
        with pytest.raises(InvalidPayload):
            encode(nested(20_000, leaf))

    def test_objects_count_like_lists(self) -> None:
        value: Any = 1
        for _ in range(MAX_DEPTH + 1):
            value = {"k": value}
        with pytest.raises(InvalidPayload, match="levels deep"):
            encode(value)

    def test_something_that_contains_itself_is_refused(self) -> None:
        value: list[Any] = []
        value.append(value)
        with pytest.raises(InvalidPayload, match="contains itself"):
            encode(value)

    def test_wide_is_not_deep(self) -> None:
        assert encode([[[]] for _ in range(1_000)])

    def test_brackets_in_strings_are_no_levels(self) -> None:
        value = ['[{"\\' * 1_000, {'"[': "\\"}]
        assert json.loads(encode(value)) == value


UNSTORABLE = [
    ("\0", "NUL"),
    ("a\0b", "NUL"),
    ("\ud800", "lone surrogate"),
    ("a\udfffb", "lone surrogate"),
    (math.nan, "nan"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
]


@pytest.mark.parametrize("value, name", UNSTORABLE)
class TestValuesThatDatabasesDisagreeAbout:
    def test_are_refused(self, value: Any, name: str) -> None:
        with pytest.raises(InvalidPayload, match=name):
            encode(value)

    def test_are_found_and_located_inside(self, value: Any, name: str) -> None:
        with pytest.raises(InvalidPayload, match=rf"{name}.* at 'to\[2\]\.name'"):
            encode({"to": [1, "null", {"name": value}]})

    def test_are_found_in_keys(self, value: Any, name: str) -> None:
        with pytest.raises(InvalidPayload, match=f"{name}.* in a key of 'to'"):
            encode({"to": {value: 1}})

    def test_are_found_in_sets_and_tuples(self, value: Any, name: str) -> None:
        with pytest.raises(InvalidPayload, match=name):
            encode({"to": ({value},)})

    def test_the_message_can_be_printed(self, value: Any, name: str) -> None:
        with pytest.raises(InvalidPayload) as refused:
            encode({value: value} if isinstance(value, str) else [value])
        assert str(refused.value).isprintable()


class TestValuesThatOnlyLookLikeIt:
    @pytest.mark.parametrize(
        "value",
        [
            r"\u0000",
            r"a\\u0000",
            None,
            "null",
            {"nan": "inf", "-inf": None},
            "\U0001f600",
            "\ufffd",
            1e308,
            -0.0,
            "\x01\x1f\x7f",
        ],
    )
    def test_are_kept(self, value: Any) -> None:
        assert json.loads(encode(value)) == value


class TestIntegers:
    @pytest.mark.parametrize("power", [53, 62, 63, 64, 127, 1_000])
    @pytest.mark.parametrize("offset", [-1, 0, 1])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_any_size_is_kept_exactly(self, power: int, offset: int, sign: int) -> None:
        number = sign * (2**power + offset)
        assert json.loads(encode([number])) == [number]

    def test_longer_than_python_converts_is_refused(self) -> None:
        digits = sys.get_int_max_str_digits()
        with pytest.raises(InvalidPayload, match="cannot be stored"):
            encode(10 ** (digits + 1))


class TestWhatIsNoJson:
    @pytest.mark.parametrize("value", [object(), 1j, lambda: 1, {(1, 2): 3}, (n for n in [1])])
    def test_is_refused_with_a_way_out(self, value: Any) -> None:
        with pytest.raises(InvalidPayload, match=r"cannot be stored as JSON.*dataclass"):
            encode([value])


class TestByName:
    def test_a_payload_is_an_object(self) -> None:
        assert encode_by_name("mail", {"to": "ada"}) == '{"to":"ada"}'

    @pytest.mark.parametrize("payload", [["ada"], "ada", 1, None, {1: "ada"}])
    def test_anything_else_is_refused(self, payload: Any) -> None:
        with pytest.raises(InvalidPayload, match="'mail' must map the names"):
            encode_by_name("mail", payload)

    def test_the_same_rules_hold(self) -> None:
        with pytest.raises(InvalidPayload, match=r"payload of 'mail' contains nan at 'to'"):
            encode_by_name("mail", {"to": math.nan})


class TestResultsAreCleaned:
    @pytest.mark.parametrize(
        "result, stored",
        [
            ("a\0b", f"a{FFFD}b"),
            ("a\ud800b\0", f"a{FFFD}b{FFFD}"),
            ({"k\0": ["\udc00", ("\0",)]}, {f"k{FFFD}": [FFFD, [FFFD]]}),
            ([math.nan, math.inf, 1.5], [None, None, 1.5]),
            ({math.nan: 1}, {"nan": 1}),
            ("\\\0\\u0000", f"\\{FFFD}\\u0000"),
        ],
    )
    def test_and_go_through(self, result: Any, stored: Any) -> None:
        assert clean(result) == stored

    def test_what_is_no_json_is_refused(self) -> None:
        with pytest.raises(InvalidPayload, match="The result cannot be stored"):
            clean(object())


class TestErrorTexts:
    def test_nul_and_surrogates_are_replaced(self) -> None:
        assert clean_text("a\0b\ud800c") == f"a{FFFD}b{FFFD}c"

    def test_a_long_one_keeps_its_head_and_its_tail(self) -> None:
        text = clean_text("HEAD" + "é" * MAX_TEXT + "TAIL")
        assert text.startswith("HEADéé")
        assert text.endswith("ééTAIL")
        assert "left out" in text
        assert MAX_TEXT - 100 < len(text.encode()) <= MAX_TEXT

    def test_one_that_just_fits_is_kept(self) -> None:
        assert clean_text("é" * (MAX_TEXT // 2)) == "é" * (MAX_TEXT // 2)

    @pytest.mark.parametrize("limit", [0, 1, 50, 100])
    def test_a_tiny_limit_does_no_harm(self, limit: int) -> None:
        assert "left out" in clean_text("x" * 1_000, limit)
