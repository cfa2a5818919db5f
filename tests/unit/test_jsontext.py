"""Payload text: what is stored always reads back equal, and what cannot be stored is named by its place."""

from __future__ import annotations

import enum
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool import PayloadError
from pool.jsontext import dump, load

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


@given(VALUES)
def test_what_is_stored_reads_back_equal(value: Any) -> None:
    text = dump(value)
    assert load(text) == value
    assert json.loads(text) == value  # and so any other language reads it


def test_tuples_come_back_as_lists() -> None:
    assert load(dump({"a": (1, (2,))})) == {"a": [1, [2]]}


@pytest.mark.parametrize("value", [10**9_999, -(10**9_999) + 1, 10**4_299, 10**4_300], ids="abcd")
def test_integers_of_ten_thousand_digits_read_back(value: int) -> None:
    assert load(dump(value)) == value
    assert load(dump({"n": [1.5, value, "x"]})) == {"n": [1.5, value, "x"]}


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    OURS = "ours"


def test_enums_are_stored_as_their_values() -> None:
    assert load(dump({"level": Level.HIGH, "name": Name.OURS})) == {"level": 3, "name": "ours"}
    assert load(dump({Name.OURS: 1})) == {"ours": 1}


def _cycle() -> Any:
    value: dict[str, Any] = {"list": [1]}
    value["list"].append(value)
    return value


@pytest.mark.parametrize(
    ("value", "place", "what"),
    [
        ({"images": [{}, {"width": float("nan")}]}, "payload.images[1].width", "nan"),
        (float("inf"), "payload", "inf"),
        ([float("-inf")], "payload[0]", "-inf"),
        ({"a": "\ud800"}, "payload.a", "lone surrogate"),
        ("x" * 100 + "\udfff", "payload", "lone surrogate"),
        ({"\ud800": 1}, "payload key", "lone surrogate"),
        ({1: "x"}, "payload", "key 1 of type int"),
        ({"a": {None: 1}}, "payload.a", "key None of type NoneType"),
        ({"a": [{True: 1}]}, "payload.a[0]", "key True of type bool"),
        ({"a": {1, 2}}, "payload.a", "is a set"),
        ({"a": (b"x",)}, "payload.a[0]", "is a bytes"),
        (object(), "payload", "is a object"),
        ({"a": complex(1)}, "payload.a", "is a complex"),
        (_cycle(), "payload.list[1]", "contains itself"),
    ],
)
def test_what_json_cannot_hold_is_refused_and_its_place_named(value: Any, place: str, what: str) -> None:
    with pytest.raises(PayloadError) as refused:
        dump(value)
    text = str(refused.value)
    assert text.startswith((f"{place} ", f"{place}:")) and what in text and "\n" not in text
    text.encode()  # the message itself can be printed and stored


def test_the_same_list_twice_is_no_cycle() -> None:
    shared = [1]
    assert load(dump({"a": shared, "b": [shared, shared]})) == {"a": [1], "b": [[1], [1]]}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_is_refused_by_name_not_by_a_recursion_error() -> None:
    with pytest.raises(PayloadError, match="payload is nested too deeply"):
        dump(nested(100_000))


def test_nesting_that_is_accepted_can_be_read_again() -> None:
    assert load(dump(nested(300))) == nested(300)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nul",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "{'a': 1}",
        "\ud800",
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=list("0123456789"),
)
def test_what_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        load(text)


def test_deep_nesting_behind_a_long_integer_is_a_value_error_too() -> None:
    long = "1" * (sys.get_int_max_str_digits() + 1)
    with pytest.raises(ValueError):
        load(f"[{long}, {'[' * 100_000}{']' * 100_000}]")
    with pytest.raises(ValueError):
        load(f"[{long}, NaN]")
