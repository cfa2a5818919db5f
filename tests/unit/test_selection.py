"""Which jobs a selection means, in which order a list shows them, and that big tables are read by an index."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pool import UsageError, selection
from pool.selection import STATUSES, Cursor, Selection, count, page, still, walk
from pool.store import Store
from tests.support import rows, stranger

NOW = "2030-01-10 00:00:00.000"
TYPES = ("thumbnail", "report", "rare")
KEYS = (None, "a", "a%", "a_b", "ab", "a\U0010ffff", "a\U0010ffffz", "b", "ключ", "\ud7ffx")
ERRORS = (None, "Timeout after 3 s", "100% broken", "file_a is gone", "é is not a number")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Three hundred jobs of every kind, sixty of them due later, with times unlike the order of their ids."""
    path = tmp_path_factory.mktemp("selection") / "jobs.db"
    store = Store.open(str(path))
    chance = random.Random(7)
    with store.transaction():
        for number in range(1, 361):
            status = chance.choice(("queued", "running", "done", "dead", "archive")) if number <= 300 else "scheduled"
            key = chance.choice(KEYS)
            store.connection.execute(
                """INSERT INTO jobs
                (id, type, payload, status, run_at, idempotency_key, last_error, updated_at, locked_by)
                VALUES (?, ?, '{}', ?, ?, ?, ?, ?, ?)""",
                (
                    number,
                    chance.choice(TYPES),
                    {"archive": "dead", "scheduled": "queued"}.get(status, status),
                    f"2030-01-{'1' if status == 'scheduled' else '0'}{chance.randint(1, 9)} 00:00:00",
                    key if key is None else f"{key}{number}",
                    chance.choice(ERRORS),
                    f"2030-01-0{chance.randint(1, 9)} 0{chance.randint(0, 9)}:00:00.000",
                    f"w{number}" if status == "running" else None,
                ),
            )
            if status == "archive":
                at = f"2030-01-0{chance.randint(1, 9)} 00:00:00.000"
                store.execute("archive_copy", id=number, by="me", reason="", now=at)
                store.execute("archive_delete", id=number)
    yield store
    store.close()


def everything(store: Store) -> list[dict[str, Any]]:
    found = rows(store.path, "SELECT *, NULL AS archived_at FROM jobs")
    archived = rows(store.path, "SELECT * FROM jobs_archive")
    return found + [{**row, "status": "archive"} for row in archived]


def meant(row: dict[str, Any], chosen: Selection) -> bool:
    """What the words say, in plain Python."""
    at = row["archived_at"] or row["updated_at"]
    key, wanted = row["idempotency_key"], chosen.key
    return all(
        (
            row["status"] in (chosen.status, {"scheduled": "queued"}.get(chosen.status, ""))
            if chosen.status
            else row["status"] != "archive",
            chosen.status != "scheduled" or row["run_at"] > NOW,
            chosen.type in (None, row["type"]),
            wanted is None
            or (key is not None and (key.startswith(wanted[:-1]) if wanted.endswith("*") else key == wanted)),
            chosen.error is None or chosen.error.lower() in (row["last_error"] or "").lower(),
            chosen.older is None or at < age_before(chosen.older),
            chosen.newer is None or at > age_before(chosen.newer),
            not chosen.ids or row["id"] in chosen.ids,
        )
    )


def age_before(days: float) -> str:
    day, rest = divmod(10 * 86_400 - days, 86_400)
    return f"2030-01-{int(day):02d} {int(rest // 3600):02d}:00:00.000"


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in found]


def in_pages(store: Store, chosen: Selection, size: int) -> list[int]:
    found: list[int] = []
    after = None
    while True:
        one = page(store, chosen, NOW, size, after)
        found += ids(one.rows)
        if one.next is None:
            return found
        after = Cursor.parse(str(one.next))


