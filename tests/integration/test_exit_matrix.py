"""The exit matrix: each kind of end, in each phase of a worker's life, with what it makes of the job and by when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pool import Queue, testing
from pool.clock import parse_utc
from tests.conftest import StartPool
from tests.support import at_rest, eventually, row, rows, state_of, stranger

HANDLERS = """
import ctypes, faulthandler, os, signal, sys, time
from pool import handler

def kill(number):
    os.kill(os.getpid(), number)

def swallow():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def eat():
    held = []
    while True:
        held.append(bytearray(8 << 20))
        time.sleep(0.01)

WAYS = {
    "exception": lambda: 1 / 0,
    "sys.exit(7)": lambda: sys.exit(7),
    "sys.exit()": lambda: sys.exit(),
    "sys.exit('text')": lambda: sys.exit("text"),
    "KeyboardInterrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "GeneratorExit": lambda: (_ for _ in ()).throw(GeneratorExit()),
    "MemoryError": lambda: (_ for _ in ()).throw(MemoryError()),
    "os._exit(3)": lambda: os._exit(3),
    "os._exit(0)": lambda: os._exit(0),
    "SIGKILL": lambda: kill(signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": lambda: os.abort(),
    "SIGXCPU": lambda: kill(signal.SIGXCPU),
    "hang": swallow,
    "hang with the GIL": lambda: ctypes.PyDLL(None).sleep(600),
    "hang with signals blocked": lambda: (signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64)), swallow()),
    "SIGSTOP": lambda: kill(signal.SIGSTOP),
    "memory": eat,
}

@handler("end", timeout=1.0, max_attempts=2, max_crashes=2)
def end(how):
    print("ending by", how)
    WAYS[how]()

@handler("stall", timeout=60, stall_timeout=0.5, max_attempts=2)
def stall(ctx):
    ctx.progress(1, 10)
    swallow()
"""


class End(NamedTuple):
    """What a way to end makes of an attempt: its outcome, words in its error, and whether the worker lives on."""

    outcome: str
    error: str
    survives: bool = False
    within: float = 3.0  # seconds from the start of the attempt until the row is settled, generously
    stack: str = ""


ENDS = {
    "exception": End("failed", "ZeroDivisionError", survives=True),
    "sys.exit(7)": End("failed", "SystemExit: 7", survives=True),
    "sys.exit()": End("failed", "SystemExit", survives=True),
    "sys.exit('text')": End("failed", "SystemExit: text", survives=True),
    "KeyboardInterrupt": End("failed", "KeyboardInterrupt", survives=True),
    "GeneratorExit": End("failed", "GeneratorExit", survives=True),
    "MemoryError": End("failed", "MemoryError"),
    "os._exit(3)": End("crashed", "exit code 3"),
    "os._exit(0)": End("crashed", "exit code 0 in the middle of a job"),
    "SIGKILL": End("crashed", "killed by SIGKILL"),
    "SIGSEGV": End("crashed", "killed by SIGSEGV", stack="string_at"),
    "SIGABRT": End("crashed", "killed by SIGABRT", stack="<lambda>"),
    "SIGXCPU": End("crashed", "killed by SIGXCPU"),
    "hang": End("timeout", "timeout after 1 s", stack="swallow"),
    "hang with the GIL": End("timeout", "timeout after 1 s", stack="<lambda>"),
    "hang with signals blocked": End("timeout", "timeout after 1 s"),
    "SIGSTOP": End("timeout", "stopped"),
    "memory": End("memory limit", "memory limit", within=8.0),
}


def first_attempt(database: Path, job_id: int = 1) -> dict[str, Any]:
    """The first recorded attempt, once it is there."""
    return eventually(lambda: rows(database, "SELECT * FROM attempts WHERE job_id = ? ORDER BY id", job_id))[0]


def seconds_between(began: str, ended: str) -> float:
    """Seconds between two times of the database."""
    return parse_utc(ended) - parse_utc(began)


@pytest.mark.parametrize("how", ENDS)
def test_a_running_attempt_ends_as_promised_and_the_next_job_runs(
    how: str, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    expected = ENDS[how]
    running = pool("--hard-memory", "200M", handlers=HANDLERS).ready()
    pid = running.workers()[1]
    tries = 2 if expected.outcome == "crashed" else 1
    queue.enqueue("end", {"how": how}, max_attempts=tries, timeout=20 if how == "memory" else None)
    behind = queue.enqueue("note", {"path": str(tmp_path / "note"), "line": "ran"}, priority=1)

    attempt = first_attempt(database)
    assert attempt["outcome"] == expected.outcome
    assert expected.error in attempt["error"]
    assert seconds_between(attempt["started_at"], attempt["ended_at"]) < expected.within
    assert f"ending by {how}" in attempt["output"]
    assert expected.stack in (attempt["stack"] or "")
    if expected.outcome == "failed":
        assert "Traceback" in attempt["traceback"]
    else:
        assert attempt["peak_memory_bytes"] > 5_000_000
        assert attempt["cpu_seconds"] > 0
    eventually(lambda: row(database, behind.id)["status"] == "done")
    eventually(lambda: row(database)["status"] == "dead")  # its only try, or its whole crash budget, is used up
    if expected.survives:
        assert running.workers()[1] == pid
    else:
        eventually(lambda: running.workers()[1] != pid)


def test_an_attempt_without_progress_is_ended_as_stalled(pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue("stall")
    pool(handlers=HANDLERS)
    attempt = first_attempt(database)
    assert (attempt["outcome"], attempt["signal"]) == ("stalled", "SIGKILL")
    assert "swallow" in attempt["stack"]
    assert seconds_between(attempt["started_at"], attempt["ended_at"]) < 3.0


MARK = """
@handler("mark", max_crashes=100)
def mark(path, line):
    append(path, line)
