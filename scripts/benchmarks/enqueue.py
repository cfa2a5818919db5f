"""Enqueueing through ``Queue`` against the bare sqlite3 insert."""

from __future__ import annotations

import time

from benchmarks import floors
from benchmarks.figures import Section, alternate, progress
from benchmarks.options import Options
from benchmarks.running import place

TITLE = "jobs enqueued a second by one process, no pool at work"


def run(section: Section, options: Options) -> None:
    """One at a time, each its own durable transaction, and many in a few."""
    one, many = options.size(10_000), options.size(200_000)
    progress(f"{one} one by one and {many} in bulk, ours and bare")
    found = alternate(
        options.reps,
        {
            "one": lambda: _one(one),
            "bare one": lambda: floors.enqueue_one(one),
            "many": lambda: _many(many),
            "bare many": lambda: floors.enqueue_many(many),
        },
    )
    section.add("Queue.enqueue", found["one"], "/s")
    section.add("bare INSERT, a transaction each", found["bare one"], "/s")
    section.ratio("Queue.enqueue : bare", found["one"], found["bare one"], at_least=0.75)
    section.add("Queue.enqueue_many", found["many"], "/s")
    section.add("bare executemany, 1,000 a transaction", found["bare many"], "/s")
    section.ratio("Queue.enqueue_many : bare", found["many"], found["bare many"], at_least=0.6)


def _one(count: int) -> float:
    with place() as where, where.queue() as queue:
        began = time.perf_counter()
        for _ in range(count):
            queue.enqueue("noop")
        return count / (time.perf_counter() - began)


def _many(count: int) -> float:
    with place() as where, where.queue() as queue:
        began = time.perf_counter()
        queue.enqueue_many(("noop",) for _ in range(count))
        return count / (time.perf_counter() - began)