selections = st.builds(
    Selection,
    status=st.sampled_from((None, *STATUSES)),
    type=st.sampled_from((None, None, *TYPES, "nothing")),
    key=st.sampled_from((None, None, "*", "a*", "a%*", "a_*", "a\U0010ffff*", "b*", "a%17", "ключ*", "\ud7ff*")),
    error=st.sampled_from((None, None, "TIMEOUT", "%", "_", "é", "nothing")),
    older=st.sampled_from((None, None, 0, 3 * 86_400.0)),
    newer=st.sampled_from((None, None, 5 * 86_400.0)),
    ids=st.sampled_from(((), (), (1, 2, 3, 50, 999), tuple(range(1, 200)))),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=selections, size=st.sampled_from((1, 7, 1000)), narrow=st.sampled_from((2, 30, 50_000)))
def test_pages_count_and_walk_find_exactly_what_the_words_mean(
    filled: Store, chosen: Selection, size: int, narrow: int
) -> None:
    """Whichever index is followed: with a small NARROW, as where tables are large, and with the usual one."""
    expected = {row["id"] for row in everything(filled) if meant(row, chosen)}
    before, selection.NARROW = selection.NARROW, narrow
    try:
        shown = in_pages(filled, chosen, size)
        walked = list(itertools.chain.from_iterable(walk(filled, chosen, NOW, size)))
        assert sorted(shown) == sorted(walked) == sorted(expected)
        assert count(filled, chosen, NOW) == len(expected)
        if not chosen.ids:
            assert set(still(filled, chosen, NOW, list(range(1, 100)))) == {each for each in expected if each < 100}
    finally:
        selection.NARROW = before


@pytest.mark.parametrize(
    ("status", "key"),
    [
        (None, lambda row: -row["id"]),
        ("done", lambda row: -row["id"]),
        ("running", lambda row: -row["id"]),
        ("queued", lambda row: (row["run_at"], row["id"])),
        ("scheduled", lambda row: (row["run_at"], row["id"])),
    ],
)
@pytest.mark.parametrize("narrow", [2, 50_000])
def test_queued_jobs_come_by_when_they_are_due_and_others_newest_first(
    status: str | None, key: Any, narrow: int, filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "NARROW", narrow)
    for more in ({}, {"type": "report"}, {"key": "a*"}, {"error": "o"}):
        chosen = Selection(status=status, **more)
        expected = sorted((row for row in everything(filled) if meant(row, chosen)), key=key)
        assert in_pages(filled, chosen, 7) == ids(expected)


@pytest.mark.parametrize(("status", "column"), [("dead", "updated_at"), ("archive", "archived_at")])
def test_dead_and_archived_jobs_come_by_when_they_became_that_latest_first(
    status: str, column: str, filled: Store
) -> None:
    for more in ({}, {"type": "rare"}, {"key": "a*"}):
        chosen = Selection(status=status, **more)
        found = [row for row in everything(filled) if meant(row, chosen)]
        expected = sorted(found, key=lambda row: (row[column], row["id"]), reverse=True)
        assert in_pages(filled, chosen, 5) == ids(expected)


def test_a_page_of_scheduled_jobs_goes_on_after_its_place_also_when_that_is_due_by_now(filled: Store) -> None:
    chosen, later = Selection(status="scheduled"), "2030-01-15 12:00:00.000"
    place = page(filled, chosen, NOW, 7).next
    assert place is not None and place.at < later
    expected = [row for row in everything(filled) if row["status"] == "queued" and row["run_at"] > later]
    assert set(ids(page(filled, chosen, later, 500, place).rows)) == set(ids(expected)) != set()
    steps = [step for step in explained(filled, chosen, later, place) if "jobs_due" in step]
    assert steps == ["SEARCH jobs USING INDEX jobs_due (run_at>?)"]


def test_a_full_last_page_is_followed_by_an_empty_one_and_a_short_one_by_none(filled: Store) -> None:
    three = Selection(ids=tuple(ids(page(filled, Selection(), NOW, 3).rows)))
    assert page(filled, three, NOW, 4).next is None
    full = page(filled, three, NOW, 3)
    assert full.next is not None and page(filled, three, NOW, 3, full.next) == ([], None)


# refusals


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "failed"},
        {"type": ""},
        {"type": "t" * 3_000},
        {"key": "\udcff"},
        {"error": ""},
        {"older": 60.0, "newer": 60.0},
        {"older": -1.0},
        {"newer": float("inf")},
        {"older": float("nan")},
    ],
)
def test_what_can_never_match_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Selection(**wrong).checked()


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 30, "@2030", "\u0663"])
def test_a_place_that_no_page_gave_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="ID or ID@TIME"):
        Cursor.parse(text)


