"""The bare sqlite3 loops our figures are a share of: the least anyone can do for a durable queue with this library.

One small table and one index, no constraints, no states beyond three, no dispatch, no fencing; the same settings
(WAL, synchronous=NORMAL, BEGIN IMMEDIATE) and the same Python. Loops that contend run in processes of their own,
which are started before the clock is.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.running import SCRIPTS, place

_SCHEMA = (
    "CREATE TABLE task (id INTEGER PRIMARY KEY, name TEXT NOT NULL, body TEXT NOT NULL,"
    " stage INTEGER NOT NULL DEFAULT 0, rank INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL,"
    " tries INTEGER NOT NULL DEFAULT 0, begun REAL, ended REAL)",
    "CREATE INDEX task_ready ON task (name, rank, due, id) WHERE stage = 0",
)
_PUT = "INSERT INTO task (name, body, due) VALUES ('noop', '{}', ?)"
_TAKE = (
    "UPDATE task SET stage = 1, begun = ?1, tries = tries + 1 WHERE id = (SELECT id FROM task"
    " WHERE stage = 0 AND name = 'noop' AND due <= ?1 ORDER BY rank, due, id LIMIT 1) RETURNING id, body"
)
_END = "UPDATE task SET stage = 2, ended = ? WHERE id = ?"


def enqueue_one(count: int) -> float:
    """Rows a second, each in a transaction of its own."""
    with place() as where:
        connection = _connect(where.database, make=True)
        execute = connection.execute
        began = time.perf_counter()
        for number in range(count):
            execute("BEGIN IMMEDIATE")
            execute(_PUT, (float(number),))
            execute("COMMIT")
        rate = count / (time.perf_counter() - began)
        connection.close()
    return rate


def enqueue_many(count: int, chunk: int = 1000) -> float:
    """Rows a second, ``chunk`` in a transaction."""
    with place() as where:
        connection = _connect(where.database, make=True)
        began = time.perf_counter()
        for start in range(0, count, chunk):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_PUT, [(float(number),) for number in range(start, start + chunk)])
            connection.execute("COMMIT")
        rate = count / (time.perf_counter() - began)
        connection.close()
    return rate


def work_off(count: int, processes: int, group: int, *, with_start: bool = False) -> float:
    """Jobs a second that so many processes complete, each completing and claiming the next in one transaction; from
    the moment when all are ready, or with the start of the processes."""
    with place() as where:
        connection = _connect(where.database, make=True)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_PUT, [(float(number),) for number in range(count)])
        connection.execute("COMMIT")
        command = [sys.executable, "-m", "benchmarks.floors", where.database, str(group)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        launched = time.monotonic_ns()
        started = [subprocess.Popen(command, cwd=SCRIPTS, text=True, **pipes) for _ in range(processes)]  # type: ignore[call-overload]
        try:
            for each in started:
                each.stdout.readline()
            began = launched if with_start else time.monotonic_ns()
            for each in started:
                each.stdin.write("go\n")
                each.stdin.flush()
            ended = max(int(each.communicate()[0]) for each in started)
        finally:
            for each in started:
                if each.poll() is None:
                    each.kill()
                each.wait()
        connection.close()
    return count / ((ended - began) / 1e9)


def _connect(path: str, *, make: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    for statement in _SCHEMA if make else ():
        connection.execute(statement)
    return connection


def _one_by_one(execute: Callable[..., sqlite3.Cursor]) -> None:
    execute("BEGIN IMMEDIATE")
    rows = execute(_TAKE, (time.time(),)).fetchall()
    execute("COMMIT")
    while rows:
        execute("BEGIN IMMEDIATE")
        execute(_END, (time.time(), rows[0][0]))
        rows = execute(_TAKE, (time.time(),)).fetchall()
        execute("COMMIT")


def _in_groups(connection: sqlite3.Connection, size: int) -> None:
    execute = connection.execute
    held: list[int] = []
    while True:
        execute("BEGIN IMMEDIATE")
        if held:
            connection.executemany(_END, [(time.time(), number) for number in held])
        held = []
        while len(held) < size and (rows := execute(_TAKE, (time.time(),)).fetchall()):
            held.append(rows[0][0])
        execute("COMMIT")
        if not held:
            return


def main() -> None:
    """One contending process: say ready, wait for the word, work until nothing is left, say when."""
    connection = _connect(sys.argv[1])
    connection.execute("SELECT count(*) FROM task").fetchall()
    os.write(1, b"ready\n")
    sys.stdin.readline()
    if (size := int(sys.argv[2])) == 1:
        _one_by_one(connection.execute)
    else:
        _in_groups(connection, size)
    print(time.monotonic_ns())


if __name__ == "__main__":
    main()
