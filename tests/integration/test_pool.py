"""A pool at work: jobs run, in order, when they are due, and a pool ends as it was asked to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pool import Queue, slot
from pool.assignment import SLOT_FD
from pool.slot import Slot
from tests.conftest import Command
from tests.support import (
    Pool,
    at_rest,
    eventually,
    lines,
    race,
    row,
    rows,
    settled,
    state_of,
    statuses,
    stranger,
    title_of,
)

StartPool = Callable[..., Pool]


def hold(queue: Queue, tmp_path: Path, **options: Any) -> Path:
    """Enqueue a job that runs until the returned file is there."""
    gate = tmp_path / "gate"
    queue.enqueue("hold", {"started": str(tmp_path / "started"), "gate": str(gate)}, **options)
    return gate


def held(tmp_path: Path, times: int = 1) -> int:
    """The pid of the worker that runs it, once it does, for the given time."""
    return int(eventually(lambda: lines(tmp_path / "started")[times - 1 : times])[0])


def stopped_in_peace(running: Pool, database: Path) -> bool:
    """Stop a supervisor; not in the middle of a write, with the database locked."""
    running.signal(signal.SIGSTOP)
    eventually(lambda: state_of(running.pid) == "T")
    with stranger(database) as sql:
        sql.execute("PRAGMA busy_timeout = 100")
        try:
            sql.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            running.signal(signal.SIGCONT)
            return False
        sql.execute("ROLLBACK")
    return True


def test_jobs_run_once_each_and_their_results_are_stored(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    queue.enqueue_many([("note", {"path": str(tmp_path / "ran"), "line": str(n)}) for n in range(300)])
    queue.enqueue("echo", {"a": [1, "é", None]})
    running = pool(workers=2)
    eventually(lambda: settled(database, done=301))
    assert Counter(lines(tmp_path / "ran")) == dict.fromkeys(map(str, range(300)), 1)
    assert row(database, 301)["result"] == '{"a":[1,"é",null]}'
    assert rows(database, "SELECT * FROM attempts") == []
    assert all(each["attempts"] == 1 and each["locked_by"] is None for each in rows(database))
    assert running.stop() == 0
    assert rows(database, "SELECT * FROM pools") == rows(database, "SELECT * FROM workers") == []


def test_outcomes_of_handlers_are_written(pool: StartPool, queue: Queue, database: Path) -> None:
    source = """
@handler("retry")
def retry(): raise Retry(3600, "not yet")

@handler("discard")
def discard(): raise Discard("never")

@handler("snooze")
def snooze(): raise Snooze(3600)

@handler("exit")
def exit(): sys.exit("text")

@handler("interrupt")
def interrupt(): raise KeyboardInterrupt

@handler("unstorable")
def unstorable(): return {1, 2}
"""
    names = ["retry", "discard", "snooze", "exit", "interrupt", "unstorable", "fail", "echo"]
    queue.enqueue_many([(name,) for name in names])
    running = pool(handlers=source).ready()
    (worker,) = running.workers().values()
    eventually(lambda: row(database, len(names))["status"] == "done")
    found = {each["type"]: each for each in rows(database)}
    assert {name: found[name]["status"] for name in names} == {
        **dict.fromkeys(names, "queued"), "discard": "dead", "echo": "done"
    }  # fmt: skip
    assert {name: found[name]["attempts"] for name in names} == {**dict.fromkeys(names, 1), "snooze": 0}
    errors = {name: found[name]["last_error"] for name in names}
    assert errors["retry"] == "not yet" and errors["discard"] == "never" and errors["snooze"] is None
    assert errors["exit"] == "SystemExit: text" and errors["interrupt"] == "KeyboardInterrupt"
    assert errors["unstorable"].startswith("the handler returned what JSON cannot hold: result is a set")
    assert errors["fail"] == "RuntimeError: no luck"
    outcomes = {each["job_id"]: each["outcome"] for each in rows(database, "SELECT * FROM attempts")}
    assert outcomes == {1: "failed", 2: "discarded", 4: "failed", 5: "failed", 6: "failed", 7: "failed"}
    assert list(running.workers().values()) == [worker], "the worker lived through all of it"


def test_a_failure_keeps_its_traceback_its_output_and_when_it_began(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    source = """
@handler("loud")
def loud():
    print("to standard output")
    print("to standard error", file=sys.stderr)
    subprocess.run(["echo", "from a program"], check=True)
    print("no newline", end="")
    raise ValueError("after all that")