def test_a_list_by_time_cannot_go_on_after_an_id_alone(filled: Store) -> None:
    with pytest.raises(UsageError, match="ID@TIME"):
        page(filled, Selection(status="dead"), NOW, 5, Cursor(17))


def test_the_facts_of_a_selection_are_what_was_given() -> None:
    assert Selection(status="dead", older=60.0, ids=(1, 2)).facts == {"status": "dead", "older": 60.0, "ids": (1, 2)}
    assert json.loads(json.dumps(Selection(type="é").facts)) == {"type": "é"} and Selection().facts == {}


# strangers


def test_rows_that_are_no_text_hide_no_other_and_end_every_walk(store: Store, database: Path) -> None:
    with stranger(database) as sql:
        for value in ("CAST(x'ff' AS TEXT)", "x'00ff'", "'soon'", "''"):
            sql.execute(f"INSERT INTO jobs (type, payload, run_at) VALUES ({value}, {value}, {value})")
            sql.execute(f"INSERT INTO jobs (type, payload, status, updated_at) VALUES ({value}, 'x', 'dead', {value})")
        sql.execute("INSERT INTO jobs (type, payload) VALUES ('good', '{}')")
    for status in (None, "queued", "dead"):
        chosen = Selection(status=status)
        assert len(page(store, chosen, NOW, 100).rows) == {None: 9, "queued": 5, "dead": 4}[status]
        for size in (1, 2, 100):
            assert list(walk(store, chosen, NOW, size))


# plans


PLACE = Cursor(150, NOW)


def explained(store: Store, chosen: Selection, now: str = NOW, after: Cursor = PLACE) -> list[str]:
    """The plan of a page's statement."""
    seen: list[str] = []
    store.connection.set_trace_callback(seen.append)
    page(store, chosen, now, 50, after)
    store.connection.set_trace_callback(None)
    (sql,) = (each for each in seen if each.startswith("SELECT id,"))
    return [step[3] for step in store.connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]


@pytest.mark.parametrize("narrow", [1, 50_000])
@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        (Selection(status="queued"), "jobs_due"),
        (Selection(status="scheduled"), "jobs_due"),
        (Selection(status="running"), "jobs_running"),
        (Selection(status="dead"), "jobs_dead"),
        (Selection(status="dead", older=86_400), "jobs_dead"),
        (Selection(status="archive"), "archive_at"),
        (Selection(type="rare"), "jobs_type"),
        (Selection(status="done", type="rare"), "jobs_type"),
        (Selection(key="a1"), "sqlite_autoindex_jobs_1"),
        (Selection(status="dead", key="a1"), "sqlite_autoindex_jobs_1"),
        (Selection(status="archive", key="a1"), "archive_key"),
        (Selection(error="Timeout"), "jobs_failed"),
        (Selection(), "PRIMARY KEY"),
        (Selection(ids=(1, 2)), "PRIMARY KEY"),
    ],
    ids=lambda value: json.dumps(value.facts) if isinstance(value, Selection) else "",
)
def test_each_list_follows_the_index_that_is_for_it(
    chosen: Selection, index: str, narrow: int, filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "NARROW", narrow)
    steps = explained(filled, chosen)
    assert any(index in step for step in steps), steps
    if narrow == 1 and chosen.key is None and chosen.status != "running":
        assert not any("TEMP B-TREE" in step for step in steps), steps


def test_where_a_type_is_rare_its_index_is_followed_and_where_it_is_not_the_list_s_own(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Selection(status="queued", type="thumbnail")
    few = min(count(filled, each, NOW) for each in (Selection(status="queued"), Selection(type="thumbnail")))
    monkeypatch.setattr(selection, "NARROW", few)  # both leave more than that
    assert any("jobs_due" in step for step in explained(filled, chosen))
    monkeypatch.setattr(selection, "NARROW", 50_000)
    (smaller,) = [step for step in explained(filled, Selection(status="queued", type="nothing")) if "INDEX" in step]
    assert "jobs_type" in smaller
