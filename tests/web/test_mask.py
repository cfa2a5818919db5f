"""What is hidden, in payloads and in free text, and that nothing makes hiding slow."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.web import charts, show
from pool.web.mask import MASK, Mask, pretty

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ({"password": "x1x"}, True),
        ({"userPassWord": {"deep": ["x1x"]}}, True),
        ({"headers": [["Authorization", "x1x"], ["Accept", "*"]]}, True),
        ({"headers": [{"name": "Set-Cookie", "value": "x1x"}]}, True),
        ({"API-Key": "x1x", "n": 1}, True),
        ({"url": "https://user:x1x@host/path"}, True),
        ({"cmd": "curl -H 'Authorization: Bearer x1x'"}, True),
        ({"dsn": "PASSWORD=x1x host=h"}, True),
        ({"author": "x1x"}, False),
        ({"size": "x1x"}, False),
    ],
)
def test_values_of_telling_names_are_hidden(value: Any, hidden: bool) -> None:
    assert ("x1x" not in Mask().payload(json.dumps(value))) == hidden


@pytest.mark.parametrize(
    "text",
    ["KeyError: {'token': 'x1x'}", 'json: {"api_key": "x1x"}', "secret=x1x&next=1", "Authorization: Bearer x1x",
     "redis://:x1x@cache:6379/0", "access_key : 'x1x'", "Cookie: x1x"],
)  # fmt: skip
def test_secrets_quoted_in_errors_and_output_are_hidden(text: str) -> None:
    assert "x1x" not in Mask().text(text)


def test_ordinary_text_is_left_as_it_is() -> None:
    text = 'File "/srv/app.py", line 3, in tokenize\n    return [word for word in words]\nhttps://host:8080/path'
    assert Mask().text(text) == text


@given(JSON)
def test_a_payload_that_is_only_looked_at_comes_back_as_it_was(value: Any) -> None:
    mask = Mask()
    shown = mask.value(value)
    assert mask.unmask(json.loads(pretty(shown)), value) == value


@given(JSON)
def test_indented_json_is_the_same_value_and_prints_whole(value: Any) -> None:
    text = pretty(value)
    assert json.loads(text) == value
    assert all(each.isprintable() or each == "\n" for each in text)


def test_a_mask_moved_to_another_place_is_refused() -> None:
    for edited in ({"b": MASK}, {"a": "x", "token": [MASK]}, [MASK], MASK, {"token": f"x{MASK}"}):
        with pytest.raises(ValueError, match=MASK):
            Mask().unmask(edited, {"token": "t", "a": 1})


@pytest.mark.parametrize(
    "text",
    ["token:" * 11_000, "token" * 13_000, 'password="' + "\\a" * 32_000, "a://" * 16_000, "token" + " " * 65_000,
     "token-" * 11_000 + "=", '"token": "' * 6_500],
)  # fmt: skip
def test_no_text_makes_hiding_slow(text: str) -> None:
    began = time.process_time()
    Mask().text(text)
    assert time.process_time() - began < 5  # a backtracking pattern would take minutes


@given(st.text())
def test_what_is_shown_holds_no_character_that_acts_on_its_neighbours(text: str) -> None:
    for made in (show.visible(text), str(show.cell(text)), str(show.plain(text))):
        assert all(each.isprintable() or each in "\n\t" for each in made)
    assert all(each.isprintable() or each in "\n\t" for each in str(show.attribute(text)))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0, "0 s"), (0.00004, "40 µs"), (0.25, "250 ms"), (1.5, "1.5 s"), (7, "7 s"), (119, "119 s"),
     (600, "10 min"), (8000, "2 h"), (900_000, "10 d")],
)  # fmt: skip
def test_durations_are_said_in_words(seconds: float | None, words: str) -> None:
    assert show.duration(seconds) == words


def test_a_chart_says_in_words_what_it_draws() -> None:
    now = 1_800_000_000.0
    chart = charts.throughput({"2027-01-15 07:59": (30, 0), "2027-01-15 08:00": (10, 2)}, now, 60, 1)
    assert (chart.done, chart.failed, chart.most) == (40, 2, 30)
    assert 'aria-label="40 jobs done, 2 attempts failed' in chart.svg
    assert "07:59: 30 done, 0 failed" in chart.svg and "style=" not in chart.svg
    assert charts.throughput({}, now, 60, 1).most == 0


def test_quantiles_are_upper_ends_of_buckets() -> None:
    assert charts.quantiles({10: 90, 20: 9, 30: 1}) == [2**10 / 1e6, 2**20 / 1e6, 2**20 / 1e6]
    assert charts.quantile({}, 0.5) is None
    assert [each.jobs for each in charts.distribution({3: 2, 10: 1, 11: 4, 60: 1})] == [3, 4, 0, 0, 0, 0, 1]