"""


@pytest.mark.parametrize("point", ["claim", "before_settle", "after_settle"])
def test_a_worker_killed_at_the_edges_of_a_job_loses_and_doubles_nothing(
    point: str, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    jobs = 30
    for number in range(jobs):
        queue.enqueue("mark", {"path": str(tmp_path / "notes"), "line": str(number)}, max_attempts=100)
    ended = pool("--drain", workers=2, handlers=MARK, env=testing.faults(**{point: 8})).wait(60)
    assert {each["status"] for each in rows(database)} == {"done"}
    runs = (tmp_path / "notes").read_text().split()
    assert set(runs) == {str(number) for number in range(jobs)}
    crashes = rows(database, "SELECT * FROM attempts WHERE outcome = 'crashed'")
    assert len(runs) - jobs == len(crashes)  # an extra run for each attempt that died, and for no other
    if point == "before_settle":
        assert crashes
        assert ended == 1
    else:
        assert not crashes  # the handler never began, or its end was written already
        assert {each["attempts"] for each in rows(database)} == {1}


def test_a_worker_killed_while_it_boots_is_replaced(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    slow = f"""
import os, time
if not os.path.exists({str(tmp_path / "second")!r}):
    open({str(tmp_path / "second")!r}, "w").close()
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    time.sleep(60)
"""
    queue.enqueue("note", {"path": str(tmp_path / "notes")})
    running = pool(handlers=slow)
    pid = int(eventually(lambda: (tmp_path / "pid").read_text()))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: row(database)["status"] == "done")
    assert running.process.poll() is None
    assert not rows(database, "SELECT * FROM attempts")


def test_a_worker_stopped_and_continued_while_idle_loses_nothing(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    running = pool().ready()
    pid = running.workers()[1]
    at_rest(pid)  # not in the middle of a claim, with the database locked
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state_of(pid) == "T")
    job = queue.enqueue("note", {"path": str(tmp_path / "notes")})
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: row(database, job.id)["status"] == "done")
    assert running.workers()[1] == pid


#: Stops the worker before a COMMIT of its own, once the file is there.
STOP_BEFORE_COMMIT = """
from pool.store.turn import Write
commit = Write.__exit__
def stop_first(self, *error):
    if os.path.exists(os.environ["STOP"]):
        os.unlink(os.environ["STOP"])
        os.kill(os.getpid(), signal.SIGSTOP)
    commit(self, *error)
Write.__exit__ = stop_first

@handler("once")
def once(path):
    append(path, "ran")
    if len(open(path).readlines()) == 1:
        open(os.environ["STOP"], "w").close()