"""
    queue.enqueue("echo", {})
    queue.enqueue("loud")
    running = pool(handlers=source)
    eventually(lambda: rows(database, "SELECT * FROM attempts"))
    (attempt,) = rows(database, "SELECT * FROM attempts")
    for text in ("to standard output", "to standard error", "from a program", "no newline"):
        assert text in attempt["output"]
    assert "in loud" in attempt["traceback"] and attempt["error"] == "ValueError: after all that"
    assert attempt["started_at"] <= attempt["ended_at"] and attempt["worker"].split(":")[1].isdigit()
    eventually(lambda: "worker 1 | from a program" in running.err)
    assert "worker 1 | to standard output" in running.err


def test_the_log_tells_of_attempts_that_failed_and_of_many_only_some(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    queue.enqueue("fail", {"message": "once more"})
    queue.enqueue("fail", {"message": "no more"}, max_attempts=1)
    running = pool(workers=1).ready()
    eventually(lambda: "it is dead" in running.err)
    assert "job 1 (fail), attempt 1 of 5: RuntimeError: once more; it is tried again in 60 s" in running.err
    assert "job 2 (fail), attempt 1 of 1: RuntimeError: no more; it is dead" in running.err
    queue.enqueue_many(("fail",) for _ in range(500))

    def told() -> tuple[int, int]:
        more = sum(map(int, re.findall(r"(\d+) more attempts failed", running.err)))
        return running.err.count("tried again in 60 s"), more

    eventually(lambda: sum(told()) == 501)
    assert told()[1] > 0


def test_output_that_is_not_utf_8_or_endless_harms_nothing(pool: StartPool, queue: Queue, database: Path) -> None:
    source = """
@handler("bytes")
def bytes_():
    os.write(1, b"\\xff\\xfe no text \\x00\\n")
    for _ in range(40):
        os.write(2, b"x" * 65536 + b"\\n")
    raise ValueError("x")
