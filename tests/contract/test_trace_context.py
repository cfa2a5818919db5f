"""The trace context of a job: it goes wherever the job goes, and nobody has to know of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pool import Queue
from pool.backup import backup
from pool.job import AttemptOutcome, Completed, Evidence, Failed, NewJob
from pool.restore import restore
from pool.store import Store
from pool.tracecontext import trace_id
from tests.conftest import Command
from tests.support import row, rows, stranger

NOW = "2030-06-01 12:00:00.000"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = f"00-{TRACE}-00f067aa0ba902b7-01 congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"


@pytest.fixture
def traced(store: Store, database: Path) -> Store:
    """A store with one job, which a stranger made and gave a context."""
    with stranger(database) as sql:
        sql.execute("INSERT INTO jobs (type, payload, trace_context) VALUES ('t', '{}', ?)", (CONTEXT,))
    return store


def fail(store: Store, *, permanent: bool = True) -> None:
    job = store.claim("w", NOW)
    assert job is not None and store.settle(job, Failed("no luck", permanent=permanent), NOW)


def done_and_run_again(store: Store) -> None:
    job = store.claim("w", NOW)
    assert job is not None and store.settle(job, Completed(), NOW) and store.run_again(1, NOW)


def crash(store: Store) -> None:
    job = store.claim("w", NOW)
    assert job is not None and store.crash(job, Evidence(AttemptOutcome.CRASHED, "killed", NOW), max_crashes=3)


def dead_and_requeued(store: Store) -> None:
    fail(store)
    assert store.requeue(1, NOW)


def archived_and_back(store: Store) -> None:
    assert store.archive(1, "me", "why", NOW) and store.requeue(1, NOW)


def cancelled_while_it_ran_and_back(store: Store) -> None:
    job = store.claim("w", NOW)
    assert job is not None and store.cancel(1, "me", NOW) == "requested"
    assert store.settle(job, Failed("no luck"), NOW) and store.requeue(1, NOW)


@pytest.mark.parametrize(
    "life",
    [
        lambda store: fail(store, permanent=False),
        crash,
        done_and_run_again,
        dead_and_requeued,
        archived_and_back,
        cancelled_while_it_ran_and_back,
    ],
)
def test_a_job_that_is_queued_again_carries_its_context(
    life: Callable[[Store], None], traced: Store, database: Path
) -> None:
    life(traced)
    assert (row(database)["status"], row(database)["trace_context"]) == ("queued", CONTEXT)


def test_the_archive_keeps_the_context_and_what_stands_beside_it(traced: Store, database: Path) -> None:
    traced.archive(1, "me", "why", NOW)
    (found,) = rows(database, "SELECT * FROM jobs_archive")
    assert (found["trace_context"], found["archived_by"], found["archive_reason"]) == (CONTEXT, "me", "why")


def test_a_backup_and_a_restore_keep_it(traced: Store, database: Path, tmp_path: Path) -> None:
    backup(str(database), str(tmp_path / "copy.db"), NOW)
    restore(str(tmp_path / "copy.db"), str(tmp_path / "other.db"), "me", NOW)
    assert row(tmp_path / "other.db")["trace_context"] == CONTEXT


def test_a_job_that_nobody_traces_carries_none(queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    queue.enqueue_many([("t",), {"type": "t"}])
    with stranger(database) as sql:
        sql.execute("INSERT INTO jobs (type, payload) VALUES ('t', '{}')")
    assert [each["trace_context"] for each in rows(database)] == [None] * 4


def test_jobs_in_bulk_carry_the_trace_of_whoever_enqueued_them(store: Store, database: Path) -> None:
    job = NewJob("t", "{}", None, 0, NOW, 5, None, NOW)
    assert store.enqueue_many([job] * 250, CONTEXT) == 250
    assert {(each["trace_context"], each["created_at"], each["updated_at"]) for each in rows(database)} == {
        (CONTEXT, NOW, NOW)
    }


def test_the_command_shows_the_trace_s_id(traced: Store, command: Command) -> None:
    assert f"trace id       {TRACE}" in command("show", "1").ok().out
    found = command("show", "1", "--json").ok().json()
    assert (found["trace_id"], found["trace_context"]) == (TRACE, CONTEXT)


#: What a stranger may have stored, none of it a trace context.
GARBAGE = (
    None, "", "garbage", 7, 1.5, b"\xff\x00", "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
    f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-00f067aa0ba902b7-01", f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
    f"00-{TRACE}-00f067aa0ba902b7", f" 00-{TRACE}-00f067aa0ba902b7-01", "é" * 100_000,
)  # fmt: skip


@pytest.mark.parametrize("value", GARBAGE, ids=lambda value: repr(value)[:40])
def test_what_is_no_trace_context_has_no_id_and_is_no_error(value: object, queue: Queue, command: Command) -> None:
    assert trace_id(value) is None
    with stranger(queue.path) as sql:
        sql.execute("INSERT INTO jobs (type, payload, trace_context) VALUES ('t', '{}', ?)", (value,))
    assert command("show", "1", "--json").ok().json()["trace_id"] is None


def test_a_context_of_a_later_version_is_known_by_its_beginning() -> None:
    assert trace_id(f"01-{TRACE}-00f067aa0ba902b7-01-more") == TRACE


def test_strangers_who_know_nothing_of_the_column_are_not_disturbed(database: Path, traced: Store) -> None:
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET status='running', locked_by='me', attempts=attempts+1 WHERE id=1")
        sql.execute("UPDATE jobs SET status='queued', locked_by=NULL WHERE id=1 AND locked_by='me' AND attempts=1")
    assert row(database)["trace_context"] == CONTEXT
