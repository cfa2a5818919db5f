"""A program in any language, with nothing but the SQL of the contract, beside our own workers."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pool import Queue
from pool.clock import now_text, parse_utc, utc_text
from pool.maintenance import adopt, expire_leases
from pool.store import Store
from tests.support import Pool, eventually, lines, row, rows, settled, statuses, stranger

ENQUEUE = "INSERT INTO jobs(type, payload, idempotency_key) VALUES (?,?,?) ON CONFLICT(idempotency_key) DO NOTHING"
CLAIM = """UPDATE jobs SET status='running', locked_by=?, locked_at=CURRENT_TIMESTAMP, attempts=attempts+1,
    updated_at=CURRENT_TIMESTAMP
    WHERE id=(SELECT id FROM jobs WHERE status='queued' AND run_at<=CURRENT_TIMESTAMP ORDER BY run_at,id LIMIT 1)
    AND status='queued' AND run_at<=CURRENT_TIMESTAMP RETURNING id,type,payload,attempts,max_attempts"""
COMPLETE = """UPDATE jobs SET status='done', locked_by=NULL, locked_at=NULL, updated_at=CURRENT_TIMESTAMP
    WHERE id=? AND status='running' AND locked_by=? AND attempts=?"""
FAIL = """UPDATE jobs SET status=CASE WHEN attempts>=max_attempts THEN 'dead' ELSE 'queued' END,
    run_at=datetime('now', '+'||(attempts*attempts)||' minutes'), last_error=?, locked_by=NULL, locked_at=NULL,
    updated_at=CURRENT_TIMESTAMP WHERE id=? AND status='running' AND locked_by=? AND attempts=?"""
REQUEUE = """UPDATE jobs SET status='queued', locked_by=NULL, locked_at=NULL, attempts=0, run_at=CURRENT_TIMESTAMP
    WHERE id=? AND status='dead'"""
ME = "go-host:77:abc"


def test_enqueue_claim_fail_requeue_and_complete_work_over_a_plain_connection(store: Store, database: Path) -> None:
    with stranger(database) as sql:
        for _ in range(2):
            sql.execute(ENQUEUE, ("t", '{"a": 1}', "key"))
        assert len(rows(database)) == 1
        for attempt in (1, 2):
            (claimed,) = sql.execute(CLAIM, (ME,)).fetchall()
            assert claimed == (1, "t", '{"a": 1}', attempt, 5)
            assert sql.execute(CLAIM, (ME,)).fetchall() == []
            sql.execute("UPDATE jobs SET max_attempts = 2")
            assert sql.execute(FAIL, ("no luck", 1, ME, attempt)).rowcount == 1
            assert sql.execute(CLAIM, (ME,)).fetchall() == []
            assert row(database)["status"] == ("queued", "dead")[attempt - 1]
            sql.execute("UPDATE jobs SET run_at = CURRENT_TIMESTAMP, max_attempts = 5 WHERE status = 'queued'")
        assert sql.execute(REQUEUE, (1,)).rowcount == 1
        (claimed,) = sql.execute(CLAIM, (ME,)).fetchall()
        assert sql.execute(COMPLETE, (1, ME, 1)).rowcount == 1
        assert sql.execute(COMPLETE, (1, ME, 1)).rowcount == 0
    assert row(database)["status"] == "done"


def test_a_strangers_retry_waits_the_same_time_as_ours(store: Store, queue: Queue, database: Path) -> None:
    for _ in range(2):
        queue.enqueue("t")
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET attempts = 2, run_at = CURRENT_TIMESTAMP WHERE id = 1")
        (claimed,) = sql.execute(CLAIM, (ME,)).fetchall()
        sql.execute(FAIL, ("no luck", 1, ME, claimed[3]))
        sql.execute("UPDATE jobs SET attempts = 2 WHERE id = 2")
    ours = queue.claim()
    assert ours is not None and queue.fail(ours, "no luck")
    theirs, mine = (parse_utc(row(database, each)["run_at"]) for each in (1, 2))
    assert abs(theirs - mine) < 5 and row(database, 2)["last_error"] == "no luck"


def test_our_claim_takes_a_strangers_job_and_a_stranger_ours(store: Store, queue: Queue, database: Path) -> None:
    with stranger(database) as sql:
        sql.execute(ENQUEUE, ("theirs", "[1]", None))
        job = queue.claim()
        assert job is not None and (job.type, job.payload) == ("theirs", [1])
        queue.enqueue("ours", {"a": "é"})
        sql.execute("UPDATE jobs SET run_at = CURRENT_TIMESTAMP WHERE type = 'ours'")  # theirs are whole seconds
        (claimed,) = sql.execute(CLAIM, (ME,)).fetchall()
        assert claimed[1:3] == ("ours", '{"a":"é"}')


def claim_as_stranger(database: Path, age: int = 0) -> None:
    with stranger(database) as sql:
        sql.execute(ENQUEUE, ("t", "{}", None))
        assert sql.execute(CLAIM, (ME,)).fetchall()
        sql.execute("UPDATE jobs SET locked_at = datetime('now', ?) WHERE locked_by = ?", (f"-{age} seconds", ME))


def test_a_strangers_lease_is_respected_until_it_is_old_and_then_reaped(store: Store, database: Path) -> None:
    claim_as_stranger(database, age=590)
    assert adopt(store, now_text(), None).jobs == []
    assert expire_leases(store, now_text(), 600.0) == []
    assert row(database)["locked_by"] == ME
    later = utc_text(parse_utc(now_text()) + 60)
    (ended,) = expire_leases(store, later, 600.0)
    assert (ended.job_id, ended.worker, ended.status) == (1, ME, "queued")
    found = row(database)
    assert (found["status"], found["attempts"], found["locked_by"], found["locked_at"]) == ("queued", 1, None, None)
    assert "go-host:77:abc was not renewed since" in found["last_error"]


def test_a_reaped_job_whose_tries_are_used_up_is_dead(store: Store, database: Path) -> None:
    claim_as_stranger(database, age=601)
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET max_attempts = 1")
    (ended,) = expire_leases(store, now_text(), 600.0)
    assert ended.status == row(database)["status"] == "dead"


def test_the_name_of_our_own_host_and_a_dead_pid_prove_nothing(store: Store, database: Path) -> None:
    with stranger(database) as sql:
        sql.execute(ENQUEUE, ("t", "{}", None))
        job = store.claim(f"{socket.gethostname()}:4194303:abcdef", now_text())
    assert job is not None
    assert adopt(store, now_text(), None).jobs == []
    assert expire_leases(store, now_text(), 600.0) == []


def test_a_lease_without_a_time_is_old(store: Store, database: Path) -> None:
    with stranger(database) as sql:
        sql.execute("INSERT INTO jobs (type, payload, status, attempts) VALUES ('t', '{}', 'running', 1)")
    (ended,) = expire_leases(store, now_text(), 600.0)
    assert ended.status == row(database)["status"] == "queued"


def test_a_stranger_who_comes_back_late_changes_nothing(store: Store, queue: Queue, database: Path) -> None:
    claim_as_stranger(database, age=601)
    expire_leases(store, now_text(), 600.0)
    job = queue.claim()
    assert job is not None and job.attempts == 2
    before = row(database)
    with stranger(database) as sql:
        assert sql.execute(COMPLETE, (1, ME, 1)).rowcount == 0
        assert sql.execute(FAIL, ("late", 1, ME, 1)).rowcount == 0
    assert row(database) == before and queue.complete(job)


def work_as_stranger(database: Path, ran: Path) -> int:
    """Claim and complete until nothing is due; how many."""
    count = 0
    with stranger(database) as sql:
        while claimed := sql.execute(CLAIM, (ME,)).fetchall():
            job_id, _, payload, attempts, _ = claimed[0]
            with open(ran, "a") as file:
                file.write(json.loads(payload)["line"] + "\n")
            if job_id % 10 == 0:
                assert sql.execute(FAIL, ("no luck", job_id, ME, attempts)).rowcount == 1
            else:
                assert sql.execute(COMPLETE, (job_id, ME, attempts)).rowcount == 1
            count += 1
    return count


def test_strangers_and_our_workers_share_one_queue_and_every_job_runs_once(
    pool: Callable[..., Pool], queue: Queue, database: Path, tmp_path: Path
) -> None:
    ran, total = tmp_path / "ran", 400
    running = pool(workers=2).ready(2)
    with stranger(database) as sql:
        sql.execute("BEGIN")
        sql.executemany(ENQUEUE, [("note", f'{{"path": "{ran}", "line": "{n}"}}', f"k{n}") for n in range(total)])
        sql.execute("COMMIT")
    theirs = work_as_stranger(database, ran)
    eventually(lambda: not statuses(database).get("running") and len(lines(ran)) == total)
    assert Counter(lines(ran)) == dict.fromkeys(map(str, range(total)), 1)
    waiting = rows(database, "SELECT * FROM jobs WHERE status = 'queued'")
    assert all(each["last_error"] == "no luck" and each["attempts"] == 1 for each in waiting)
    assert statuses(database)["done"] + len(waiting) == total
    assert theirs > 0 and statuses(database)["done"] > 0
    assert running.stop() == 0


def test_a_running_pool_leaves_a_strangers_fresh_lease_alone_and_ends_an_old_one(
    pool: Callable[..., Pool], store: Store, database: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    with stranger(database) as sql:
        for line in ("old", "fresh"):
            sql.execute(ENQUEUE, ("note", f'{{"path": "{ran}", "line": "{line}"}}', None))
            assert sql.execute(CLAIM, (ME + line,)).fetchall()
        sql.execute("UPDATE jobs SET locked_at = datetime('now', '-11 minutes') WHERE id = 1")
    running = pool().ready()
    eventually(lambda: row(database, 1)["status"] == "done")
    assert lines(ran) == ["old"] and row(database, 1)["attempts"] == 2
    assert (row(database, 2)["status"], row(database, 2)["locked_by"]) == ("running", ME + "fresh")
    assert running.stop() == 0
    assert row(database, 2)["locked_by"] == ME + "fresh"


def test_a_dead_job_requeued_by_sql_runs_again(
    pool: Callable[..., Pool], queue: Queue, database: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    queue.enqueue("note", {"path": str(ran)})
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET status = 'dead', attempts = 5, last_error = 'x'")
        pool().ready()
        assert sql.execute(REQUEUE, (1,)).rowcount == 1
    eventually(lambda: settled(database, done=1))
    assert lines(ran) == [""]


def test_a_reader_that_is_not_read_to_its_end_stops_no_writer(queue: Queue, database: Path) -> None:
    queue.enqueue_many([("t",)] * 100)
    with stranger(database) as sql:
        cursor = sql.execute("SELECT * FROM jobs")
        cursor.fetchone()
        job = queue.claim()
        assert job is not None and queue.complete(job)
        cursor.close()


def test_a_transaction_that_reads_first_and_writes_later_fails_alone(queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    with stranger(database) as sql:
        sql.execute("BEGIN")
        sql.execute("SELECT * FROM jobs").fetchall()
        assert queue.enqueue("t").created
        try:
            sql.execute(ENQUEUE, ("t", "{}", None))
            raise AssertionError("SQLite let a stale snapshot write")
        except sqlite3.OperationalError:
            sql.execute("ROLLBACK")
        sql.execute(ENQUEUE, ("t", "{}", None))
    assert len(rows(database)) == 3


def test_a_row_of_nonsense_of_a_grouped_type_is_claimed_alone_and_keeps_nobody_waiting(
    store: Store, database: Path
) -> None:
    with stranger(database) as sql:
        sql.execute("INSERT INTO jobs (type, payload, crashes) VALUES ('t', '{}', '')")
        sql.execute("INSERT INTO jobs (type, payload, run_at) VALUES ('other', '{}', datetime('now', '+1 second'))")
    now = utc_text(parse_utc(now_text()) + 2)
    claims = [store.claim_group("one", {"t": 8}, now) for _ in range(3)]
    assert [[job.id for job in claimed] for claimed in claims] == [[1], [2], []]
