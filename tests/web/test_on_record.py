"""A change and its line in the record are one: where the line cannot be written, nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pool import Queue, Spec, mend
from pool.clock import now_text
from pool.store import Store
from pool.web.actions import CHANGES
from tests.conftest import Command
from tests.support import rows
from tests.web.conftest import MakeClient

#: Each change of the dashboard: path and fields. Job 1 waits, 2 is dead, 3 runs, 4 is archived, 5 is done.
BY_WEB: tuple[tuple[str, dict[str, str]], ...] = (
    ("/jobs/1/retry", {}),
    ("/jobs/4/retry", {}),
    ("/jobs/2/archive", {}),
    ("/jobs/1/cancel", {}),
    ("/jobs/3/cancel", {}),
    ("/jobs/1/edit", {"payload": "[1]", "priority": "3", "max_attempts": "2"}),
    ("/bulk", {"action": "retry", "status": "dead"}),
    ("/bulk", {"action": "archive", "id": "1 2"}),
    ("/pause", {"reason": "r"}),
    ("/resume", {}),
    ("/pools/1/scale", {"workers": "3"}),
    ("/pools/1/reload", {}),
)
#: Each that the command line makes.
BY_COMMAND = (
    "retry 1",
    "retry --status archive",
    "archive 2",
    "cancel 1 3",
    "purge --status dead --older 0s --yes",
    "purge --keep done=0s --keep dead=0s --keep archive=0s --yes",
    "pause",
    "resume",
    "scale 3",
    "reload",
)
TABLES = ("jobs", "jobs_archive", "attempts", "pools", "pauses", "audit")


@pytest.fixture
def mixed(database: Path) -> Path:
    """A job of each kind, a pool on record, and a pause."""
    with Queue(database) as queue:
        for _ in range(5):
            queue.enqueue("t", max_attempts=1)
    store = Store.open(str(database))
    execute = store.connection.execute
    execute("UPDATE jobs SET updated_at = '2020-01-01 00:00:00.000', run_at = '2030-01-01 00:00:00.000'")
    execute("UPDATE jobs SET status = 'dead', last_error = 'no luck' WHERE id = 2")
    execute("UPDATE jobs SET status = 'running', locked_by = 'somebody', locked_at = updated_at WHERE id = 3")
    execute("UPDATE jobs SET status = 'done' WHERE id = 5")
    store.archive(4, "me", "", "2020-01-01 00:00:00.000")
    me = {"host": "h", "machine": "m", "boot_id": "b", "pid_namespace": "p", "pid": 1, "start_time": 1}
    store.change("register_pool", **me, now=now_text(), state="running", target=1, exclusive=0)
    store.change("pause", by="me", reason="r", now=now_text(), until=None)
    store.close()
    return database


def forbid(database: Path, event: str) -> None:
    """From now on nobody can write the record so."""
    store = Store.open(str(database))
    store.connection.execute(
        f"CREATE TRIGGER forbidden BEFORE {event} ON audit BEGIN SELECT RAISE(ABORT, 'the record is full'); END"
    )
    store.close()


def state(database: Path) -> list[list[dict[str, Any]]]:
    return [rows(database, f"SELECT * FROM {table}") for table in TABLES]


def send(client: MakeClient, path: str, fields: dict[str, str], mixed: Path) -> int:
    """A form of the dashboard, filled in and sent: the status of the answer."""
    if path.endswith("/edit"):
        fields = {**fields, "seen": rows(mixed, "SELECT updated_at FROM jobs WHERE id = 1")[0]["updated_at"]}
    return int(client().submit(path, "/jobs/1", **fields).status_code)


def test_every_change_of_the_dashboard_is_tried_here() -> None:
    shapes = {path.replace("/1/", "/{id}/").replace("/2/", "/{id}/") for path, _ in BY_WEB}
    assert set(CHANGES) <= shapes


@pytest.mark.parametrize(("path", "fields"), BY_WEB, ids=lambda value: value if isinstance(value, str) else "")
def test_the_dashboard_changes_nothing_without_a_line_in_the_record(
    path: str, fields: dict[str, str], client: MakeClient, mixed: Path
) -> None:
    before = state(mixed)
    forbid(mixed, "INSERT")
    # A change of many is made in a thread of its own, and its answer is the record's page.
    assert send(client, path, fields, mixed) == (200 if path == "/bulk" else 503)
    assert state(mixed) == before


@pytest.mark.parametrize("arguments", BY_COMMAND)
def test_the_command_line_changes_nothing_without_a_line_in_the_record(
    arguments: str, command: Command, mixed: Path
) -> None:
    before = state(mixed)
    forbid(mixed, "INSERT")
    command(*arguments.split(), "--db", str(mixed)).refused(4, "the record is full")
    assert state(mixed) == before


def test_what_is_deleted_by_rules_is_counted_in_the_same_transaction(command: Command, mixed: Path) -> None:
    before = state(mixed)
    forbid(mixed, "UPDATE")
    command("purge", "--keep", "done=0s", "--yes", "--db", str(mixed)).refused(4, "the record is full")
    assert state(mixed)[:-1] == before[:-1]


@pytest.mark.parametrize(("path", "fields"), BY_WEB, ids=lambda value: value if isinstance(value, str) else "")
def test_each_of_these_changes_does_change_something(
    path: str, fields: dict[str, str], client: MakeClient, mixed: Path
) -> None:
    """Or the tests above would show nothing."""
    before = state(mixed)
    assert send(client, path, fields, mixed) == 200
    after = state(mixed)
    assert after[:-1] != before[:-1] and len(after[-1]) == 1


@pytest.mark.parametrize("arguments", BY_COMMAND)
def test_each_of_these_commands_does_change_something(arguments: str, command: Command, mixed: Path) -> None:
    before = state(mixed)
    command(*arguments.split(), "--db", str(mixed)).ok()
    after = state(mixed)
    assert after[:-1] != before[:-1] and len(after[-1]) == 1


def test_a_long_cancel_takes_short_transactions_each_on_record(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mend, "BATCH", 2)
    with Queue(database) as queue:
        queue.enqueue_many(Spec("t") for _ in range(5))
    answers = mend.cancel(store, [1, 2, 3, 4, 5, 9], "me", now_text())
    assert answers == {**dict.fromkeys(range(1, 6), "cancelled"), 9: None}
    lines = rows(database, "SELECT jobs, filter FROM audit ORDER BY id")
    assert [(each["jobs"], each["filter"]) for each in lines] == [
        (2, '{"ids": [1, 2]}'), (2, '{"ids": [3, 4]}'), (1, '{"ids": [5]}')
    ]  # fmt: skip