"""
    queue.enqueue("bytes")
    running = pool(handlers=source)
    eventually(lambda: rows(database, "SELECT * FROM attempts"))
    assert len(rows(database, "SELECT output FROM attempts")[0]["output"]) <= 64 * 1024 + 100
    assert running.stop() == 0


def test_a_payload_that_is_not_json_fails_with_that_reason_and_the_next_runs(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    with stranger(database) as sql:
        for payload in ("{broken", "", "NaN", "[" * 100_000):
            sql.execute("INSERT INTO jobs (type, payload) VALUES ('echo', ?)", (payload,))
    queue.enqueue("echo", {"a": 1})
    pool().ready()
    eventually(lambda: row(database, 5)["status"] == "done")
    for job_id in range(1, 5):
        assert row(database, job_id)["last_error"].startswith("the payload is not JSON: ")
        assert (row(database, job_id)["status"], row(database, job_id)["attempts"]) == ("queued", 1)


#: Rows a stranger may store and no worker can make sense of, as the values of (type, payload, timeout_seconds).
POISON = {
    "a type that is a blob": "x'ff', '{}', NULL",
    "a type that is not UTF-8": "CAST(x'ff' AS TEXT), '{}', NULL",
    "a type with a zero byte": "'a' || char(0) || 'b', '{}', NULL",
    "a payload that is a blob": "'echo', x'ff', NULL",
    "a payload that is not UTF-8": "'echo', CAST(x'ff' AS TEXT), NULL",
    "a timeout that is text": "'echo', '{}', 'soon'",
    "an endless timeout": "'echo', '{}', 9e999",
    "a timeout of ages": "'echo', '{}', 1e15",
    "a negative timeout": "'echo', '{}', -1",
}


@pytest.mark.parametrize("values", POISON.values(), ids=POISON)
def test_a_row_no_worker_can_make_sense_of_stops_no_other_job(
    values: str, pool: StartPool, queue: Queue, database: Path
) -> None:
    """Such a job may run, or fail with a reason; it must not be claimed for ever, nor kill worker after worker."""
    with stranger(database) as sql:
        sql.execute(f"INSERT INTO jobs (type, payload, timeout_seconds, run_at) VALUES ({values}, '2020-01-01')")
    queue.enqueue("echo", {"a": 1})
    running = pool().ready()
    eventually(lambda: row(database, 2)["status"] == "done", what=f"the next job; the log: {running.err[-2000:]}")
    sql_of_first = "SELECT status, attempts, crashes, interruptions FROM jobs WHERE id = 1"
    first = eventually(lambda: [each for each in rows(database, sql_of_first) if each["status"] != "running"])[0]
    assert first["attempts"] >= 1 and first["interruptions"] == 0


@pytest.mark.parametrize("timeout", ["1e10", "float('inf')"])
def test_a_handler_may_ask_for_any_timeout(timeout: str, pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue("patient")
    pool(handlers=f"\n@handler('patient', timeout={timeout})\ndef patient(): ...\n")
    eventually(lambda: settled(database, done=1))


def test_a_job_from_plain_sql_wakes_an_idle_pool(pool: StartPool, queue: Queue, database: Path, tmp_path: Path) -> None:
    pool().ready()
    with stranger(database) as sql:
        for n in range(5):
            began = time.monotonic()
            sql.execute(
                "INSERT INTO jobs (type, payload) VALUES ('note', json_object('path', ?))", (str(tmp_path / "ran"),)
            )
            eventually(lambda n=n: len(lines(tmp_path / "ran")) == n + 1)  # type: ignore[misc]
            assert time.monotonic() - began < 4, "it was found by the worker's own look, not woken"


def test_an_enqueue_wakes_an_idle_worker_even_while_the_supervisor_is_stopped(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    running = pool(workers=2).ready(2)
    eventually(lambda: all(title_of(pid).endswith("idle") for pid in running.workers().values()))
    eventually(lambda: stopped_in_peace(running, database))
    try:
        began = time.monotonic()
        queue.enqueue("note", {"path": str(tmp_path / "ran")})
        eventually(lambda: lines(tmp_path / "ran"))
        assert time.monotonic() - began < 4, "it was found by the worker's own look, not woken"
    finally:
        running.signal(signal.SIGCONT)


@pytest.mark.parametrize("number", [1, 2])
def test_a_stopped_idle_worker_keeps_no_job_waiting(number: int, pool: StartPool, queue: Queue, tmp_path: Path) -> None:
    running = pool(workers=2).ready(2)
    worker = running.workers()[number]
    at_rest(worker)  # not in the middle of a claim, with the database locked
    os.kill(worker, signal.SIGSTOP)
    for n in range(3):
        began = time.monotonic()
        queue.enqueue("note", {"path": str(tmp_path / "ran")})
        eventually(lambda n=n: len(lines(tmp_path / "ran")) == n + 1)  # type: ignore[misc]
        assert time.monotonic() - began < 4, "it was found by the worker's own look, not woken"


def room_of(running: Pool) -> memoryview:
    """The words a worker shares with its supervisor; slot.ROOM is when it may write again."""
    fd = os.open(f"/proc/{running.workers()[1]}/fd/{SLOT_FD}", os.O_RDWR)
    try:
        return Slot(fd).words
    finally:
        os.close(fd)


def test_a_worker_that_was_told_to_leave_room_begins_no_write_until_then(
    pool: StartPool, queue: Queue, tmp_path: Path
) -> None:
    words = room_of(pool(workers=1).ready())
    assert words[slot.ROOM] == 0
    words[slot.ROOM] = until = time.monotonic_ns() + 1_000_000_000
    queue.enqueue("note", {"path": str(tmp_path / "ran")})
    eventually(lambda: lines(tmp_path / "ran"))
    assert time.monotonic_ns() >= until


#: A program that knows only SQLite, and says how long its INSERT took.
STRANGER = """
import sqlite3, sys, time
sql = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
sql.execute("SELECT 1 FROM jobs LIMIT 1").fetchall()
print("open", flush=True)
sys.stdin.readline()
sql.execute("INSERT INTO jobs (type, payload, run_at) VALUES ('t', '{}', '2090-01-01')")
"""


@contextlib.contextmanager
def a_stranger(database: Path) -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", STRANGER, str(database)], **pipes) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def test_workers_that_keep_the_database_busy_leave_room_for_a_stranger_before_he_has_written(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    queue.enqueue_many(("echo",) for _ in range(40_000))
    words = room_of(pool(workers=1).ready())
    eventually(lambda: words[slot.DONE] > 5_000)
    assert words[slot.ROOM] == 0, "room was left for nobody"
    with a_stranger(database):
        eventually(lambda: words[slot.ROOM] > 0)


def test_workers_that_compute_leave_no_room_as_the_database_is_free(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    source = """
@handler("spin")
def spin():
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
"""
    queue.enqueue_many(("spin",) for _ in range(60))
    words = room_of(pool(workers=1, handlers=source).ready())
    with a_stranger(database) as process:
        process.communicate("go\n", 20)
        assert process.returncode == 0
    eventually(lambda: words[slot.DONE] == 60)
    assert words[slot.ROOM] == 0


def test_a_delayed_job_runs_when_it_is_due_and_not_before(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    source = """
@handler("clock")
def clock(): return time.time()
"""
    running = pool(handlers=source).ready()
    began = time.time()
    queue.enqueue("clock", delay=0.7)
    queue.enqueue("clock", delay=3600)
    eventually(lambda: settled(database, done=1, queued=1))
    ran = json.loads(row(database)["result"])
    assert ran - began >= 0.699 and ran - began < 4
    assert running.stop() == 0


def test_a_delayed_job_committed_while_all_workers_are_busy_runs_when_it_is_due(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    pool().ready()
    gate = hold(queue, tmp_path)
    held(tmp_path)
    queue.enqueue("note", {"path": str(tmp_path / "ran")}, delay=0.5)
    gate.touch()
    eventually(lambda: row(database, 1)["status"] == "done")
    began = time.monotonic()
    eventually(lambda: settled(database, done=2))
    assert time.monotonic() - began < 4


def test_priorities_then_due_times_then_ids_order_the_jobs(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    path = str(tmp_path / "ran")
    for line, priority in (("c", 5), ("a", -5), ("d", 5), ("b", 0)):
        queue.enqueue("note", {"path": path, "line": line}, priority=priority)
    queue.enqueue("note", {"path": path, "line": "later"}, priority=-99, delay=3600)
    pool("--drain").wait()
    assert lines(path) == ["a", "b", "c", "d"]


# the end of a pool


def test_drain_ends_with_0_when_all_is_done_and_leaves_what_is_not_due(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    queue.enqueue_many([("note", {"path": str(tmp_path / "ran")})] * 50)
    queue.enqueue("echo", delay=3600)
    running = pool("--drain", workers=2)
    assert running.wait() == 0
    assert settled(database, done=50, queued=1)
    assert running.out == "drained: 50 done, 0 attempts failed; 1 wait for later"
    assert pool("--drain").wait() == 0  # nothing to do


@pytest.mark.parametrize(
    ("type", "options"),
    [
        ("fail", {}),
        ("fail", {"max_attempts": 1}),
        ("unknown", {}),
        ("hang", {"timeout": 0.3, "max_attempts": 1}),
        ("die", {"max_attempts": 1}),
    ],
)
def test_drain_ends_with_1_when_an_attempt_failed_in_whatever_way(
    type: str, options: dict[str, Any], pool: StartPool, queue: Queue, database: Path
) -> None:
    queue.enqueue("echo", {})
    queue.enqueue(type, **options)
    running = pool(
        "--drain", handlers='\n@handler("hang")\ndef hang(): time.sleep(600)\n@handler("die")\ndef die(): os._exit(0)\n'
    )
    assert running.wait() == 1
    assert "1 done, 1 attempt failed" in running.out
    assert row(database, 2)["status"] == ("dead" if "max_attempts" in options else "queued")


def test_a_drain_that_is_ended_early_does_not_claim_that_all_is_done(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    queue.enqueue("hold", {"started": str(started), "gate": str(gate)})
    queue.enqueue("echo", {})
    running = pool("--drain")
    eventually(lambda: lines(started))
    running.signal(signal.SIGTERM)
    eventually(lambda: "stopping" in running.err)
    gate.touch()
    assert running.wait() == 1
    assert [each["status"] for each in rows(database)] == ["done", "queued"]


def test_drain_waits_for_jobs_that_jobs_enqueue(pool: StartPool, queue: Queue, database: Path, tmp_path: Path) -> None:
    source = """
