"""Whether claiming and completing get slower as the database grows: the store's own verbs, one job a transaction."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable

from benchmarks.figures import Section, alternate, percentile, progress
from benchmarks.options import Options
from benchmarks.running import Place, place
from pool.clock import now_text
from pool.job import Completed, NewJob
from pool.store import Store

TITLE = "claim and complete, fused in one transaction, by what is in the database"
BASE = 1_000
CHUNK = 500
FUTURE = "2999-01-01 00:00:00.000"


def run(section: Section, options: Options) -> None:
    """Databases of all sizes are measured in turn; the median of a chunk of jobs is its time."""
    most = options.size(options.rows)
    sizes = [size for size in (100_000, 1_000_000) if size < most]
    with place() as where:
        sides = {f"{BASE:,} queued": _database(where, "base")}
        for size in [*sizes, most]:
            sides[f"{size:,} queued"] = _database(where, f"queued-{size}", queued=size)
        tenth = max(BASE, most // 10)
        sides[f"{BASE:,} queued, {tenth:,} done"] = _database(where, "done", done=tenth)
        name = f"{BASE:,} queued behind {tenth:,} future ones of a better priority"
        sides[name] = _database(where, "future", future=tenth)
        progress(f"{options.reps * 2} x {CHUNK} jobs in each of {len(sides)} databases")
        found = alternate(options.reps * 2, sides)
    base = f"{BASE:,} queued"
    section.add(base, found[base], "µs")
    for name, times in found.items():
        if name != base:
            section.add(name, times, "µs")
            section.ratio(f"{name} : {base}", times, found[base], at_most=1.25)
    section.series["claim_by_backlog"] = [
        [int(name.partition(" ")[0].replace(",", "")), percentile(times, 0.5)]
        for name, times in found.items()
        if name.endswith(" queued")
    ]


def _database(where: Place, name: str, queued: int = BASE, done: int = 0, future: int = 0) -> Callable[[], float]:
    """Make a database of so many jobs; the result measures a chunk there, in microseconds a job."""
    path = os.path.join(where.folder, f"{name}.db")
    progress(f"making {queued + done + future:,} jobs")
    Store.open(path).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        fill(connection, future, "queued", priority=-1, run_at=FUTURE)
        fill(connection, done, "done")
        fill(connection, queued, "queued")

    def chunk() -> float:
        store = Store.open(path)
        with contextlib.closing(store):
            times = work_off(store, CHUNK)
            now = now_text()
            store.enqueue_many([NewJob("noop", "{}", None, 0, now, 5, None, now)] * CHUNK)
            store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return percentile(times, 0.5)

    return chunk


def fill(connection: sqlite3.Connection, count: int, status: str, *, priority: int = 0, run_at: str = "") -> None:
    """Put rows into the table without waiting for the disk; due a millisecond apart, or all at ``run_at``."""
    for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -262144", "locking_mode = EXCLUSIVE"):
        connection.execute(f"PRAGMA {setting}").fetchall()
    base = time.time() - 86_400 - count / 1000
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "WITH RECURSIVE step (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM step WHERE n < :count) "
        "INSERT INTO jobs (type, payload, status, priority, run_at) SELECT 'noop', '{}', :status, :priority, "
        "iif(:run_at <> '', :run_at, strftime('%Y-%m-%d %H:%M:%f', :base + n / 1000.0, 'unixepoch')) FROM step "
        "WHERE :count > 0",
        {"count": count, "status": status, "priority": priority, "run_at": run_at, "base": base},
    )
    connection.execute("COMMIT")
    connection.execute("PRAGMA locking_mode = NORMAL").fetchall()


def work_off(store: Store, count: int) -> list[float]:
    """Complete so many jobs, each with the claim of the next; microseconds of each transaction."""
    times = []
    jobs = store.claim_group("bench:1:growth", {}, now_text())
    for _ in range(count - 1):
        began = time.perf_counter_ns()
        _, jobs = store.settle_group([(jobs[0], Completed())], [], {}, now_text())
        times.append((time.perf_counter_ns() - began) / 1e3)
    store.settle_group([(jobs[0], Completed())], [], None, now_text())
    return times
