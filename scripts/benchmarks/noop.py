"""Jobs that do nothing: what the queue and the pool themselves cost, as a share of what bare sqlite3 could do."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime

from benchmarks import floors
from benchmarks.figures import Section, alternate, progress
from benchmarks.options import Options
from benchmarks.running import Place, Pool, environment, place
from pool import Spec

TITLE = "no-op jobs a second, 2 workers"


def run(section: Section, options: Options) -> None:
    """A drain from start to exit, a started pool, and the bare loops of two contending processes."""
    drained, single, grouped = options.size(10_000), options.size(20_000), options.size(60_000)
    progress(f"{drained} jobs drained, {single} and {grouped} by a started pool, and bare")
    found = alternate(
        options.reps,
        {
            "drain": lambda: drain(drained, "noop"),
            "started": lambda: started(single, "noop"),
            "bare": lambda: floors.work_off(single, 2, 1),
            "grouped": lambda: started(grouped, "noop-grouped"),
            "bare grouped": lambda: floors.work_off(grouped, 2, 32),
            "bare with start": lambda: floors.work_off(20_000, 2, 1, with_start=True),
            "bare grouped with start": lambda: floors.work_off(20_000, 2, 32, with_start=True),
            "bare alone": lambda: floors.work_off(single, 1, 1),
            "bare grouped alone": lambda: floors.work_off(grouped, 1, 32),
        },
    )
    section.add(f"pool run --drain, {drained:,} jobs, start to exit", found["drain"], "/s", at_least=8_000)
    section.add("pool already started", found["started"], "/s", at_least=16_000)
    section.add("bare sqlite3, two processes", found["bare"], "/s")
    section.ratio("started pool : bare, two processes", found["started"], found["bare"], at_least=0.5)
    section.add("pool already started, @handler(group=32)", found["grouped"], "/s", at_least=45_000)
    section.add("bare sqlite3, groups of 32, two processes", found["bare grouped"], "/s")
    name = "started pool, grouped : bare in groups, two processes"
    section.ratio(name, found["grouped"], found["bare grouped"], at_least=0.85)
    for kind, ours, bare, share in (
        ("", "started", "bare with start", 0.5),
        (", groups of 32", "grouped", "bare grouped with start", 0.85),
    ):
        section.add(f"bare sqlite3{kind}, two processes and their start, 20,000 jobs", found[bare], "/s")
        section.ratio(
            f"started pool{kind} : bare, two processes and their start", found[ours], found[bare], at_least=share
        )
    section.add("bare sqlite3, one process alone", found["bare alone"], "/s")
    section.add("bare sqlite3, groups of 32, one process alone", found["bare grouped alone"], "/s")


def drain(count: int, type: str) -> float:
    """Jobs a second from the start of ``pool run --drain`` to its exit."""
    with place() as where:
        with where.queue() as queue:
            queue.enqueue_many((type,) for _ in range(count))
        command = [sys.executable, "-m", "pool", "run", "--db", where.database, "--workers", "2", "--drain"]
        began = time.perf_counter()
        subprocess.run(
            [*command, "--handlers", "benchmarks.jobs"],
            cwd=where.folder,
            env=environment(where.log),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return count / (time.perf_counter() - began)


def started(count: int, type: str) -> float:
    """Jobs a second of a pool that is ready when all of them become due, from that instant to the last one."""
    with place() as where, Pool(where, 2):
        due = enqueue_for_later(where, count, type)
        last = where.wait_for("last")[0]
        return count / (last.at / 1e9 + time.time() - time.monotonic() - due)


def enqueue_for_later(where: Place, count: int, type: str) -> float:
    """Enqueue jobs, a mark behind them, all due at the same instant, which is returned in seconds since the epoch."""
    due = round(time.time() + 0.5 + count / 15_000, 3)
    at = datetime.fromtimestamp(due, UTC)
    with where.queue() as queue:
        queue.enqueue_many(Spec(type, run_at=at) for _ in range(count))
        queue.enqueue("mark", {"word": "last"}, run_at=at)
    if time.time() > due:
        raise TimeoutError(f"{count} jobs could not be enqueued before they were due; the machine is too busy")
    return due
