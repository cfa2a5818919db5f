"""The table ``jobs`` as other programs rely on it: columns, meanings and defaults."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pool import Queue
from pool.store import Store
from tests.support import row, rows, stranger

#: name: (type, NOT NULL, default), as the contract states them.
CONTRACT = {
    "id": ("INTEGER", 0, None),
    "type": ("TEXT", 1, None),
    "payload": ("TEXT", 1, None),
    "status": ("TEXT", 1, "'queued'"),
    "attempts": ("INTEGER", 1, "0"),
    "max_attempts": ("INTEGER", 1, "5"),
    "run_at": ("TEXT", 1, "CURRENT_TIMESTAMP"),
    "locked_by": ("TEXT", 0, None),
    "locked_at": ("TEXT", 0, None),
    "last_error": ("TEXT", 0, None),
    "idempotency_key": ("TEXT", 0, None),
    "created_at": ("TEXT", 1, "CURRENT_TIMESTAMP"),
    "updated_at": ("TEXT", 1, "CURRENT_TIMESTAMP"),
}


def test_the_columns_of_the_contract_come_first_with_their_types_and_defaults(store: Store, database: Path) -> None:
    columns = rows(database, "SELECT * FROM pragma_table_info('jobs')")
    found = {each["name"]: (each["type"], each["notnull"], each["dflt_value"]) for each in columns}
    assert dict(list(found.items())[: len(CONTRACT)]) == CONTRACT
    assert next(each["name"] for each in columns if each["pk"]) == "id"


def test_every_other_column_has_a_default_or_may_be_null(store: Store, database: Path) -> None:
    extra = rows(database, "SELECT * FROM pragma_table_info('jobs')")[len(CONTRACT) :]
    assert extra and all(not each["notnull"] or each["dflt_value"] is not None for each in extra)


def test_the_archive_has_the_same_columns_and_says_when_by_whom_and_why(store: Store, database: Path) -> None:
    jobs, archive = (
        [each["name"] for each in rows(database, f"SELECT name FROM pragma_table_info('{table}')")]
        for table in ("jobs", "jobs_archive")
    )
    # A column that came later stands behind those three.
    assert sorted(archive) == sorted([*jobs, "archived_at", "archived_by", "archive_reason"])


def test_two_columns_are_enough_for_a_job(store: Store, database: Path) -> None:
    with stranger(database) as connection:
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('t', '{}')")
        now = connection.execute("SELECT CURRENT_TIMESTAMP").fetchone()[0]
    found = row(database)
    assert (found["status"], found["attempts"], found["max_attempts"]) == ("queued", 0, 5)
    assert found["locked_by"] is found["locked_at"] is found["last_error"] is found["idempotency_key"] is None
    assert found["run_at"] == found["created_at"] == found["updated_at"] <= now and len(now) == 19


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ("('t', '{}', 'failed', NULL)", "CHECK constraint failed"),
        ("(NULL, '{}', 'queued', NULL)", "NOT NULL constraint failed: jobs.type"),
        ("('t', NULL, 'queued', NULL)", "NOT NULL constraint failed: jobs.payload"),
        ("('t', '{}', NULL, NULL)", "NOT NULL constraint failed: jobs.status"),
        ("('t', '{}', 'queued', 'taken')", "UNIQUE constraint failed: jobs.idempotency_key"),
    ],
)
def test_rows_the_contract_rules_out_are_refused(queue: Queue, database: Path, values: str, complaint: str) -> None:
    queue.enqueue("t", key="taken")
    with stranger(database) as connection, pytest.raises(sqlite3.IntegrityError, match=complaint):
        connection.execute(f"INSERT INTO jobs (type, payload, status, idempotency_key) VALUES {values}")
    assert len(rows(database)) == 1


def test_our_own_times_carry_milliseconds_and_sort_beside_theirs(queue: Queue, database: Path) -> None:
    queue.enqueue("ours", delay=3600)
    with stranger(database) as connection:
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('theirs', '{}')")
    assert [each["type"] for each in rows(database, "SELECT type FROM jobs ORDER BY run_at")] == ["theirs", "ours"]
    (ours,) = rows(database, "SELECT run_at, created_at, updated_at FROM jobs WHERE type = 'ours'")
    assert all(len(text) == len("2026-12-01 08:00:00.000") for text in ours.values())


def test_the_id_of_a_deleted_job_is_never_used_again(queue: Queue, database: Path) -> None:
    last = [queue.enqueue("t").id for _ in range(3)][-1]
    with stranger(database) as connection:
        connection.execute("DELETE FROM jobs")
    assert queue.enqueue("t").id == last + 1


def test_the_id_of_an_archived_job_is_never_used_again(queue: Queue) -> None:
    first = queue.enqueue("t").id
    queue.archive(first)
    assert queue.enqueue("t").id == first + 1
    assert queue.retry(first)  # and so it can come back


def test_a_store_goes_on_when_a_newer_version_adds_columns(store: Store, database: Path) -> None:
    queue = Queue(database)
    for _ in range(3):
        queue.enqueue("t")
    with stranger(database) as connection:
        for table in ("jobs", "jobs_archive", "attempts", "audit", "pools", "workers", "pauses", "counters", "minutes"):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN later TEXT")
    first, second = queue.claim(), queue.claim()
    assert first and second and queue.complete(first) and queue.fail(second, "no luck")
    assert queue.archive(second.id) and queue.retry(second.id)
    third = queue.claim()
    assert third and queue.cancel(third.id) == "requested" and queue.fail(third, "told to end")
    assert [each["id"] for each in rows(database, "SELECT id FROM jobs_archive")] == [third.id]
    queue.close()
