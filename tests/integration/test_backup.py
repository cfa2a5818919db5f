"""Backups of a database at work, and putting one back: nothing acknowledged is missing, nothing is ever half there."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool import DatabaseUnusable, Queue, UsageError
from pool.backup import Partial, backup, check_space
from pool.clock import now_text
from pool.restore import SKIPPED_IDS, restore
from pool.store import Store
from tests.conftest import Command, StartPool
from tests.support import environment, eventually, lines, row, rows, statuses, stranger

NOW = "2030-06-01 12:00:00.000"


def folder_of(database: Path) -> set[str]:
    return {name for name in os.listdir(database.parent) if not name.endswith("-turn")}


@contextlib.contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python script in a process of its own, once it has said a word."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], env=environment(), **pipes)  # type: ignore[call-overload]
    try:
        assert process.stdout.readline()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


# backup


def test_a_backup_is_one_verified_file_with_every_job(queue: Queue, database: Path, tmp_path: Path) -> None:
    queue.enqueue_many([("t", {"n": n}) for n in range(1_000)])
    job = queue.claim()
    assert job is not None
    queue.archive(2)
    done = backup(str(database), str(tmp_path / "copy.db"), NOW)
    assert done.jobs == {"queued": 998, "running": 1, "done": 0, "dead": 0, "archive": 1}
    assert done.path == str(tmp_path / "copy.db") and done.bytes == os.stat(done.path).st_size
    assert rows(done.path) == rows(database)  # opened by anyone, without our help
    assert folder_of(database) >= {"jobs.db", "copy.db"} and not [
        name for name in folder_of(database) if "partial" in name
    ]


def test_what_only_the_log_holds_yet_is_in_the_backup(queue: Queue, database: Path, tmp_path: Path) -> None:
    queue.enqueue("t")
    assert os.stat(f"{database}-wal").st_size > 0
    backup(str(database), str(tmp_path / "copy.db"), NOW)
    assert [each["id"] for each in rows(tmp_path / "copy.db")] == [1]


def test_in_a_folder_a_backup_is_named_after_the_time(queue: Queue, database: Path, tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    assert backup(str(database), str(tmp_path / "backups"), NOW).path == str(
        tmp_path / "backups/jobs-20300601T120000Z.db"
    )


def test_a_file_is_never_overwritten_without_force(queue: Queue, database: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(UsageError, match="--force"):
        backup(str(database), str(target), NOW)
    assert target.read_text() == "precious"
    backup(str(database), str(target), NOW, force=True)
    assert rows(target) == []


def test_a_file_that_comes_to_exist_meanwhile_is_not_overwritten_either(tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    with pytest.raises(UsageError, match="exists"), Partial(str(target)) as partial:
        target.write_text("precious")
        partial.publish(like=os.stat(tmp_path), replace=False)
    assert target.read_text() == "precious" and os.listdir(tmp_path) == ["copy.db"]


def test_the_database_itself_is_no_place_for_its_backup(queue: Queue, database: Path, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(database)
    for name in ("jobs.db", "link.db"):
        with pytest.raises(UsageError, match="itself"):
            backup(str(database), str(tmp_path / name), NOW, force=True)


def test_a_damaged_database_gives_no_backup(queue: Queue, database: Path, tmp_path: Path) -> None:
    queue.enqueue_many([("t", {"text": "x" * 500})] * 200)
    queue.close()
    with open(database, "r+b") as file:
        file.seek(os.stat(database).st_size // 2)
        file.write(os.urandom(30_000))
    with pytest.raises(DatabaseUnusable):
        backup(str(database), str(tmp_path / "copy.db"), NOW)
    assert "copy.db" not in os.listdir(tmp_path) and not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_what_is_no_queue_gives_no_backup(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, only a text that is long enough to be read as one")
    with stranger(tmp_path / "other.db") as sql:
        sql.execute("CREATE TABLE posts (id INTEGER)")
    for name in ("missing.db", "text.db", "other.db"):
        with pytest.raises(DatabaseUnusable, match=name):
            backup(str(tmp_path / name), str(tmp_path / "copy.db"), NOW)
    assert not (tmp_path / "copy.db").exists() and not (tmp_path / "missing.db").exists()


def test_room_is_asked_for_before_the_copy_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"MB free and the copy needs .* MB"):
        check_space(str(tmp_path / "copy.db"), 1 << 60)


def test_a_folder_that_is_not_there_is_named(queue: Queue, command: Command) -> None:
    command("backup", "missing/copy.db").refused(2, "missing")
    command("backup", "/dev/null/copy.db").refused(2, "/dev/null")


def test_a_write_that_fails_in_the_middle_leaves_nothing(queue: Queue, database: Path, tmp_path: Path) -> None:
    queue.enqueue_many([("t", {"text": "x" * 500})] * 2_000)
    done = subprocess.run(
        [sys.executable, "-m", "pool", "backup", "copy.db"], cwd=tmp_path, capture_output=True, text=True,
        env=environment(), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
    )  # fmt: skip
    assert done.returncode == 4 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert not [name for name in os.listdir(tmp_path) if "copy" in name]


def test_a_backup_may_be_used_by_those_who_may_use_the_database(queue: Queue, database: Path, tmp_path: Path) -> None:
    database.chmod(0o640)
    backup(str(database), str(tmp_path / "copy.db"), NOW)
    assert os.stat(tmp_path / "copy.db").st_mode & 0o777 == 0o640


def test_two_backups_to_one_file_at_once_do_not_mix(queue: Queue, database: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "copy.db")
    with Partial(target), pytest.raises(UsageError, match="another backup"):
        backup(str(database), target, NOW)
    backup(str(database), target, NOW)


def test_what_a_killed_backup_left_behind_is_used_again(queue: Queue, database: Path, tmp_path: Path) -> None:
    for suffix in ("", "-wal", "-journal"):
        (tmp_path / f".copy.db.partial{suffix}").write_bytes(b"half a backup" * 1_000)
    backup(str(database), str(tmp_path / "copy.db"), NOW)
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_writers_go_on_while_a_backup_is_taken(queue: Queue, database: Path, tmp_path: Path) -> None:
    """And the copy is of one instant: of each transaction of theirs all or nothing."""
    queue.enqueue_many([("t", {"text": "x" * 200})] * 20_000)
    over = threading.Event()
    written: list[int] = []

    def write() -> None:
        with Queue(database) as other:
            while not over.is_set():
                written.append(other.enqueue_many([("pair", None)] * 2))

    thread = threading.Thread(target=write)
    thread.start()
    eventually(lambda: written)
    before = len(written)
    done = backup(str(database), str(tmp_path / "copy.db"), NOW)
    after = len(written)
    over.set()
    thread.join()
    pairs = done.jobs["queued"] - 20_000
    assert after > before and pairs % 2 == 0 and 2 * before <= pairs <= 2 * (after + 1)


def test_progress_is_told_in_bytes_and_never_goes_back(queue: Queue, database: Path, tmp_path: Path) -> None:
    queue.enqueue_many([("t", {"text": "x" * 300})] * 60_000)
    told: list[tuple[int, int]] = []
    backup(str(database), str(tmp_path / "copy.db"), NOW, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told) and all(0 <= done <= total for done, total in told)
    assert told[-1][0] == told[-1][1] > 0


# restore


@pytest.fixture
def saved(queue: Queue, database: Path, tmp_path: Path) -> Path:
    """A backup with job 1 done, 2 running at its second attempt, 3 queued; the queue is closed."""
    for _ in range(3):
        queue.enqueue("t")
    first, second = queue.claim(), queue.claim()
    assert first is not None and second is not None
    queue.complete(first)
    queue.fail(second, "once", delay=0)
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET priority = -1 WHERE id = 2")
    second = queue.claim()
    assert second is not None and (second.id, second.attempts) == (2, 2)
    path = tmp_path / "saved.db"
    backup(str(database), str(path), NOW)
    queue.close()
    return path


def test_a_restore_puts_the_backup_there_and_keeps_the_old_file(saved: Path, database: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue("later")
    done = restore(str(saved), str(database), "anna@host", NOW, force=True)
    assert statuses(database) == {"done": 1, "queued": 2} and done.jobs["queued"] == 2
    assert done.kept == f"{database}.before-restore-20300601T120000Z"
    assert [each["type"] for each in rows(done.kept)] == ["t", "t", "t", "later"]
    # The undo is a restore of that one.
    again = restore(done.kept, str(database), "anna@host", NOW, force=True)
    assert statuses(database) == {"done": 1, "queued": 3} and again.kept == f"{done.kept}-2"
    with Queue(database) as queue:
        assert queue.claim() is not None


def test_jobs_that_ran_are_queued_again_with_their_attempt_given_back(saved: Path, database: Path) -> None:
    assert row(saved, 2)["status"] == "running"  # the backup keeps what was
    done = restore(str(saved), str(database), "anna@host", NOW, force=True)
    found = row(database, 2)
    assert (done.returned, found["status"], found["attempts"]) == (1, "queued", 1)
    assert found["locked_by"] is found["locked_at"] is None
    last = rows(database, "SELECT * FROM attempts ORDER BY id")[-1]
    assert (last["job_id"], last["attempt"], last["outcome"]) == (2, 2, "interrupted")


def test_a_restore_is_on_record(saved: Path, database: Path) -> None:
    restore(str(saved), str(database), "anna@host", NOW, force=True)
    (line,) = rows(database, "SELECT * FROM audit")
    assert (line["by"], line["action"], line["at"], line["jobs"]) == ("anna@host", "restore", NOW, 1)
    assert str(saved) in line["detail"]


def test_who_was_at_work_then_is_forgotten(saved: Path, database: Path) -> None:
    with stranger(saved) as sql:
        register(sql, machine="another")
        sql.execute(
            """INSERT INTO workers
            (identity, pool_id, number, machine, boot_id, pid_namespace, pid, start_time, started_at)
            VALUES ('w', 1, 1, 'another', '', '', 1, 1, '')"""
        )
    restore(str(saved), str(database), "me", NOW, force=True)
    assert rows(database, "SELECT * FROM pools") == rows(database, "SELECT * FROM workers") == []


def test_an_id_given_out_after_the_backup_is_never_given_out_again(saved: Path, database: Path, tmp_path: Path) -> None:
    with Queue(database) as queue:
        last = [queue.enqueue("after").id for _ in range(5)][-1]
    restore(str(saved), str(database), "me", NOW, force=True)
    with Queue(database) as queue:
        assert queue.enqueue("t").id == last + 1
    # Where nobody can say how many were given out, a gap is left that nobody can have used up.
    restore(str(saved), str(tmp_path / "elsewhere.db"), "me", NOW)
    with Queue(tmp_path / "elsewhere.db") as queue:
        assert queue.enqueue("t").id == 3 + SKIPPED_IDS + 1


def test_an_existing_database_is_not_replaced_without_force(saved: Path, database: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue("later")
    with pytest.raises(UsageError, match="--force"):
        restore(str(saved), str(database), "me", NOW)
    assert len(rows(database)) == 4


@pytest.mark.parametrize("damage", ["torn", "text", "other", "newer", "missing"])
def test_a_backup_that_is_not_whole_replaces_nothing(damage: str, saved: Path, database: Path, tmp_path: Path) -> None:
    before = rows(database)
    if damage == "torn":
        saved.write_bytes(saved.read_bytes()[:-5_000])
    elif damage == "text":
        saved.write_text("not a database, but long enough to be taken for one")
    elif damage == "missing":
        saved.unlink()
    else:
        with stranger(saved) as sql:
            sql.execute("DROP TABLE jobpool_schema" if damage == "other" else "UPDATE jobpool_schema SET version = 99")
    with pytest.raises(DatabaseUnusable, match="saved"):
        restore(str(saved), str(database), "me", NOW, force=True)
    assert rows(database) == before
    assert not [name for name in os.listdir(tmp_path) if "partial" in name or "before" in name]


def test_a_backup_on_a_medium_that_cannot_be_written_is_only_read(saved: Path, database: Path, tmp_path: Path) -> None:
    (tmp_path / "medium").mkdir()
    there = saved.rename(tmp_path / "medium/saved.db")
    there.chmod(0o444)
    (tmp_path / "medium").chmod(0o555)
    content = there.read_bytes()
    restore(str(there), str(database), "me", NOW, force=True)
    (tmp_path / "medium").chmod(0o755)
    assert os.listdir(tmp_path / "medium") == ["saved.db"] and there.read_bytes() == content


def test_a_copy_of_the_bare_files_of_a_killed_pool_can_be_restored(
    queue: Queue, database: Path, tmp_path: Path
) -> None:
    """With what only their log holds."""
    queue.enqueue("t")
    for suffix in ("", "-wal"):
        (tmp_path / f"bare.db{suffix}").write_bytes(Path(f"{database}{suffix}").read_bytes())
    restore(str(tmp_path / "bare.db"), str(tmp_path / "new.db"), "me", NOW)
    assert len(rows(tmp_path / "new.db")) == 1


def test_a_log_left_behind_is_never_played_into_the_restored_file(saved: Path, database: Path, tmp_path: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue_many([("after", None)] * 50)
        stale = Path(f"{database}-wal").read_bytes()
    database.unlink()
    Path(f"{database}-wal").write_bytes(stale)
    Path(f"{database}-shm").write_bytes(b"\0" * 32_768)
    restore(str(saved), str(database), "me", NOW)
    assert len(rows(database)) == 3
    with stranger(database) as sql:
        assert sql.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_database_too_damaged_to_open_is_set_aside_with_its_log(saved: Path, database: Path) -> None:
    database.write_bytes(b"SQLite format 3\0" + os.urandom(8_000))
    Path(f"{database}-wal").write_bytes(b"its log")
    done = restore(str(saved), str(database), "me", NOW, force=True)
    assert done.kept is not None and Path(f"{done.kept}-wal").read_bytes() == b"its log"
    assert len(rows(database)) == 3


def test_a_link_stays_a_link_to_the_restored_file(saved: Path, database: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    real = database.rename(tmp_path / "data/real.db")
    database.symlink_to(real)
    restore(str(saved), str(database), "me", NOW, force=True)
    assert database.is_symlink() and real.is_file() and len(rows(database)) == 3


def test_the_mode_of_the_old_file_is_the_new_one_s(saved: Path, database: Path) -> None:
    database.chmod(0o600)
    restore(str(saved), str(database), "me", NOW, force=True)
    assert os.stat(database).st_mode & 0o777 == 0o600


# not while anybody is at it


def register(sql: sqlite3.Connection, *, machine: str, seen_at: str = NOW) -> None:
    sql.execute(
        """INSERT INTO pools
        (host, machine, boot_id, pid_namespace, pid, start_time, started_at, seen_at, state, target)
        VALUES ('far', ?, 'another boot', 'pid:[1]', 7, 7, ?2, ?2, 'running', 1)""",
        (machine, seen_at),
    )


def test_a_restore_is_refused_while_a_pool_runs(saved: Path, database: Path, pool: StartPool, command: Command) -> None:
    running = pool().ready()
    said = command("restore", str(saved), "--force").refused(2, str(database), "stop it first").err
    assert f"{running.pid}" in said or any(f"{pid}" in said for pid in running.children())
    assert running.stop() == 0
    assert command("restore", str(saved), "--force").ok()


def test_a_restore_is_refused_while_any_other_process_has_the_database_open(
    saved: Path, database: Path, command: Command
) -> None:
    script = (
        "import sys; from pool import Queue; q = Queue(sys.argv[1]); print('open', flush=True); sys.stdin.readline()"
    )
    with running(script, str(database)) as application:
        command("restore", str(saved), "--force").refused(2, f"process {application.pid}", "has", "open")
    command("restore", str(saved), "--force").ok()


def test_a_restore_is_refused_while_this_very_process_has_the_database_open(saved: Path, database: Path) -> None:
    with Queue(database) as queue, pytest.raises(UsageError, match="close it first"):
        queue.enqueue("t")
        restore(str(saved), str(database), "me", NOW, force=True)


def test_a_pool_that_cannot_be_seen_counts_as_alive_until_it_is_long_silent(saved: Path, database: Path) -> None:
    with stranger(database) as sql:
        register(sql, machine="another", seen_at="2030-06-01 11:55:00.000")
    with pytest.raises(UsageError, match="a pool on far, pid 7, reported"):
        restore(str(saved), str(database), "me", NOW, force=True)
    restore(str(saved), str(database), "me", "2030-06-01 12:30:00.000", force=True)


def test_a_pool_that_was_killed_does_not_stand_in_the_way(
    saved: Path, database: Path, pool: StartPool, command: Command
) -> None:
    killed = pool().ready()
    killed.signal(signal.SIGKILL)
    killed.wait()
    eventually(lambda: not killed.children())
    assert rows(database, "SELECT * FROM pools")
    eventually(lambda: command("restore", str(saved), "--force").code == 0, what="its workers are gone within moments")


# the drill

PRODUCER = """
import sys
from pool import Queue
queue = Queue(sys.argv[1])
with open(sys.argv[2], "a") as acknowledged:
    for number in range(1_000_000):
        job = queue.enqueue("note", {"path": sys.argv[3], "line": str(number)}, key=f"k{number}")
        acknowledged.write(f"{job.id}\\n")
        acknowledged.flush()
        if number == 200:
            print("going", flush=True)
