"""How long an idle pool takes to begin a job: enqueued through our API, and by a stranger's plain INSERT."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import time
from collections.abc import Callable
from functools import partial

from benchmarks.figures import Section, percentile, progress
from benchmarks.options import Options
from benchmarks.running import Place, Pool, place

TITLE = "from the commit to the first line of the handler, 2 idle workers"


def run(section: Section, options: Options) -> None:
    """Jobs at random moments, some 30 ms apart; the worst repetition's tail is not hidden by the others'."""
    count = options.size(300)
    calls: list[float] = []
    for name, waits, p50, p99 in (
        ("Queue.enqueue (from the call)", partial(_by_api, calls), 0.6, 3.0),
        ("plain INSERT (from its COMMIT)", _by_sql, 6.0, 15.0),
    ):
        progress(f"{options.reps} x {count} jobs, {name}")
        found = [sorted(waits(count)) for _ in range(options.reps)]
        section.add(f"{name}, p50", [percentile(each, 0.5) for each in found], "ms", at_most=p50)
        section.add(f"{name}, p99", [percentile(each, 0.99) for each in found], "ms", at_most=p99)
    section.add("Queue.enqueue, the call itself after such a pause, p50", percentile(calls, 0.5), "ms")


def _by_api(calls: list[float], count: int) -> list[float]:
    with place() as where, Pool(where, 2), where.queue() as queue:

        def enqueue(word: str) -> int:
            began = time.monotonic_ns()
            queue.enqueue("mark", {"word": word})
            calls.append((time.monotonic_ns() - began) / 1e6)
            return began

        return _waits(where, count, enqueue)


def _by_sql(count: int) -> list[float]:
    with place() as where, Pool(where, 2):
        connection = sqlite3.connect(where.database, timeout=30, isolation_level=None)

        def enqueue(word: str) -> int:
            connection.execute("INSERT INTO jobs (type, payload) VALUES ('mark', ?)", (json.dumps({"word": word}),))
            return time.monotonic_ns()

        with contextlib.closing(connection):
            return _waits(where, count, enqueue)


def _waits(where: Place, count: int, enqueue: Callable[[str], int]) -> list[float]:
    """Milliseconds each of so many jobs waited."""
    chance = random.Random(count)
    at = {}
    for number in range(count):
        time.sleep(chance.uniform(0.02, 0.04))
        at[f"w{number}"] = enqueue(f"w{number}")
    where.wait_for(f"w{count - 1}")
    time.sleep(0.1)
    return [(line.at - at[line.word]) / 1e6 for line in where.lines()]