from pool import Queue

@handler("spawn")
def spawn(database, left):
    with Queue(database) as queue:
        if left:
            queue.enqueue("spawn", {"database": database, "left": left - 1})
"""
    queue.enqueue("spawn", {"database": str(database), "left": 20})
    assert pool("--drain", handlers=source, workers=2).wait() == 0
    assert settled(database, done=21)


def test_drain_does_not_wait_for_a_job_that_a_stranger_holds(pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue("echo")
    assert queue.claim("a-stranger") is not None
    assert pool("--drain").wait() == 0
    assert row(database)["status"] == "running"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_term_and_ctrl_c_let_the_running_job_end_and_claim_no_other(
    number: signal.Signals, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = hold(queue, tmp_path)
    queue.enqueue("note", {"path": str(tmp_path / "ran")})
    running = pool()
    held(tmp_path)
    running.signal(number)
    eventually(lambda: f"got {number.name}" in running.err)
    assert running.process.poll() is None and row(database)["status"] == "running"
    gate.touch()
    assert running.wait() == 0
    assert (row(database, 1)["status"], row(database, 1)["result"]) == ("done", '"held"')
    assert row(database, 2)["status"] == "queued" and lines(tmp_path / "ran") == []


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_second_one_ends_the_job_now_and_gives_the_attempt_back(
    second: signal.Signals, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    hold(queue, tmp_path)
    running = pool()
    pid = held(tmp_path)
    if second != signal.SIGQUIT:
        running.signal(second)
        eventually(lambda: f"got {second.name}" in running.err)
    running.signal(second)
    assert running.wait() == 0
    found = row(database)
    assert (found["status"], found["attempts"], found["crashes"]) == ("queued", 0, 0)
    assert (found["locked_by"], found["locked_at"]) == (None, None) and state_of(pid) == ""
    (attempt,) = rows(database, "SELECT * FROM attempts")
    assert (attempt["outcome"], attempt["signal"]) == ("interrupted", "SIGKILL")


def test_after_the_grace_the_job_is_ended_and_given_back(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    hold(queue, tmp_path, max_attempts=1)
    running = pool("--grace", "0.3")
    held(tmp_path)
    assert running.stop() == 0
    assert (row(database)["status"], row(database)["attempts"]) == ("queued", 0)


def test_a_ctrl_c_that_reaches_the_workers_too_interrupts_no_job(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = hold(queue, tmp_path)
    running = pool()
    pid = held(tmp_path)
    for _ in range(5):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGHUP)
    running.signal(signal.SIGINT)
    eventually(lambda: "got SIGINT" in running.err)
    gate.touch()
    assert running.wait() == 0 and row(database)["status"] == "done"


def test_a_pool_stopped_at_any_moment_of_its_start_leaves_nobody(pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue("note", {"path": "/dev/null"})
    for milliseconds in range(0, 450, 75):
        running = pool(workers=2)
        time.sleep(milliseconds / 1000)  # the moment is what is tested
        running.signal(signal.SIGTERM)
        assert running.wait() in (0, -signal.SIGTERM), running.err
    assert not statuses(database).get("running")


# two pools, and what they show


def test_two_pools_share_one_file_and_every_job_runs_once(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    one, two = pool(workers=1), pool(workers=1)
    one.ready(), two.ready()
    queue.enqueue_many([("note", {"path": str(tmp_path / "ran"), "line": str(n)}) for n in range(400)])
    eventually(lambda: settled(database, done=400))
    assert Counter(lines(tmp_path / "ran")) == dict.fromkeys(map(str, range(400)), 1)
    assert one.stop() == 0
    queue.enqueue("note", {"path": str(tmp_path / "ran"), "line": "last"})
    eventually(lambda: settled(database, done=401))
    assert two.stop() == 0


def test_one_pool_s_end_does_not_touch_the_other_s_jobs(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = hold(queue, tmp_path)
    busy = pool()
    held(tmp_path)
    other = pool().ready()
    other.end()
    third = pool().ready()
    assert third.stop() == 0
    assert row(database)["status"] == "running"
    gate.touch()
    eventually(lambda: settled(database, done=1))
    assert len(lines(tmp_path / "started")) == 1 and busy.stop() == 0


def test_an_exclusive_pool_refuses_company(pool: StartPool, queue: Queue) -> None:
    first = pool("--exclusive").ready()
    second = pool()
    assert second.wait() == 7 and second.err.count("error: ") == 1
    first.end()
    assert pool("--exclusive", "--drain").wait() == 0


def test_the_titles_of_processes_say_what_they_do(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    running = pool(workers=2).ready(2)
    assert set(running.workers()) == {1, 2}
    eventually(lambda: {title_of(pid) for pid in running.children()} == {"pool: worker 1 idle", "pool: worker 2 idle"})
    assert re.match(r"pool: supervisor jobs\.db 2 workers", title_of(running.pid))
    gate = hold(queue, tmp_path)
    pid = held(tmp_path)
    assert re.fullmatch(r"pool: worker [12] hold #1", title_of(pid))
    gate.touch()
    eventually(lambda: title_of(pid).endswith(" idle"))


def test_status_shows_the_pool_its_workers_and_what_they_run(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path, command: Command
) -> None:
    running = pool(workers=2).ready(2)
    gate = hold(queue, tmp_path)
    queue.enqueue("fail")
    pid = held(tmp_path)

    def busy() -> bool:
        found = command("status", "--json").ok().json()
        (shown,) = found["pools"]
        assert (shown["pid"], shown["alive"], shown["target"], shown["state"]) == (running.pid, True, 2, "running")
        by_pid = {each["pid"]: each for each in found["workers"]}
        assert by_pid.keys() == running.children()
        assert (by_pid[pid]["state"], by_pid[pid]["job"], by_pid[pid]["type"]) == ("busy", 1, "hold")
        return bool(found["retry_rate"] == 1.0 and found["db_write_latency_p99_ms"] > 0)

    eventually(busy)
    assert "#1 hold" in command("status").ok().out
    gate.touch()
    eventually(lambda: command("status", "--json").json()["retry_rate"] == 0.5)
    running.end()
    assert not command("status", "--json").ok().json()["pools"][0]["alive"]
    said = command("status").ok().out
    assert f"pid {running.pid}: dead; what it ran comes back with the next: pool run" in said


@pytest.mark.parametrize("name", ["a b?#%.db", "données.db", os.fsdecode(b"bad\xff.db"), "file:x.db"], ids=ascii)
def test_a_database_may_have_any_name(name: str, pool: StartPool, tmp_path: Path, command: Command) -> None:
    command("enqueue", "echo", "--db", name).ok()
    assert pool("--drain", "--db", name).wait() == 0
    assert command("status", "--json", "--db", name).ok().json()["done"] == 1
    assert {each.name for each in tmp_path.glob("*.db")} == {name}


def test_events_are_json_lines_for_programs(pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue("fail")
    running = pool("--log-format", "json").ready()
    eventually(lambda: row(database)["last_error"])
    running.stop()
    events = [json.loads(line) for line in running.err.splitlines()]
    assert {"pool started", "worker ready", "pool ended"} <= {each["event"] for each in events}
    assert all({"time", "level", "event"} <= each.keys() for each in events)


# orders


def test_a_pause_stops_claims_and_resume_lets_them_go_on(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path, command: Command
) -> None:
    running = pool().ready()
    command("pause", "--reason", "lunch").ok()
    eventually(lambda: "claims paused" in running.err)
    queue.enqueue("note", {"path": str(tmp_path / "ran")})
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET priority = 1")  # another commit for the pool to notice
    assert row(database)["status"] == "queued"
    command("resume").ok()
    eventually(lambda: settled(database, done=1))


def test_a_pool_scales_by_order_and_by_signal(pool: StartPool, queue: Queue, command: Command) -> None:
    running = pool().ready()
    command("scale", "3").ok()
    running.ready(3)
    running.signal(signal.SIGTTOU)
    eventually(lambda: len(running.children()) == 2)
    running.signal(signal.SIGTTIN)
    running.ready(3)
    command("scale", "1").ok()
    eventually(lambda: len(running.children()) == 1)


def test_a_reload_takes_fresh_code_and_a_broken_one_leaves_the_old_workers(
    pool: StartPool, queue: Queue, database: Path, tasks: Callable[[str], Path], command: Command
) -> None:
    version = "\n@handler('version')\ndef version(): return {}\n"
    running = pool(handlers=version.format(1)).ready()
    (old,) = running.workers().values()
    tasks("\nraise RuntimeError('half saved')\n")
    command("reload").ok()
    eventually(lambda: "reload failed" in running.err)
    assert list(running.workers().values()) == [old]
    tasks(version.format(2))
    running.signal(signal.SIGHUP)
    eventually(lambda: running.children() and old not in running.children())
    queue.enqueue("version")
    eventually(lambda: settled(database, done=1))
    assert row(database)["result"] == "2" and running.stop() == 0


def test_a_cancelled_job_is_told_and_then_ended(pool: StartPool, queue: Queue, database: Path, tmp_path: Path) -> None:
    source = """