"""


def test_the_drill_backup_under_load_kill_everything_restore_and_nothing_acknowledged_is_missing(
    queue: Queue, database: Path, tmp_path: Path, pool: StartPool, command: Command
) -> None:
    acknowledged, out = tmp_path / "acknowledged", tmp_path / "out"
    first = pool(workers=2).ready(2)
    queue.close()
    with running(PRODUCER, str(database), str(acknowledged), str(out)) as producer:
        eventually(lambda: len(lines(out)) > 100)
        before = {int(each) for each in lines(acknowledged)}
        copied = command("backup", "saved.db", "--json").ok().json()
        eventually(lambda: len(lines(acknowledged)) > len(before) + 200, what="it goes on after the backup")
        for pid in (producer.pid, first.pid, *first.children()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        producer.wait()
    first.wait()
    os.unlink(database)  # the disk is gone
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{database}{suffix}")
    restored = command("restore", "saved.db", "--json").ok().json()
    assert restored["jobs"]["running"] == 0 and sum(restored["jobs"].values()) == sum(copied["jobs"].values())
    assert before <= {each["id"] for each in rows(database)}
    # And the queue goes on: each job of the backup ends, those that ran when it was taken as well.
    pool(workers=2)
    total = sum(restored["jobs"].values())
    eventually(lambda: statuses(database) == {"done": total}, seconds=60)
    ran = {json.loads(each["payload"])["line"] for each in rows(database)}
    assert ran <= set(lines(out))


def test_a_backup_killed_in_the_middle_leaves_the_old_one_whole(queue: Queue, database: Path, tmp_path: Path) -> None:
    queue.enqueue("first")
    backup(str(database), str(tmp_path / "copy.db"), NOW)
    queue.enqueue_many([("t", {"text": "x" * 500})] * 40_000)
    arguments = [sys.executable, "-m", "pool", "backup", "copy.db", "--force"]
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, env=environment())
    try:
        partial = tmp_path / ".copy.db.partial"
        eventually(lambda: partial.exists() and partial.stat().st_size > 1_000_000)
    finally:
        process.kill()
        process.wait()
    assert len(rows(tmp_path / "copy.db")) in (1, 40_001)  # the old one, or, had it just ended, the whole new one
    backup(str(database), str(tmp_path / "copy.db"), now_text(), force=True)
    assert len(rows(tmp_path / "copy.db")) == 40_001


def test_the_command_says_where_how_large_and_what_is_in_it(saved: Path, database: Path, command: Command) -> None:
    said = command("backup", "new.db").ok().out
    assert "new.db" in said and "verified" in said and "1 queued, 1 running, 1 done, 0 dead, 0 archived" in said
    restored = command("restore", "new.db", "--force").ok().out
    assert "2 queued" in restored and "1 job that ran when the backup was taken" in restored
    assert "before-restore" in restored
    store = Store.open(str(database))
    assert store.connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    store.close()
