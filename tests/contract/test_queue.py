"""The Python API: what the docstrings of Queue promise."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pool import PayloadError, Queue, Spec, UsageError, handler
from pool.clock import parse_utc
from pool.job import retry_delay
from tests.support import eventually, race, row, rows, statuses, stranger


def payload_of(database: Path, job_id: int = 1) -> str:
    return str(row(database, job_id)["payload"])


# enqueue


def test_an_enqueue_answers_with_the_id_and_whether_it_was_new(queue: Queue) -> None:
    assert queue.enqueue("t", {"a": 1}) == (1, True)
    assert queue.enqueue("t", key="k") == (2, True)
    assert queue.enqueue("other", {"b": 1}, key="k") == (2, False)


def test_a_key_that_is_there_already_changes_nothing_of_the_first_job(queue: Queue, database: Path) -> None:
    queue.enqueue("t", {"a": 1}, key="k", priority=3, delay=60, max_attempts=2, timeout=5)
    before = row(database)
    queue.enqueue("t", {"a": 2}, key="k")
    assert row(database) == before


def test_options_are_stored_as_given(queue: Queue, database: Path) -> None:
    queue.enqueue("t", [1], key="k", priority=-3, max_attempts=7, timeout=2.5)
    found = row(database)
    assert (found["payload"], found["priority"], found["max_attempts"], found["timeout_seconds"]) == ("[1]", -3, 7, 2.5)


def test_no_payload_means_no_arguments(queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    assert payload_of(database) == "{}"


@pytest.mark.parametrize("value", [0, "", False, [], {}, 0.5, "é🙂", {"a": {"b": [None, True]}}])
def test_any_json_value_is_a_payload(value: Any, queue: Queue) -> None:
    queue.enqueue("t", value)
    job = queue.claim()
    assert job is not None and job.payload == value and type(job.payload) is type(value)


def test_an_integer_of_ten_thousand_digits_comes_back_whole(queue: Queue) -> None:
    queue.enqueue("t", {"n": 10**10_000 - 1})
    job = queue.claim()
    assert job is not None and job.payload == {"n": 10**10_000 - 1}


@pytest.mark.parametrize(
    "value",
    [{"a": float("nan")}, {"a": "\ud800"}, {1: 2}, {"a": {1}}, {"a": b""}],
    ids=["nan", "surrogate", "key", "set", "bytes"],
)
@pytest.mark.parametrize("where", ["enqueue", "enqueue_many", "complete"])
def test_a_value_json_cannot_hold_is_refused_and_nothing_is_stored(
    where: str, value: Any, queue: Queue, database: Path
) -> None:
    queue.enqueue("t")
    job = queue.claim()
    assert job is not None
    before = rows(database)
    with pytest.raises(PayloadError, match=r"^(payload|result)(\.a)? "):
        if where == "enqueue":
            queue.enqueue("t", value)
        elif where == "enqueue_many":
            queue.enqueue_many([("t", 1), ("t", value)])
        else:
            queue.complete(job, value)
    assert rows(database) == before


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"type": ""}, "type"),
    ({"type": " \n"}, "type"),
    ({"type": None}, "type"),
    ({"type": b"t"}, "type"),
    ({"type": "\ud800"}, "type"),
    ({"key": ""}, "key"),
    ({"key": 5}, "key"),
    ({"key": "k\udfff"}, "key"),
    ({"priority": 1.5}, "priority"),
    ({"priority": "1"}, "priority"),
    ({"priority": 2**40}, "priority"),
    ({"priority": None}, "priority"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": 1.0}, "max_attempts"),
    ({"max_attempts": True}, "max_attempts"),
    ({"max_attempts": 2**31}, "max_attempts"),
    ({"delay": -1}, "delay"),
    ({"delay": "5"}, "delay"),
    ({"delay": float("nan")}, "delay"),
    ({"delay": timedelta(seconds=-1)}, "delay"),
    ({"run_at": datetime(2026, 1, 1)}, "time zone"),
    ({"run_at": "2026-01-01"}, "run_at"),
    ({"run_at": float("inf")}, "run_at"),
    ({"run_at": datetime.now(UTC), "delay": 5}, "not both"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": True}, "timeout"),
    ({"durable": "fully"}, "durable"),
]


@pytest.mark.parametrize(("options", "named"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_an_argument_that_can_never_work_is_named_in_one_line_and_nothing_is_stored(
    options: dict[str, Any], named: str, queue: Queue, database: Path
) -> None:
    with pytest.raises(UsageError, match=named) as error:
        queue.enqueue(**{"type": "t", **options})
    assert "\n" not in str(error.value)
    str(error.value).encode()
    assert rows(database) == []


def test_an_endless_or_very_long_timeout_is_no_limit_a_worker_could_choke_on(queue: Queue, database: Path) -> None:
    for timeout in (float("inf"), 1e300, 1e10):
        queue.enqueue("t", timeout=timeout)
    for each in rows(database):
        assert 0 < each["timeout_seconds"] * 1e9 < 2**63  # the nanoseconds a worker counts in


@pytest.mark.parametrize("options", [{"timeout": timedelta(minutes=1)}, {"delay": timedelta(minutes=1)}])
def test_a_timedelta_is_as_good_as_seconds(options: dict[str, Any], queue: Queue, database: Path) -> None:
    queue.enqueue("t", **options)
    found = row(database)
    waits = parse_utc(found["run_at"]) - parse_utc(found["created_at"])
    assert found["timeout_seconds"] == 60 or abs(waits - 60) < 1


def test_one_instant_in_two_zones_is_one_run_at(queue: Queue, database: Path) -> None:
    india = timezone(timedelta(hours=5, minutes=30))
    queue.enqueue("t", run_at=datetime(2036, 12, 1, 8, 0, tzinfo=UTC))
    queue.enqueue("t", run_at=datetime(2036, 12, 1, 13, 30, tzinfo=india))
    assert {each["run_at"] for each in rows(database)} == {"2036-12-01 08:00:00.000"}


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_any_aware_datetime_is_stored_in_text_that_sorts(year: int, queue: Queue, database: Path) -> None:
    queue.enqueue("t", run_at=datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-14))))
    assert "1970-01-01 00:00:00.000" <= row(database)["run_at"] <= "9999-12-31 00:00:00.000"
    assert (queue.claim() is None) == (year == 9999)


def test_lower_priorities_then_older_due_times_then_lower_ids_come_first(queue: Queue) -> None:
    for priority, delay in ((1, 0), (0, 0), (-1, 3600), (0, 0), (-1, 0)):
        queue.enqueue("t", priority=priority, delay=delay)
    claimed = [job.id for job in iter(queue.claim, None) if job is not None]
    assert claimed == [5, 2, 4, 1]


def test_a_handler_declared_here_says_how_many_tries_its_jobs_get(queue: Queue, database: Path) -> None:
    @handler("declared-here", max_attempts=9)
    def function(a: int) -> None: ...

    queue.enqueue("declared-here")
    queue.enqueue("declared-here", max_attempts=2)
    queue.enqueue_many([("declared-here",)])
    function.enqueue(queue, a=1)
    function.options(max_attempts=3, key="k").enqueue(queue, 1)
    assert [each["max_attempts"] for each in rows(database)] == [9, 2, 9, 9, 3]
    assert payload_of(database, 4) == payload_of(database, 5) == '{"a":1}'
    with pytest.raises(TypeError, match="argument"):
        function.enqueue(queue, b=1)  # type: ignore[call-arg]


# enqueue_many


def test_many_jobs_may_be_specs_tuples_and_mappings(queue: Queue, database: Path) -> None:
    items: list[Any] = [
        Spec("t", {"a": 1}, key="k"),
        ("t", [2]),
        {"type": "t", "payload": 3, "priority": 4},
        ("t", 1, "k"),
    ]
    assert queue.enqueue_many(items) == 3
    assert [(each["payload"], each["priority"]) for each in rows(database)] == [('{"a":1}', 0), ("[2]", 0), ("3", 4)]


def test_jobs_in_bulk_are_stored_as_they_are_one_by_one(queue: Queue, database: Path) -> None:
    """More than one INSERT takes, and some left over; keys come again within one INSERT and in another."""
    items = [
        Spec(
            "t" if n % 2 else "u",
            {"n": n},
            f"key {n % 90}" if n < 270 else None,
            n % 3,
            None,
            None,
            n % 4 + 1,
            n % 5 + 1,
        )
        for n in range(330)
    ]
    for each in items:
        queue.enqueue(**each._asdict())
    given = ("type", "payload", "idempotency_key", "priority", "max_attempts", "timeout_seconds", "status", "attempts")

    def stored() -> list[list[Any]]:
        return [[each[column] for column in given] for each in rows(database, "SELECT * FROM jobs ORDER BY id")]

    singly = stored()
    with stranger(database) as sql:
        sql.execute("DELETE FROM jobs")
    assert queue.enqueue_many(items) == len(singly) == 150
    assert stored() == singly


def test_an_iterator_is_taken_chunk_by_chunk_and_never_whole(queue: Queue, database: Path) -> None:
    taken = 0
    stored_when_asked: list[int] = []

    def endless() -> Iterator[tuple[str]]:
        nonlocal taken
        for taken in itertools.count(1):
            if taken % 100 == 1:
                stored_when_asked.append(len(rows(database)))
            if taken == 1001:
                raise RuntimeError("the source broke")
            yield ("t",)

    with pytest.raises(RuntimeError, match="the source broke"):
        queue.enqueue_many(endless(), chunk=100)
    assert stored_when_asked == list(range(0, 1001, 100))
    assert len(rows(database)) == 1000


def test_a_bad_item_takes_its_own_chunk_with_it_and_no_other(queue: Queue, database: Path) -> None:
    items: list[Any] = [("t",)] * 25 + [("t", float("nan"))] + [("t",)] * 25
    with pytest.raises(PayloadError):
        queue.enqueue_many(items, chunk=10)
    assert len(rows(database)) == 20
    assert queue.enqueue("t").created  # and the queue works on


@pytest.mark.parametrize("item", ["t", 5, None, {"payload": 1}, {"type": "t", "typo": 1}, ["t"]])
def test_an_item_of_another_kind_is_refused(item: Any, queue: Queue, database: Path) -> None:
    with pytest.raises(UsageError):
        queue.enqueue_many([("t",), item])
    assert rows(database) == []


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_of_nothing_is_refused_not_taken_as_nothing_to_do(chunk: int, queue: Queue) -> None:
    with pytest.raises((UsageError, ValueError), match="chunk"):
        queue.enqueue_many([("t",)], chunk=chunk)


def test_nothing_to_enqueue_is_nothing(queue: Queue) -> None:
    assert queue.enqueue_many([]) == 0


# the caller's own transaction


def dictionaries(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip((each[0] for each in cursor.description), values, strict=True))


FACTORIES: list[Any] = [None, dictionaries, sqlite3.Row]


@pytest.mark.parametrize("factory", FACTORIES, ids=["tuples", "dictionaries", "Row"])
def test_a_job_enqueued_in_the_caller_s_transaction_is_there_when_that_commits(
    factory: Any, queue: Queue, database: Path
) -> None:
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE posts (title TEXT)")
    connection.row_factory = factory
    with connection:
        connection.execute("INSERT INTO posts VALUES ('hello')")
        assert queue.enqueue("t", key="k", connection=connection) == (1, True)
        assert queue.enqueue("t", key="k", connection=connection) == (1, False)
        assert rows(database) == []
    assert len(rows(database)) == len(rows(database, "SELECT * FROM posts")) == 1
    assert connection.row_factory is factory
    connection.close()


def test_a_job_enqueued_in_the_caller_s_transaction_is_gone_when_that_rolls_back(queue: Queue, database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE posts (title TEXT)")
    with pytest.raises(ZeroDivisionError), connection:
        connection.execute("INSERT INTO posts VALUES ('hello')")
        queue.enqueue("t", key="k", connection=connection)
        _ = 1 / 0
    assert rows(database) == rows(database, "SELECT * FROM posts") == []
    assert queue.enqueue("t", key="k").created
    connection.close()


def test_a_refused_payload_leaves_the_caller_s_transaction_usable(queue: Queue, database: Path) -> None:
    with stranger(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        queue.enqueue("t", connection=connection)
        with pytest.raises(PayloadError):
            queue.enqueue("t", {1}, connection=connection)
        assert connection.in_transaction
        connection.execute("COMMIT")
    assert len(rows(database)) == 1


def test_an_open_transaction_of_the_caller_stops_our_writers_only_while_it_lasts(database: Path) -> None:
    with Queue(database, busy_seconds=0.05) as queue, stranger(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            queue.enqueue("t")
        assert queue.enqueue("t", connection=connection).created
        connection.execute("ROLLBACK")
        assert queue.enqueue("t") == (1, True)


def test_durable_belongs_to_the_caller_s_own_connection(queue: Queue, database: Path) -> None:
    with stranger(database) as connection, pytest.raises(UsageError, match="PRAGMA synchronous"):
        queue.enqueue("t", connection=connection, durable="full")


@pytest.mark.parametrize("durable", ["normal", "full"])
def test_a_durable_enqueue_syncs_and_leaves_the_connection_as_it_was(durable: Any, database: Path) -> None:
    with Queue(database, durable=durable) as queue:
        queue.enqueue("t")
        queue.enqueue("t", durable="full")
        assert queue._opened().connection.execute("PRAGMA synchronous").fetchall() == [(1,)]
    assert len(rows(database)) == 2
    with pytest.raises(UsageError, match="durable"):
        Queue(database, durable="sometimes")  # type: ignore[arg-type]


# by hand


def test_claim_renew_complete(queue: Queue, database: Path) -> None:
    queue.enqueue("t", {"a": 1})
    job = queue.claim()
    assert job is not None and (job.id, job.type, job.payload, job.attempts) == (1, "t", {"a": 1}, 1)
    assert queue.claim() is None
    assert queue.renew(job) and queue.complete(job, {"size": 3}) and not queue.complete(job)
    assert (row(database)["status"], row(database)["result"]) == ("done", '{"size":3}')


def test_fail_retries_after_attempts_squared_minutes_and_at_last_is_dead(queue: Queue, database: Path) -> None:
    queue.enqueue("t", max_attempts=3)
    for attempt in (1, 2, 3):
        with stranger(database) as sql:
            sql.execute("UPDATE jobs SET run_at = CURRENT_TIMESTAMP WHERE status = 'queued'")
        job = queue.claim()
        assert job is not None and queue.fail(job, ValueError("no luck"))
        found = row(database)
        assert found["last_error"] == "ValueError: no luck"
        waits = parse_utc(found["run_at"]) - parse_utc(found["updated_at"])
        assert waits == pytest.approx(60 * attempt**2, abs=0.01)
        assert found["status"] == ("dead" if attempt == 3 else "queued")
    assert [each["attempt"] for each in rows(database, "SELECT * FROM attempts ORDER BY id")] == [1, 2, 3]


@pytest.mark.parametrize("delay", [0, 1.5, timedelta(hours=1), float("inf"), 1e300])
def test_fail_takes_any_delay_and_clamps_it(delay: Any, queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    job = queue.claim()
    assert job is not None and queue.fail(job, "x", delay=delay)
    assert row(database)["run_at"] <= "9999-12-31 00:00:00.000"
    assert (queue.claim() is not None) == (delay == 0)


def test_retry_delays_are_attempts_squared_minutes_and_never_overflow() -> None:
    assert [retry_delay(attempts) for attempts in (1, 2, 5)] == [60.0, 240.0, 1500.0]
    longest = [retry_delay(attempts) for attempts in (10**4, 10**6, 2**31, 2**63, 10**400)]
    assert all(0 < delay < 1e12 for delay in longest) and longest == sorted(longest)


def test_a_job_of_two_billion_attempts_fails_like_any_other(queue: Queue, database: Path) -> None:
    queue.enqueue("t", max_attempts=2**31 - 1)
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET attempts = ?", (2**31 - 3,))
    job = queue.claim()
    assert job is not None and queue.fail(job, "x")
    assert row(database)["status"] == "queued" and row(database)["run_at"] <= "9999-12-31 00:00:00.000"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    ["x" * 20_000_000, ValueError("x" * 20_000_000), "\ud800", ValueError("\ud800"), Unprintable(), "", ValueError()],
)
def test_fail_stores_any_error_bounded(error: Any, queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    job = queue.claim()
    assert job is not None and queue.fail(job, error)
    assert len(row(database)["last_error"]) < 10_000
    assert row(database)["status"] == "queued"


def test_two_queues_in_one_process_claim_under_different_names(database: Path) -> None:
    with Queue(database) as one, Queue(database) as two:
        one.enqueue_many([("t",)] * 3)
        jobs = [one.claim(), two.claim(), one.claim("my-own-name")]
        names = [job.worker for job in jobs if job]
    assert len(set(names)) == 3 and names[2] == "my-own-name"
    assert all(len(name.split(":")) == 3 and name.split(":")[1] == str(os.getpid()) for name in names[:2])


# mending


def test_retry_archive_cancel_and_get(queue: Queue, database: Path) -> None:
    job_id = queue.enqueue("t", {"a": 1}, key="k", max_attempts=1).id
    job = queue.claim()
    assert job is not None and not queue.archive(job_id) and not queue.retry(job_id)
    queue.fail(job, "no luck")
    assert row(database)["status"] == "dead" and queue.retry(job_id)
    assert (row(database)["status"], row(database)["attempts"]) == ("queued", 0)
    assert queue.archive(job_id, "old", by="me") and not queue.archive(job_id)
    archived = queue.get(job_id)
    assert archived is not None and rows(database) == []
    assert (archived["archived_by"], archived["archive_reason"], archived["payload"]) == ("me", "old", '{"a":1}')
    assert queue.retry(job_id) and row(database)["idempotency_key"] == "k"
    assert queue.cancel(job_id) == "cancelled" and queue.cancel(job_id) is None
    assert queue.get(99) is None and not queue.retry(99) and not queue.archive(99) and queue.cancel(99) is None


def test_a_job_cannot_leave_the_archive_while_another_has_its_key(queue: Queue, database: Path) -> None:
    first = queue.enqueue("t", key="k").id
    queue.archive(first)
    second = queue.enqueue("t", key="k")
    assert second.created
    with pytest.raises(UsageError, match=f"job {first} cannot leave the archive: another job has its key"):
        queue.retry(first)
    assert queue.get(first) is not None and len(rows(database)) == 1
    queue.archive(second.id)
    assert queue.retry(first)


def test_a_closed_queue_says_so(database: Path) -> None:
    queue = Queue(database)
    queue.close()
    queue.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        queue.enqueue("t")


# processes and threads


def test_one_key_from_sixteen_processes_at_once_is_one_job(database: Path) -> None:
    Queue(database).close()
    script = """
