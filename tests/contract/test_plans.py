"""Every named statement goes through an index where tables grow, on a new database and after somebody's ANALYZE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.store import SQL, Store

#: Scans that end early or are meant: statement, table and index: why.
ALLOWED = {
    ("next_due", "jobs USING INDEX jobs_claim"): "LIMIT 1 in the index's order: its first entry",
    ("next_due", "jobs USING COVERING INDEX jobs_claim"): "the same",
    ("tail_next", "jobs USING INDEX jobs_claim"): "the same",
    ("tail_next", "jobs USING COVERING INDEX jobs_claim"): "the same",
    ("oldest_run_at", "jobs USING INDEX jobs_due"): "LIMIT 1 in the index's order",
    ("oldest_run_at", "jobs USING COVERING INDEX jobs_due"): "the same",
    ("newest_created_at", "jobs"): "LIMIT 1 in the order of the table's own key",
    ("tail_attempts_last", "a"): "LIMIT in the order of the table's own key",
    ("tail_audit_last", "audit"): "LIMIT in the order of the table's own key",
    ("queued_types", "jobs USING COVERING INDEX jobs_type"): "LIMIT 1 in the index's order",
    ("count_all", "jobs USING COVERING INDEX *"): "a count of all rows; only people and metrics ask",
    ("count_queued", "jobs USING * jobs_*"): "a count of the queued ones alone",
    ("count_dead", "jobs USING * jobs_dead"): "a count of the dead ones alone",
    ("count_queued_to", "jobs USING * jobs_*"): "the same, and LIMIT",
    ("count_dead_to", "jobs USING * jobs_dead"): "the same, and LIMIT",
}
#: This index holds running jobs alone: as many as there are workers.
SMALL = "jobs_running"
#: Tables with a row for each pool, worker or pause: sorting or scanning them costs nothing.
SORTS = {
    "workers": "a row for each worker",
}
STATEMENTS = [name for name in SQL if not name.startswith("part_")]  # those are put together by pool.selection


def plan(store: Store, name: str) -> list[str]:
    sql = SQL[name]
    names = dict.fromkeys(re.findall(r":([a-z_]+)", sql))
    numbers = [None] * max((int(each) for each in re.findall(r"\?(\d+)", sql)), default=0)
    return [each[3] for each in store.connection.execute(f"EXPLAIN QUERY PLAN {sql}", names or numbers).fetchall()]


@pytest.fixture(scope="module", params=["new", "analyzed"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A new database, or one with many rows of each kind and the statistics of somebody's ANALYZE."""
    path: Path = tmp_path_factory.mktemp("plans") / "jobs.db"
    store = Store.open(str(path))
    if request.param == "analyzed":
        with store.transaction():
            for status, count in (("done", 20_000), ("queued", 5_000), ("dead", 500), ("running", 4)):
                store.connection.execute(
                    """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
                    INSERT INTO jobs (type, payload, status, idempotency_key, locked_by)
                    SELECT 't' || i % 3, '{}', ?1, ?1 || i, iif(?1 = 'running', 'w' || i, NULL) FROM n
                    """.replace("?1", f"'{status}'"),
                    (count,),
                )
            store.connection.execute(
                """INSERT INTO attempts (job_id, attempt, worker, ended_at, outcome)
                SELECT id, 1, 'w', updated_at, 'failed' FROM jobs WHERE id % 4 = 0"""
            )
        store.connection.execute("ANALYZE")
    yield store
    store.close()


def allowed(name: str, what: str) -> bool:
    return SMALL in what or any(
        name == statement and re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), what)
        for statement, pattern in ALLOWED
    )


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_reads_a_whole_table_or_sorts_one(name: str, filled: Store) -> None:
    tables = "jobs|jobs_archive|attempts|audit|a|j|r"
    for step in plan(filled, name):
        scan = re.fullmatch(rf"SCAN (({tables})\b.*)", step)
        assert not scan or allowed(name, scan[1]), f"{name}: {step}"
        assert "TEMP B-TREE" not in step or name in SORTS, f"{name}: {step}"
        assert "AUTOMATIC" not in step, f"{name}: {step}"


def test_a_claim_seeks_in_its_own_index_alone(filled: Store) -> None:
    steps = [step for step in plan(filled, "next_due") if re.search(r"\bjobs\b", step)]
    assert steps[0] == "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"
    assert len(steps) > 4 and all("INDEX jobs_claim" in step for step in steps[1:])
    assert sum("(priority=? AND run_at<?)" in step for step in steps) >= 2


@pytest.mark.parametrize(
    "name", ["claim", "complete", "fail", "snooze", "crash", "give_back", "expire", "renew", "requeue"]
)
def test_every_ending_goes_by_the_id(name: str, filled: Store) -> None:
    assert plan(filled, name) == ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"]


@pytest.mark.parametrize("name", ["claim_group", "complete_group"])
def test_a_group_is_claimed_and_completed_by_its_ids(name: str, filled: Store) -> None:
    steps = [step for step in plan(filled, name) if "jobs" in step]
    assert steps == ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"]


def test_a_stranger_s_claim_seeks_in_an_index_too(filled: Store) -> None:
    sql = """UPDATE jobs SET status='running', locked_by='me', locked_at=CURRENT_TIMESTAMP, attempts=attempts+1
        WHERE id=(SELECT id FROM jobs WHERE status='queued' AND run_at<=CURRENT_TIMESTAMP ORDER BY run_at,id LIMIT 1)
        AND status='queued' AND run_at<=CURRENT_TIMESTAMP"""
    steps = [each[3] for each in filled.connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]
    assert [step for step in steps if "jobs" in step] == [
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH jobs USING COVERING INDEX jobs_due (run_at<?)",
    ] or "SEARCH jobs USING INDEX jobs_due (run_at<?)" in steps


def test_each_allowed_scan_is_still_there(filled: Store) -> None:
    """A list of exceptions that nobody needs any more hides the next mistake."""
    assert {name for name, _ in ALLOWED} <= set(STATEMENTS)
