"""Opening a database: made once whoever races, refused in one line when it is not ours to use."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool import DatabaseUnusable, Queue
from pool.store import Store
from pool.store.statements import load_migrations
from tests.conftest import Command
from tests.support import Result, environment, race, rows, run_command, stranger

NOBODY = 65534


def test_eight_processes_that_open_a_new_database_at_once_make_it_once(database: Path) -> None:
    script = """
from pool.store import Store
go()
Store.open(sys.argv[1]).close()
"""
    for _ in range(3):
        for each in race(8, script, str(database)):
            assert (each.code, each.err) == (0, "")
        assert rows(database, "SELECT version FROM jobpool_schema") == [{"version": len(load_migrations())}]
        assert rows(database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
        for path in database.parent.glob("jobs.db*"):
            path.unlink()


def test_eight_processes_that_migrate_an_old_database_at_once_do_it_once(database: Path) -> None:
    make_old(database, version=1)
    script = """
from pool import Queue
go()
with Queue(sys.argv[1]) as queue:
    queue.enqueue("t")
"""
    for each in race(8, script, str(database)):
        assert (each.code, each.err) == (0, "")
    assert rows(database, "SELECT version FROM jobpool_schema") == [{"version": len(load_migrations())}]
    assert len(rows(database)) == 1 + 8


def make_old(database: Path, version: int) -> None:
    """A database as an earlier release left it, with a job in it."""
    with stranger(database) as connection:
        for script in load_migrations()[:version]:
            connection.executescript(script)
        connection.execute("CREATE TABLE jobpool_schema (version INTEGER NOT NULL)")
        connection.execute("INSERT INTO jobpool_schema VALUES (?)", (version,))
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('old', '{}')")


@pytest.mark.parametrize("version", range(1, len(load_migrations()) + 1))
def test_a_migrated_database_has_the_schema_of_a_new_one(version: int, database: Path, tmp_path: Path) -> None:
    make_old(database, version)
    for path in (database, tmp_path / "new.db"):
        Store.open(str(path)).close()
    sql = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name <> 'jobpool_schema' ORDER BY name"
    assert rows(database, sql) == rows(tmp_path / "new.db", sql)
    assert [each["type"] for each in rows(database)] == ["old"]


def test_opening_a_database_that_is_up_to_date_neither_writes_nor_waits(database: Path) -> None:
    with Queue(database) as queue, stranger(database) as holder:
        version = queue._opened().data_version()
        Store.open(str(database)).close()
        assert queue._opened().data_version() == version
        holder.execute("BEGIN IMMEDIATE")
        Store.open(str(database), busy_seconds=0.1).close()


def test_a_migration_that_fails_leaves_nothing_behind(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*load_migrations(), "CREATE TABLE half (x);\nINSERT INTO nowhere VALUES (1);\n"]
    Store.open(str(database)).close()
    with monkeypatch.context() as patch:
        patch.setattr("pool.store.sqlite.load_migrations", lambda: broken)
        with pytest.raises(DatabaseUnusable, match="no such table: nowhere"):
            Store.open(str(database))
    assert rows(database, "SELECT version FROM jobpool_schema") == [{"version": len(broken) - 1}]
    assert rows(database, "SELECT 1 FROM sqlite_schema WHERE name = 'half'") == []


def refused(command: Command, database: object, *words: str) -> None:
    """Every way in refuses it with the same line."""
    with pytest.raises(DatabaseUnusable) as error:
        Queue(str(database))
    assert "\n" not in str(error.value)
    for arguments in (["enqueue", "t"], ["status"], ["run", "--drain"]):
        command(*arguments, "--db", str(database)).refused(4, str(error.value), *words)


def test_a_newer_schema_is_refused(command: Command, database: Path) -> None:
    Store.open(str(database)).close()
    with stranger(database) as connection:
        connection.execute("UPDATE jobpool_schema SET version = 99")
    refused(command, database, "schema version 99", "upgrade jobpool")


def test_a_table_named_jobs_of_somebody_else_is_refused_and_left_as_it_is(command: Command, database: Path) -> None:
    with stranger(database) as connection:
        connection.execute("CREATE TABLE jobs (title TEXT)")
    refused(command, database, "a table named jobs that is not jobpool's", "another file")
    assert [each["name"] for each in rows(database, "SELECT name FROM sqlite_schema")] == ["jobs"]


@pytest.mark.parametrize("name", ["Jobs", "attempts", "workers", "pools", "jobs_archive"])
def test_any_table_of_somebody_else_that_is_in_the_way_is_named_with_what_to_do(name: str, database: Path) -> None:
    with stranger(database) as connection:
        connection.execute(f"CREATE TABLE {name} (title TEXT)")
    with pytest.raises(DatabaseUnusable, match=f"a table named {name} that is not jobpool's; use another file"):
        Queue(database)
    assert [each["name"] for each in rows(database, "SELECT name FROM sqlite_schema")] == [name]


def test_an_application_s_own_tables_and_user_version_are_left_alone(database: Path) -> None:
    with stranger(database) as connection:
        connection.execute("CREATE TABLE posts (id INTEGER PRIMARY KEY, title TEXT)")
        connection.execute("PRAGMA user_version = 17")
    Store.open(str(database)).close()
    assert rows(database, "PRAGMA user_version") == [{"user_version": 17}]
    assert rows(database, "SELECT * FROM posts") == []


def test_looking_at_a_database_that_is_not_ours_does_not_make_it_ours(command: Command, database: Path) -> None:
    with stranger(database) as connection:
        connection.execute("CREATE TABLE posts (id INTEGER PRIMARY KEY, title TEXT)")
    for arguments in (["status"], ["list"], ["show", "1"], ["retry", "1"]):
        command(*arguments, "--db", str(database)).refused(4)
    assert [each["name"] for each in rows(database, "SELECT name FROM sqlite_schema")] == ["posts"]


@pytest.mark.parametrize(
    "content", [b"hello, this is no database at all\n" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(
    content: bytes, command: Command, database: Path
) -> None:
    database.write_bytes(content)
    refused(command, database, str(database), "another with --db")
    assert database.read_bytes() == content


def test_a_folder_is_refused(command: Command, tmp_path: Path) -> None:
    refused(command, tmp_path, f"{tmp_path} is a folder, not a database")


def test_a_missing_folder_is_named(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "jobs.db"
    with pytest.raises(DatabaseUnusable, match=f"the folder {path.parent} does not exist"):
        Queue(path)
    command("enqueue", "t", "--db", str(path)).refused(4, f"the folder {path.parent} does not exist")
    command("status", "--db", str(path)).refused(4, "no such database")


def test_reading_a_database_that_is_not_there_does_not_make_it(command: Command, database: Path) -> None:
    for arguments in (
        ["status"],
        ["list"],
        ["show", "1"],
        ["retry", "1"],
        ["archive", "1"],
        ["cancel", "1"],
        ["resume"],
    ):
        command(*arguments).refused(4, "jobs.db: no such database", "POOL_DB")
    assert not database.exists()


# permissions: the tests may run as root, whom no permission stops, so another user tries


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder every user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="jobpool-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_another_user(folder: Path, *arguments: str) -> Result:
    """A command as nobody when we are root; else as ourselves, whom the file modes of these tests stop as well."""
    return run_command(folder, *arguments, user=NOBODY if os.geteuid() == 0 else None)


def test_a_database_of_another_user_is_refused_with_the_file_and_its_owner(shared: Path) -> None:
    database = shared / "jobs.db"
    Store.open(str(database)).close()
    database.chmod(0o600 if os.geteuid() == 0 else 0o000)
    owner = "root" if os.geteuid() == 0 else os.environ.get("USER", "")
    for arguments in (["status"], ["enqueue", "t"], ["run", "--drain"]):
        as_another_user(shared, *arguments).refused(4, "no permission for", "jobs.db", "belongs to", owner)


def test_a_database_one_may_only_read_is_refused_for_writing_the_same_way(shared: Path) -> None:
    database = shared / "jobs.db"
    Store.open(str(database)).close()
    database.chmod(0o644 if os.geteuid() == 0 else 0o444)
    for arguments in (["enqueue", "t"], ["run", "--drain"]):
        as_another_user(shared, *arguments).refused(4, "no permission for", "jobs.db", "mode 0")


def test_a_folder_one_may_not_write_to_is_named(shared: Path) -> None:
    shared.chmod(0o555 if os.geteuid() else 0o755)
    as_another_user(shared, "enqueue", "t").refused(4, "no permission for", str(shared), "belongs to")
    shared.chmod(0o755)


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_log_that_root_left_beside_the_database_is_named(suffix: str, shared: Path) -> None:
    """As after ``sudo pool status``: the database is the user's, the files beside it are not."""
    database = shared / "jobs.db"
    store = Store.open(str(database))
    store.change("resume")
    log = Path(f"{database}{suffix}")
    if os.geteuid() == 0:
        for path in (shared, *(each for each in shared.iterdir() if each != log)):
            os.chown(path, NOBODY, NOBODY)
    log.chmod(0o600 if os.geteuid() == 0 else 0o000)
    as_another_user(shared, "enqueue", "t").refused(4, "no permission for", f"jobs.db{suffix}", "belongs to")
    store.close()


