"""How soon a job runs again, or its end is written, after a process died: one figure for each way to die."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Section, percentile, progress
from benchmarks.options import Options
from benchmarks.running import Place, Pool, gone, place, until

TITLE = "after a death"

#: How a job ends its process, or makes the pool do it: what it is, type, payload, options of the pool, the most in ms.
WAYS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...], float], ...] = (
    ("the handler raises", "fail", {}, (), 1000.0),
    ("os._exit(3)", "leave", {"code": 3}, (), 1000.0),
    ("exit 0 behind the pool's back", "leave", {"code": 0}, (), 1000.0),
    ("SIGKILL by its own hand", "fault", {"number": int(signal.SIGKILL)}, (), 50.0),
    ("SIGSEGV", "fault", {"number": int(signal.SIGSEGV)}, (), 1000.0),
    ("SIGABRT", "fault", {"number": int(signal.SIGABRT)}, (), 1000.0),
    ("hang with the GIL held, timeout 3 s", "hang", {}, (), 3300.0),
    ("SIGSTOP while busy, timeout 1 s", "stop", {}, (), 2000.0),
    ("over --hard-memory 64M", "eat", {}, ("--hard-memory", "64M"), 6000.0),
)


def run(section: Section, options: Options) -> None:
    """Kills by the hundred, then every other way to die a few times."""
    kills = options.size(options.kills)
    progress(f"{kills} workers killed")
    with place() as where, Pool(where, 2) as pool, where.queue() as queue:
        queue.enqueue("hold", max_attempts=1_000_000)
        again, ready = _killed_workers(where, pool, kills)
    section.add(
        f"SIGKILL of a worker, running again on an idle one, p50 of {kills}", percentile(again, 0.5), "ms", at_most=10.0
    )
    section.add(
        f"SIGKILL of a worker, running again on an idle one, p99 of {kills}",
        percentile(again, 0.99),
        "ms",
        at_most=50.0,
    )
    section.add("its replacement is ready, p50", percentile(ready, 0.5), "ms", at_most=1000.0)
    for name, type, payload, flags, most in WAYS:
        progress(name)
        times = [_settled(type, payload, flags) for _ in range(options.reps)]
        section.add(f"{name}: attempt written", times, "ms", at_most=most)
    progress("whole trees, supervisors, idle pools")
    section.add(
        "SIGKILL of the whole tree, running again after `pool run`",
        [_tree() for _ in range(options.reps)],
        "ms",
        at_most=1000.0,
    )
    section.add(
        "SIGKILL of the supervisor, all workers gone", [_orphans() for _ in range(options.reps)], "ms", at_most=1000.0
    )
    section.add("TERM of an idle pool, exit", [_term() for _ in range(options.reps)], "ms", at_most=1000.0)


def _killed_workers(where: Place, pool: Pool, kills: int) -> tuple[list[float], list[float]]:
    """Milliseconds until the job runs again, and until there are two workers again, for each kill."""
    again, ready = [], []
    for number in range(1, kills + 1):
        held = where.wait_for("hold", number)[-1]
        pool.ready()
        time.sleep(0.05)
        killed = time.monotonic_ns()
        os.kill(held.pid, signal.SIGKILL)
        next_hold = where.wait_for("hold", number + 1)[-1]
        again.append((next_hold.at - killed) / 1e6)
        until(lambda pid=held.pid: pid not in pool.children(), "the dead worker's end")  # type: ignore[misc]
        pool.ready()
        ready.append((time.monotonic_ns() - killed) / 1e6)
    return again, ready


def _settled(type: str, payload: dict[str, Any], flags: tuple[str, ...]) -> float:
    """Milliseconds from the handler's first line until its attempt is on record."""
    with place() as where, Pool(where, 2, *flags), where.queue() as queue, _reader(where) as reader:
        queue.enqueue(type, payload, max_attempts=2)
        began = where.wait_for(type)[0].at

        def recorded() -> list[tuple[str | None]]:
            return reader.execute("SELECT stack FROM attempts WHERE job_id = 1").fetchall()

        rows = until(recorded, f"the attempt of {type}", pause=0.0005)
        took = (time.monotonic_ns() - began) / 1e6
        if type == "hang" and "in hang" not in (rows[0][0] or ""):
            raise RuntimeError(f"no stack of the hang in the attempt: {rows[0][0]!r}")
        return took


def _tree() -> float:
    """Milliseconds from the start of a new pool until it runs the job of one that was killed with its workers."""
    with place() as where, where.queue() as queue:
        with Pool(where, 2) as pool:
            queue.enqueue("hold", max_attempts=1_000_000)
            where.wait_for("hold")
            tree = [pool.pid, *pool.children()]
            ends = [gone(pid) for pid in tree]
            for pid in tree:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for end in ends:
                end()
        began = time.monotonic_ns()
        with Pool(where, 2):
            return (where.wait_for("hold", 2)[-1].at - began) / 1e6


def _orphans() -> float:
    """Milliseconds from the supervisor's SIGKILL until its workers, one hanging in C code, are gone."""
    with place() as where, Pool(where, 2) as pool, where.queue() as queue:
        queue.enqueue("hang")
        where.wait_for("hang")
        ends = [gone(pid) for pid in pool.children()]
        killed = time.monotonic_ns()
        os.kill(pool.pid, signal.SIGKILL)
        return (max(end() for end in ends) - killed) / 1e6


def _term() -> float:
    with place() as where, Pool(where, 2) as pool:
        end = gone(pool.pid)
        asked = time.monotonic_ns()
        os.kill(pool.pid, signal.SIGTERM)
        took = (end() - asked) / 1e6
        with contextlib.suppress(subprocess.TimeoutExpired):
            pool.process.wait(5)
        return took


@contextlib.contextmanager
def _reader(where: Place) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(where.database, timeout=30, isolation_level=None)) as connection:
        yield connection
