"""Times: UTC text that sorts as instants, whatever instant it is."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.clock import LATEST, duration, instant, now_text, parse_utc, utc_text
from pool.errors import UsageError

INSTANTS = st.floats(-1e10, 1e12)


@given(INSTANTS, INSTANTS)
def test_text_sorts_as_the_instants_do(one: float, other: float) -> None:
    earlier, later = sorted((one, other))
    assert utc_text(earlier) <= utc_text(later)


@given(INSTANTS)
def test_every_instant_has_the_one_form_and_reads_back_to_the_millisecond(at: float) -> None:
    text = utc_text(at)
    assert datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f") and len(text) == 23
    assert parse_utc(text) == pytest.approx(min(max(at, 0.0), LATEST), abs=0.00101)


@given(st.integers(0, 4_000_000_000_000))
def test_a_text_read_and_written_again_is_the_same(milliseconds: int) -> None:
    whole, rest = divmod(milliseconds, 1000)
    text = f"{utc_text(whole)[:19]}.{rest:03d}"
    assert utc_text(parse_utc(text)) == text


@pytest.mark.parametrize("at", [-0.5, -0.001, -1.0, -1e12])
def test_an_instant_before_1970_is_1970(at: float) -> None:
    utc_text(0.0)
    assert utc_text(at) == "1970-01-01 00:00:00.000"


def test_our_times_sort_beside_those_of_sqlite() -> None:
    connection = sqlite3.connect(":memory:")
    for _ in range(100):
        before = now_text()
        theirs = connection.execute("SELECT CURRENT_TIMESTAMP").fetchone()[0]
        after = now_text()
        assert before[:19] <= theirs <= after
    connection.close()


def test_a_strangers_time_reads_with_and_without_milliseconds_t_and_z() -> None:
    same = {"2026-12-01 08:00:00", "2026-12-01 08:00:00.000", "2026-12-01T08:00:00Z", "2026-12-01T08:00:00.0Z"}
    assert len({parse_utc(text) for text in same}) == 1
    with pytest.raises(ValueError):
        parse_utc("tomorrow")


def test_one_instant_is_the_same_in_every_zone() -> None:
    india = datetime(2026, 12, 1, 13, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert (
        utc_text(instant(india))
        == utc_text(instant(datetime(2026, 12, 1, 8, 0, tzinfo=UTC)))
        == "2026-12-01 08:00:00.000"
    )


@pytest.mark.parametrize("milliseconds", range(0, 1000, 37))
def test_a_datetime_keeps_its_milliseconds(milliseconds: int) -> None:
    at = datetime(2026, 12, 1, 8, 0, 0, milliseconds * 1000, tzinfo=UTC)
    assert utc_text(instant(at)) == f"2026-12-01 08:00:00.{milliseconds:03d}"


@pytest.mark.parametrize("value", [datetime(2026, 12, 1), float("nan"), float("inf"), float("-inf"), True, "now", None])
def test_what_names_no_instant_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="run_at"):
        utc_text(instant(value))  # type: ignore[arg-type]


def test_a_naive_datetime_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"2026-12-01 08:00:00 has no time zone.*datetime\.now\(UTC\)"):
        instant(datetime(2026, 12, 1, 8))


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), True, "5", None, timedelta(seconds=-1)])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="delay takes seconds"):
        duration(value)  # type: ignore[arg-type]


def test_an_endless_duration_is_clamped_to_what_the_calendar_holds() -> None:
    assert duration(float("inf")) == duration(1e300) == LATEST
    assert utc_text(1.8e9 + duration(float("inf"))).startswith("9999-")