def test_another_user_s_turnstile_file_is_no_obstacle(shared: Path) -> None:
    shared.chmod(0o777)
    (shared / "jobs.db-turn").touch(0o644)
    assert as_another_user(shared, "enqueue", "t").ok().out == "job 1 queued\n"


def on_a_small_disk(folder: Path, script: str) -> Result:
    """A shell script in a file system of 512 kB of its own, which only it sees; "$pool" is the command."""
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]
    mount = f"mount -t tmpfs -o size=512k tmpfs {folder} && cd {folder}"
    pool = f"{sys.executable} -m pool"
    command = [*unshare, "sh", "-c", f"{mount} || exit 99; pool='{pool}'; {script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("this kernel lets only root mount a file system")
    return Result(done.returncode, done.stdout, done.stderr)


def test_a_read_only_file_system_is_called_that_and_not_a_lack_of_permission(shared: Path) -> None:
    for command in ("status", "enqueue t", "run --drain"):
        script = f"$pool enqueue t >/dev/null && mount -o remount,bind,ro {shared} && $pool {command}"
        on_a_small_disk(shared, script).refused(4, "jobs.db", "read-only file system")


def test_a_full_disk_on_which_the_database_cannot_be_opened_is_called_that(shared: Path) -> None:
    for command in ("status", "enqueue t"):
        script = f"$pool enqueue t >/dev/null; cat /dev/zero >fill 2>/dev/null; $pool {command}"
        on_a_small_disk(shared, script).refused(4, "no space is left in", str(shared))


def test_a_handle_that_fails_to_open_leaks_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(DatabaseUnusable):
            Queue(tmp_path / "no" / "jobs.db")
        with pytest.raises((DatabaseUnusable, sqlite3.Error)):
            Queue(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