import sqlite3
from pool import Queue
queue = Queue(sys.argv[1])
mine = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
go()
import os
if os.getpid() % 4 == 0:  # some change their mind
    mine.execute("BEGIN IMMEDIATE")
    queue.enqueue("t", key="k", connection=mine)
    mine.execute("ROLLBACK")
done = queue.enqueue("t", key="k")
print(done.id, done.created)
"""
    answers = race(16, script, str(database))
    assert [(each.code, each.err) for each in answers] == [(0, "")] * 16
    said = sorted(each.out.split()[1] for each in answers)
    assert said == ["False"] * 15 + ["True"]
    assert {each.out.split()[0] for each in answers} == {str(rows(database)[0]["id"])}
    assert len(rows(database)) == 1


def in_fork(work: Callable[[], object], seconds: float = 20.0) -> int:
    """The exit code of a forked child that does the work: 0, or 1 when it raised; killed when it hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status: list[int] = []

    def ended() -> bool:
        found, raw = os.waitpid(pid, os.WNOHANG)
        status.extend([raw] if found else [])
        return bool(found)

    try:
        eventually(ended, seconds)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return os.waitstatus_to_exitcode(status[0])


def test_a_queue_made_before_a_fork_works_on_both_sides(queue: Queue, database: Path) -> None:
    queue.enqueue("parent")

    def child() -> None:
        queue.enqueue_many([("child",)] * 50)
        job = queue.claim()
        assert job is not None and queue.complete(job)
        queue.close()

    for _ in range(3):
        assert in_fork(child) == 0
        queue.enqueue("parent")
    assert len(rows(database)) == 4 + 150
    assert rows(database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_a_child_claims_under_a_name_of_its_own(queue: Queue, database: Path) -> None:
    queue.enqueue_many([("t",)] * 2)
    mine = queue.claim()

    def child() -> None:
        theirs = queue.claim()
        assert theirs is not None and mine is not None and theirs.worker != mine.worker

    assert in_fork(child) == 0
    assert mine is not None and queue.complete(mine)  # and the parent's own lease holds


def test_what_a_child_commits_after_its_parent_has_gone_is_kept(database: Path, tmp_path: Path) -> None:
    """A daemon: it makes its queue, forks, and the parent exits. The log must not vanish under the child."""
    script = """
import os, sys, time
from pool import Queue
queue = Queue("jobs.db")
queue.enqueue("parent")
if os.fork():
    queue.close()
    os._exit(0)
os.setsid()
os.chdir("/")
while os.path.exists("/proc/" + sys.argv[1]):
    time.sleep(0.01)
for _ in range(3):
    assert queue.enqueue("child").created
os._exit(0)
"""
    code = script.replace("sys.argv[1]", "str(PARENT)").replace("from pool", "PARENT = os.getpid()\nfrom pool")
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    assert parent.wait(20) == 0
    eventually(lambda: len(rows(database)) == 4)
    assert rows(database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_a_fork_closes_the_queue_s_file_and_nothing_of_a_queue_in_memory(database: Path) -> None:
    with Queue(":memory:") as memory, Queue(database) as queue:
        memory.enqueue("t")
        queue.enqueue("t")

        def child() -> None:
            paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            # The listing's own is closed again; others may stand behind it, which the tests were started with.
            assert str(database) not in str([os.readlink(path) for path in paths if os.path.lexists(path)])

        assert in_fork(child) == 0
        assert memory.get(1) is not None and queue.get(1) is not None


def test_a_queue_keeps_to_its_file_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Queue("relative.db") as queue:
        monkeypatch.chdir("/")
        assert in_fork(lambda: queue.enqueue("t")) == 0
        assert queue.get(1) is not None
    assert not os.path.exists("/relative.db")


def test_a_fork_while_other_threads_use_the_queue_hangs_nobody(queue: Queue, database: Path) -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            queue.enqueue("thread")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [in_fork(lambda: queue.enqueue("child")) for _ in range(20)] == [0] * 20
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert len(rows(database, "SELECT * FROM jobs WHERE type = 'child'")) == 20
    assert rows(database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_threads_share_a_queue(queue: Queue, database: Path) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        for n in range(25):
            queue.enqueue("t", key=f"{n}")
            queue.enqueue("t", {"thread": number})
            job = queue.claim()
            if job is not None and queue.complete(job):
                done.append(job.id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rows(database)) == 25 + 8 * 25
    assert len(done) == len(set(done)) == statuses(database)["done"]