@handler("polite")
def polite(started, ctx):
    append(started, "polite")
    while True:
        ctx.check_cancelled()
        time.sleep(0.01)
"""
    pool("--cancel-grace", "0.3", handlers=source, workers=2).ready(2)
    hold(queue, tmp_path)
    queue.enqueue("polite", {"started": str(tmp_path / "started")})
    eventually(lambda: len(lines(tmp_path / "started")) == 2)
    assert queue.cancel(1) == queue.cancel(2) == "requested"
    eventually(lambda: len(rows(database, "SELECT * FROM jobs_archive")) == 2)
    assert rows(database) == []
    outcomes = {each["job_id"]: each["outcome"] for each in rows(database, "SELECT * FROM attempts")}
    assert outcomes == {1: "cancelled", 2: "cancelled"}
    queue.enqueue("echo")
    eventually(lambda: settled(database, done=1))


def test_many_producers_at_once_lose_nothing(pool: StartPool, queue: Queue, database: Path, tmp_path: Path) -> None:
    running = pool(workers=2).ready(2)
    script = """
from pool import Queue
queue = Queue(sys.argv[1])
go()
for n in range(50):
    queue.enqueue("note", {"path": sys.argv[2], "line": str(n)})
"""
    for each in race(6, script, str(database), str(tmp_path / "ran")):
        assert (each.code, each.err) == (0, "")
    eventually(lambda: settled(database, done=300))
    assert Counter(lines(tmp_path / "ran")) == {str(n): 6 for n in range(50)}
    assert running.stop() == 0