"""


@pytest.mark.parametrize(("type", "interruptions"), [("note", 0), ("once", 1)])
def test_a_worker_stopped_in_the_middle_of_a_claim_or_a_settle_keeps_the_others_waiting_for_seconds_at_most(
    type: str, interruptions: int, pool: StartPool, queue: Queue, database: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("STOP", str(tmp_path / "stop"))
    running = pool(handlers=STOP_BEFORE_COMMIT).ready()
    pid = running.workers()[1]
    at_rest(pid)
    if type == "note":
        (tmp_path / "stop").touch()
    queue.enqueue(type, {"path": str(tmp_path / "notes")})
    eventually(lambda: state_of(pid) == "T")
    eventually(lambda: row(database)["status"] == "done")
    ended = row(database)
    assert (ended["attempts"], ended["crashes"], ended["interruptions"]) == (1, 0, interruptions)
    assert f"locked by process {pid} (pool: worker 1" in running.err and "which was stopped" in running.err


def test_the_log_names_a_stranger_who_was_stopped_with_the_database_locked(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    running = pool().ready()
    at_rest(running.workers()[1])
    script = (
        "import os, signal, sqlite3, sys; sql = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "sql.execute('BEGIN IMMEDIATE'); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    stopped = subprocess.Popen([sys.executable, "-c", script, str(database)])
    try:
        eventually(lambda: f"locked by process {stopped.pid} ({sys.executable}" in running.err)
    finally:
        stopped.kill()
        stopped.wait()
    queue.enqueue("note", {"path": str(tmp_path / "notes")})
    eventually(lambda: row(database)["status"] == "done")
    assert running.stop() == 0


def test_fifty_timeouts_leave_no_zombie(pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue_many(("end", {"how": "hang"}, None, 0, None, None, 1, 0.05) for _ in range(50))
    running = pool(handlers=HANDLERS, workers=4)
    eventually(lambda: len(rows(database, "SELECT 1 FROM jobs WHERE status = 'dead'")) == 50, 60)
    eventually(lambda: not [pid for pid in running.children() if state_of(pid) == "Z"])
    assert {each["outcome"] for each in rows(database, "SELECT outcome FROM attempts")} == {"timeout"}


def test_a_job_on_its_last_try_after_crashes_is_first_in_line_for_the_oom_killer(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    suspect = """
@handler("suspect", max_crashes=2)
def suspect(path):
    append(path, open("/proc/self/oom_score_adj").read().strip())
    if len(open(path).read().split()) == 1:
        os.abort()
"""
    scores = tmp_path / "scores"
    queue.enqueue("suspect", {"path": str(scores)})
    queue.enqueue("note", {"path": str(tmp_path / "after")}, priority=1)
    pool(handlers=suspect)
    eventually(lambda: row(database)["status"] == "done")
    former, last = scores.read_text().split()
    assert (former != "1000", last) == (True, "1000")


def test_a_handler_that_forks_and_forgets_its_child_makes_no_second_worker(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    forks = """
@handler("fork")
def fork(path):
    os.fork()
    append(path, str(os.getpid()))
"""
    for _ in range(5):
        queue.enqueue("fork", {"path": str(tmp_path / "pids")})
    assert pool("--drain", handlers=forks).wait() == 0
    assert [each["status"] for each in rows(database)] == ["done"] * 5
    assert len((tmp_path / "pids").read_text().split()) == 10


def test_a_wall_clock_that_steps_an_hour_ends_and_reaps_nobody(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    clock = testing.Clock(str(tmp_path / "clock"))
    gate, started = tmp_path / "gate", tmp_path / "started"
    queue.enqueue("hold", {"started": str(started), "gate": str(gate)}, timeout=30)
    held_by_a_stranger = queue.enqueue("note", {"path": "/dev/null"}, delay=3600)
    running = pool("--lease", "60", env=testing.faults(clock=clock))
    eventually(lambda: started.read_text())
    with_time = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    with stranger(database) as connection:
        connection.execute(
            "UPDATE jobs SET status = 'running', locked_by = 'go:1:x', locked_at = ?, attempts = 1 WHERE id = ?",
            (with_time, held_by_a_stranger.id),
        )
    clock.step(3600)
    queue.enqueue("note", {"path": str(tmp_path / "notes")})
    # Two sweeps of the reaper (one every 5 s) come and go: what tells is the pool's own account, written at each.
    seen = rows(database, "SELECT seen_at FROM pools")[0]["seen_at"]
    for _ in range(3):
        before = seen
        seen = eventually(
            lambda before=before: (now := rows(database, "SELECT seen_at FROM pools")[0]["seen_at"]) != before and now
        )
    assert row(database, held_by_a_stranger.id)["status"] == "running"
    assert row(database)["status"] == "running"
    clock.step(-3600)
    gate.touch()
    eventually(lambda: row(database)["status"] == "done")
    assert row(database)["attempts"] == 1
    assert running.process.poll() is None


def test_a_worker_that_hangs_while_it_boots_is_ended_with_its_stack_and_nothing_is_lost(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "hung"
    hang = f"""
import os, time
def hang_while_importing():
    time.sleep(600)
if not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close()
    hang_while_importing()
"""
    queue.enqueue("note", {"path": str(tmp_path / "notes")})
    running = pool(handlers=hang)
    eventually(lambda: row(database)["status"] == "done", 50)
    assert "not ready after 30 s" in running.err
    assert not rows(database, "SELECT * FROM attempts")


def test_a_worker_stopped_for_good_while_idle_is_replaced(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    running = pool().ready()
    pid = running.workers()[1]
    at_rest(pid)  # not in the middle of a claim, with the database locked
    os.kill(pid, signal.SIGSTOP)
    job = queue.enqueue("note", {"path": str(tmp_path / "notes")})
    eventually(lambda: row(database, job.id)["status"] == "done", 60)
    assert state_of(pid) == ""
    assert not rows(database, "SELECT * FROM attempts")
    assert row(database, job.id)["attempts"] == 1
